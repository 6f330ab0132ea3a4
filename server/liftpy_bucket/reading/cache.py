"""What readers of a bucket keep of what they have read: footers, snapshots, and the set manifests of nodes.

All of it is bounded by number: what was used longest ago goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import ObjectMissingError
from liftpy_bucket.lru import LruCache
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.objects.read import ObjectReader

if TYPE_CHECKING:
    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.stream_sets.file import LoadedSet
    from liftpy_bucket.manifest.stream_sets.format import SetManifest
    from liftpy_bucket.objects.pointers import Extent
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["ReadingCache"]

_FOOTERS_MAX: Final = 256  # some ten KiB each
_PARTITIONS_MAX: Final = 64  # with a few snapshots each
_SETS_MAX: Final = 16


class ReadingCache:
    """Footers, snapshots and set manifests that were read. Any number of threads may use it.

    Args:
        store: the bucket.
        footers_max: how many footers are kept.
    """

    def __init__(self, store: ObjectStore, footers_max: int = _FOOTERS_MAX) -> None:
        self._store = store
        self._readers: LruCache[tuple[str, int | None], ObjectReader] = LruCache(footers_max)
        self._roots: LruCache[PartitionPath, RootFile] = LruCache(_PARTITIONS_MAX)
        self._sets: LruCache[str, LoadedSet] = LruCache(_SETS_MAX)

    def root_file(self, path: PartitionPath) -> RootFile:
        """The root of a partition, for reading alone; it keeps its snapshots."""
        return self._roots.get_or_make(path, lambda: RootFile(self._store, path, new_id=_commits_nothing))

    def reader(self, key: str, extent: Extent) -> ObjectReader:
        """What reads an object, or one member of it; it keeps the footer."""
        return self._readers.get_or_make((key, extent.start), lambda: ObjectReader(self._store, key, extent))

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
