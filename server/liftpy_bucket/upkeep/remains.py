"""What was deleted and is in the bucket still: the proof that a deletion is done, or what it waits for.

Records count as deleted below the start of their partition, in a stream that the catalog does not name or names as
deleted, and, in shared objects of a compacted stream, below the end of what was compacted. Only footers are read, of
objects that something names and of those that nothing does: a row group is of one partition, and says which offsets it
has.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.errors import ObjectCorruptError, ObjectMissingError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.catalog import CatalogFile
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.objects.parquet import FOOTER_GUARD_BYTES, FOOTER_TAIL_BYTES
from liftpy_bucket.objects.pointers import Extent
from liftpy_bucket.objects.read import ObjectReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from liftpy_bucket.manifest.catalog import CatalogStream
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.store.object_store import Entry, ObjectStore

__all__ = ["Remains", "find_remains"]

_FRAGMENT: Final = re.compile(r"streams/([0-9a-f]{32})/([0-9]{1,9})/fragments/[^/]+\.parquet")
_SHARED: Final = re.compile(r"sets/[^/]+/objects/[^/]+\.parquet")


class Remains(NamedTuple):
    """Records that were deleted, and are there.

    Attributes:
        key: Key of the object.
        path: Path of the partition.
        start: The first offset.
        end: The offset after the last one.
        age_s: Age since the object was written, by the clock of the store, seconds.
    """

    key: str
    path: PartitionPath
    start: int
    end: int
    age_s: float


def find_remains(store: ObjectStore, *, now_ns: int) -> list[Remains]:
    """Look through a bucket.

    Args:
        store: Object store of the bucket.
        now_ns: The time, ns since the epoch.

    Raises:
        StoreError: the store could not be asked.
        ManifestCorruptError, ObjectCorruptError, BucketVersionError: something can not be read.
    """
    entries = list(store.list(""))
    loaded = CatalogFile(store, new_id=_no_id).load()
    look = _Look(store, {} if loaded is None else loaded.catalog.streams, now_ns)
    return [found for entry in entries for found in look.at(entry)]


class _Look:
    def __init__(self, store: ObjectStore, streams: Mapping[str, CatalogStream], now_ns: int) -> None:
        self._store = store
        self._streams = streams
        self._now_ns = now_ns
        self._roots: dict[PartitionPath, Root | None] = {}

    def at(self, entry: Entry) -> Iterator[Remains]:
        """What remains in an object."""
        own = _FRAGMENT.fullmatch(entry.key)
        if own is None and _SHARED.fullmatch(entry.key) is None:
            return
        try:
            reader = self._reader(entry)
            groups = reader.row_groups
        except ObjectMissingError:  # collected since it was listed
            return
        age_s = max(0.0, (self._now_ns - entry.modified_ns) / 1e9)
        for group in groups:
            path = PartitionPath(own[1], int(own[2])) if own else PartitionPath(group.stream, group.partition)
            wanted = self._first_wanted(path, is_shared=own is None)
            first, last = group.first, group.last
            if wanted is None or first < wanted:
                end = last + 1 if wanted is None else min(last + 1, wanted)
                yield Remains(entry.key, path, first, end, age_s)

    def _reader(self, entry: Entry) -> ObjectReader:
        tail = self._store.get_range(entry.key, entry.size - FOOTER_TAIL_BYTES, FOOTER_TAIL_BYTES)
        footer = entry.size - FOOTER_TAIL_BYTES - int.from_bytes(tail[:4], "little")
        if footer < FOOTER_GUARD_BYTES:
            raise ObjectCorruptError(entry.key, "it is shorter than its footer")
        return ObjectReader(self._store, entry.key, Extent(entry.size, footer, digest=""))

    def _first_wanted(self, path: PartitionPath, *, is_shared: bool) -> int | None:
        """The first offset of a partition that was not deleted; None where all of it was."""
        stream = self._streams.get(path.uuid)
        if stream is None or stream.deleted_ns is not None:
            return None
        if path not in self._roots:
            loaded = RootFile(self._store, path, new_id=_no_id).load()
            self._roots[path] = None if loaded is None else loaded.root
        root = self._roots[path]
        if root is None:
            return 0  # nobody knows
        is_compacted = is_shared and bool(stream.config.get("compact"))
        return max(root.start, root.compacted_end) if is_compacted else root.start


def _no_id() -> str:
    raise AssertionError("what only reads needs no ids")
