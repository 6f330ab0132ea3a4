"""What a bucket has of a partition, for the canary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.reading.cache import ReadingCache
from liftpy_bucket.reading.version import open_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["BucketLook"]


class BucketLook:
    """Reads values by offset.

    Args:
        store: The bucket.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._cache = ReadingCache(store)

    def __call__(
        self, uuid: str, partition: int, offsets: Sequence[int]
    ) -> tuple[int, int, Mapping[int, bytes | None]] | None:
        """Start and end of what the bucket has of a partition, and the values at these offsets, which are in order.

        Raises:
            TierError: it cannot be read.
        """
        version = open_version(self._store, PartitionPath(uuid, partition), cache=self._cache)
        if version is None:
            return None
        values: dict[int, bytes | None] = {}
        for offset in offsets:
            if version.start <= offset < version.end:
                for rows in version.read(offset, offset + 1):
                    values |= dict(zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True))
        return version.start, version.end, values
