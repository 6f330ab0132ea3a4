"""The history of a partition in the bucket, as one version of its root has it: which objects hold it, and its rows.

A version stays as it is, whatever is committed meanwhile; but the objects that it names may be collected, unless a pin
holds them: `ObjectMissingError` then says that a newer version is to be opened.

To find any offset costs at most four requests: the root, one snapshot, the footer of an object, and a row group. One in
a shared object costs four if it is known whose it is: the set manifest's root, the root, a page, and the member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.layout import set_object_key
from liftpy_bucket.objects.pointers import StreamObjectPointer
from liftpy_bucket.objects.read import fragment_key, trimmed
from liftpy_bucket.reading.cache import ReadingCache
from liftpy_bucket.reading.resolving import continuing_nodes, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.manifest.stream_sets.file import LoadedRoot
    from liftpy_bucket.manifest.stream_sets.format import SetPart
    from liftpy_bucket.objects.pointers import Extent, SetMember, SnapshotPointer
    from liftpy_bucket.objects.read import ObjectReader
    from liftpy_bucket.reading.resolving import Resolved, ResolvedMember
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["Piece", "TierVersion", "open_version"]

_LOOKS_MAX: Final = 20
_TIME_COLUMNS: Final = ("offset", "timestamp_ns")


class Piece(NamedTuple):
    """An object, or the part of one, that holds a range of the history.

    Attributes:
        key: Key of the object.
        extent: Extent of the Parquet file in it.
        start: The first offset for which it counts. What else is in it is of no account.
        end: The offset after the last one.
        pointer: What the manifest says of it.
    """

    key: str
    extent: Extent
    start: int
    end: int
    pointer: StreamObjectPointer | SetMember

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.extent.size


class TierVersion:
    """The history of a partition as one version of its root has it. Any number of threads may use it.

    Args:
        store: The bucket.
        path: Path of the partition.
        root: Root as it was read.
        resolved: What follows on it in stream sets; None for a version that ends where the root does.
        cache: What was read of the store before; by default the version has one of its own.

    Attributes:
        path: Path of the partition.
        root: Root as it was read.
    """

    def __init__(
        self,
        store: ObjectStore,
        path: PartitionPath,
        root: Root,
        resolved: Resolved | None,
        cache: ReadingCache | None = None,
    ) -> None:
        self.path = path
        self.root = root
        self._resolved = resolved
        self._cache = cache or ReadingCache(store)
        self._file = self._cache.root_file(path)

    @property
    def start(self) -> int:
        """The first offset that is still wanted."""
        return min(self.root.start, self.end)

    @property
    def end(self) -> int:
        """The offset after the last one."""
        return self.root.end if self._resolved is None else self._resolved.end

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(leader epoch, first offset), oldest first."""
        return self.root.epochs if self._resolved is None else self._resolved.epochs

    def pieces(self, start: int = 0, end: int | None = None) -> Iterator[Piece]:
        """What holds offsets from `start` up to `end`, in order; each with all for which it counts in this version.

        Raises:
            StoreError, ManifestCorruptError: a snapshot can not be read.
        """
        start = max(start, self.start)
        end = self.end if end is None else min(end, self.end)
        if start >= end:
            return
        for fragment in self._file.fragments(self.root, start, end):
            yield self._of_fragment(fragment)
        yield from (self._of_member(each) for each in self._members if each.end > start and each.start < end)

    @property
    def _members(self) -> tuple[ResolvedMember, ...]:
        return () if self._resolved is None else self._resolved.members

    def _of_fragment(self, pointer: StreamObjectPointer) -> Piece:
        key = fragment_key(self.path, pointer)
        start, end = max(pointer.base, self.start), min(pointer.end, self.root.end)
        return Piece(key, pointer.extent, start, end, pointer)

    def _of_member(self, each: ResolvedMember) -> Piece:
        key = set_object_key(each.node, each.pointer.name)
        start = max(each.start, self.start)
        return Piece(key, each.member.extent, start, each.end, each.member)

    def reader(self, piece: Piece) -> ObjectReader:
        """What reads a piece, after its footer was found to be that of what the manifest means.

        Raises:
            StoreError, ObjectCorruptError, BucketVersionError: see `ObjectReader.metadata`.
        """
        reader = self._cache.reader(piece.key, piece.extent)
        if isinstance(piece.pointer, StreamObjectPointer):
            reader.check_fragment(self.path, piece.pointer)
        else:
            reader.check_member(piece.pointer)
        return reader

    def read(self, start: int = 0, end: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows with offsets from `start` up to `end`, one row group at a time.

        Raises:
            StoreError, ObjectCorruptError, BucketVersionError: see `ObjectReader`.
        """
        until = self.end if end is None else end
        for piece in self.pieces(start, end):
            yield from self.reader(piece).rows(max(start, piece.start), min(until, piece.end))

    def offset_at_time(self, timestamp: int) -> int | None:
        """Offset of the first record not before `timestamp` (ns); None when all records are earlier.

        Raises:
            StoreError, ObjectCorruptError, BucketVersionError: see `ObjectReader`.
        """
        for piece in self._pieces_at_time(timestamp):
            reader = self.reader(piece)
            for index in reader.covering(piece.start, piece.end):
                if reader.row_groups[index].last_timestamp < timestamp:
                    continue
                rows = trimmed(reader.read(index, _TIME_COLUMNS), piece.start, piece.end)
                found = np.flatnonzero(rows.column("timestamp_ns").to_numpy() >= timestamp)
                if len(found):
                    return int(rows.column("offset")[int(found[0])].as_py())
        return None

    def _pieces_at_time(self, timestamp: int) -> Iterator[Piece]:
        for fragment in self._fragments_at_time(self.root.snapshots, timestamp):
            yield self._of_fragment(fragment)
        for fragment in self.root.fragments:
            if self._may_hold(fragment, timestamp):
                yield self._of_fragment(fragment)
        yield from (self._of_member(each) for each in self._members if each.member.last_timestamp >= timestamp)

    def _fragments_at_time(self, pointers: Iterable[SnapshotPointer], timestamp: int) -> Iterator[StreamObjectPointer]:
        for pointer in pointers:
            if self._may_hold(pointer, timestamp):
                snapshot = self._file.snapshot(pointer)
                yield from self._fragments_at_time(snapshot.snapshots, timestamp)
                yield from (each for each in snapshot.fragments if self._may_hold(each, timestamp))

    def _may_hold(self, pointer: StreamObjectPointer | SnapshotPointer, timestamp: int) -> bool:
        return pointer.last_timestamp >= timestamp and pointer.end > self.start and pointer.records > 0


def open_version(
    store: ObjectStore,
    path: PartitionPath,
    *,
    offset: int | None = None,
    cache: ReadingCache | None = None,
    nodes: Iterable[str] = (),
) -> TierVersion | None:
    """The newest version; None when there is nothing of the partition in the bucket.

    Args:
        store: The bucket.
        path: Path of the partition.
        offset: Offset that is to be read: when the root holds it, nothing else is looked at, and the version ends
            there.
        cache: Cache of the same store.
        nodes: Nodes whose shared objects hold the end of it, as far as somebody knows; one request less if that is so.

    Raises:
        StoreError, ManifestCorruptError, BucketVersionError: a manifest can not be read.
        OvertakenError: the root was another one at every look.
    """
    cache = cache or ReadingCache(store)
    file = cache.root_file(path)
    earlier = {node: cache.set_root(node) for node in nodes}
    loaded = file.load()
    if loaded is None:
        return None
    if earlier and loaded.root.claims and (offset is None or offset >= loaded.root.end):
        parts = _parts(cache, path, earlier, continuing_nodes(loaded.root))
        if parts is not None:
            return TierVersion(store, path, loaded.root, resolve(loaded.root, parts), cache)
    for _ in range(_LOOKS_MAX):
        root = loaded.root
        if not root.claims or (offset is not None and offset < root.end):
            return TierVersion(store, path, root, None, cache)
        found = {node: cache.set_part(node, path) for node in dict.fromkeys(claim.node for claim in root.claims)}
        newer = file.load_newer(loaded)
        if newer is None:  # else a member may have moved below the root between the two looks
            there = {node: part for node, part in found.items() if part is not None}
            return TierVersion(store, path, root, resolve(root, there), cache)
        loaded = newer
    raise OvertakenError(f"{path.root} was written {_LOOKS_MAX} times while it was read")


def _parts(
    cache: ReadingCache, path: PartitionPath, earlier: Mapping[str, LoadedRoot | None], nodes: Iterable[str]
) -> dict[str, SetPart] | None:
    """What set manifests said of a partition that were read before its root; None where that is not known of all.

    What was there before a root was written is bounded by it: a deposed leader's by the claim of the next one, and what
    moved into the root is in it. So the root need not be looked at again.
    """
    found = {}
    for node in nodes:
        if node not in earlier:
            return None
        loaded = earlier[node]
        if loaded is None:
            continue
        try:
            found[node] = cache.part_of(node, loaded, path)
        except OvertakenError:
            return None
    return found
