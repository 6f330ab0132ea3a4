"""What readers of a bucket keep of what they have read: footers, snapshots, set manifests and pages of them.

All of it is bounded by bytes, about: what was used longest ago goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.lru import LruCache
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile, page_cache
from liftpy_bucket.objects.read import ObjectReader

if TYPE_CHECKING:
    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.stream_sets.file import LoadedRoot
    from liftpy_bucket.manifest.stream_sets.format import SetPart
    from liftpy_bucket.objects.pointers import Extent
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["ReadingCache"]

_FOOTERS_BYTES: Final = 24 * 1024 * 1024
_FOOTER_FACTOR: Final = 12  # a footer in memory is so many times what it is in the store
_PARTITIONS_MAX: Final = 64  # with a few snapshots each
_SETS_BYTES: Final = 16 * 1024 * 1024
_ROW_BYTES: Final = 512  # of a page in the root of a set manifest
_PAGES_BYTES: Final = 8 * 1024 * 1024
_LOOKS_MAX: Final = 5


class ReadingCache:
    """What was read. Any number of threads may use it.

    Args:
        store: The bucket.
        footers_bytes: Size of the footers that are kept, about, bytes.
    """

    def __init__(self, store: ObjectStore, footers_bytes: int = _FOOTERS_BYTES) -> None:
        self._store = store
        self._readers: LruCache[tuple[str, int | None], ObjectReader] = LruCache(footers_bytes, _weigh_reader)
        self._roots: LruCache[PartitionPath, RootFile] = LruCache(_PARTITIONS_MAX)
        self._sets: LruCache[str, LoadedRoot] = LruCache(_SETS_BYTES, _weigh_set)
        self._pages = page_cache(_PAGES_BYTES)

    def root_file(self, path: PartitionPath) -> RootFile:
        """The root of a partition, for reading alone; it keeps its snapshots."""
        return self._roots.get_or_make(path, lambda: RootFile(self._store, path, new_id=_commits_nothing))

    def reader(self, key: str, extent: Extent) -> ObjectReader:
        """What reads an object, or one member of it; it keeps the footer."""
        return self._readers.get_or_make((key, extent.start), lambda: ObjectReader(self._store, key, extent))

    def set_root(self, node: str) -> LoadedRoot | None:
        """The root of the set manifest of a node as it is now; None where the node has none.

        Raises:
            StoreError, ManifestCorruptError, BucketVersionError: it can not be read.
        """
        return self._newest(self._set_file(node))

    def part_of(self, node: str, loaded: LoadedRoot, path: PartitionPath) -> SetPart:
        """What a set manifest said of a partition when its root was read.

        Raises:
            StoreError, ManifestCorruptError, BucketVersionError: it can not be read.
            OvertakenError: it can not be told any more, as the manifest is another one by now.
        """
        return self._set_file(node).part(loaded.root, path)

    def set_part(self, node: str, path: PartitionPath) -> SetPart | None:
        """What the set manifest of a node says of a partition now; None where the node has none.

        Raises:
            StoreError, ManifestCorruptError, BucketVersionError: it can not be read.
            OvertakenError: it was another one at every look.
        """
        file = self._set_file(node)
        for _ in range(_LOOKS_MAX):
            loaded = self._newest(file)
            if loaded is None:
                return None
            try:
                return file.part(loaded.root, path)
            except OvertakenError:
                continue
        raise OvertakenError(f"the set manifest of node {node} was written {_LOOKS_MAX} times while it was read")

    def _set_file(self, node: str) -> SetManifestFile:
        return SetManifestFile(self._store, node, new_id=_commits_nothing, pages=self._pages)

    def _newest(self, file: SetManifestFile) -> LoadedRoot | None:
        loaded = file.load_root(self._sets.get(file.node))
        if loaded is None:
            self._sets.drop(file.node)
            return None
        return self._sets.put(file.node, loaded)


def _weigh_reader(reader: ObjectReader) -> int:
    size, footer, _, _ = reader.extent
    return _FOOTER_FACTOR * (size - footer) + (size if reader.is_read_whole else 0)


def _weigh_set(loaded: LoadedRoot) -> int:
    return _ROW_BYTES * (1 + len(loaded.root.pages) + len(loaded.root.packs))


def _commits_nothing() -> str:
    raise AssertionError("readers do not commit")
