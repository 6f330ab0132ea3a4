"""What readers of a bucket keep of what they have read: footers, snapshots, and the set manifests of nodes.

All of it is bounded by number: what was used longest ago goes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from liftpy_bucket.errors import ObjectMissingError
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.objects.read import ObjectReader

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.stream_sets.file import LoadedSet
    from liftpy_bucket.manifest.stream_sets.format import SetManifest
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["Latest", "ReadingCache"]

_FOOTERS_MAX: Final = 256  # some ten KiB each
_PARTITIONS_MAX: Final = 64  # with a few snapshots each
_SETS_MAX: Final = 16

_Key = TypeVar("_Key", bound="Hashable")
_Value = TypeVar("_Value")


class Latest(Generic[_Key, _Value]):
    """A bounded number of values, those that were used last. Any number of threads may use it.

    Args:
        count_max: how many.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._values: OrderedDict[_Key, _Value] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: _Key) -> _Value | None:
        """The value of a key, if it is there still."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: _Key, value: _Value) -> None:
        """Keep a value."""
        with self._lock:
            self._put(key, value)

    def get_or_make(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """The value of a key; `make` is called where there is none, and must not wait for anything."""
        with self._lock:
            value = self._values.get(key)
            if value is None:
                value = make()
            self._put(key, value)
            return value

    def drop(self, key: _Key) -> None:
        """Keep the value of a key no more."""
        with self._lock:
            self._values.pop(key, None)

    def _put(self, key: _Key, value: _Value) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._count_max:
            self._values.popitem(last=False)


class ReadingCache:
    """Footers, snapshots and set manifests that were read. Any number of threads may use it.

    Args:
        store: the bucket.
        footers_max: how many footers are kept.
    """

    def __init__(self, store: ObjectStore, footers_max: int = _FOOTERS_MAX) -> None:
        self._store = store
        self._readers: Latest[str, ObjectReader] = Latest(footers_max)
        self._roots: Latest[PartitionPath, RootFile] = Latest(_PARTITIONS_MAX)
        self._sets: Latest[str, LoadedSet] = Latest(_SETS_MAX)

    def root_file(self, path: PartitionPath) -> RootFile:
        """The root of a partition, for reading alone; it keeps its snapshots."""
        return self._roots.get_or_make(path, lambda: RootFile(self._store, path, new_id=_commits_nothing))

    def reader(self, key: str, size: int, footer: int) -> ObjectReader:
        """What reads an object; it keeps the footer."""
        return self._readers.get_or_make(key, lambda: ObjectReader(self._store, key, size, footer))

    def set_manifest(self, node: str) -> SetManifest | None:
        """The set manifest of a node as it is now; None where there is none.

        Raises:
            StoreError, ManifestCorruptError, BucketVersionError: it can not be read.
        """
        file = SetManifestFile(self._store, node, new_id=_commits_nothing)
        known = self._sets.get(node)
        if known is None:
            loaded = file.load()
        else:
            try:
                loaded = file.load_newer(known) or known
            except ObjectMissingError:
                loaded = None
        if loaded is None:
            self._sets.drop(node)
            return None
        self._sets.put(node, loaded)
        return loaded.manifest


def _commits_nothing() -> str:
    raise AssertionError("readers do not commit")
