"""Which objects of a partition's directory are live, and which are nobody's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.manifest.root.snapshot import Snapshot
    from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer
    from liftpy_bucket.store.object_store import Entry

__all__ = ["Reach", "is_older", "is_ours", "keys_of", "reach"]

_OURS: Final = re.compile(r"fragments/[0-9]{20}-[0-9]{1,10}-[A-Za-z0-9_-]{1,128}\.parquet|snapshots/[0-9a-f]{64}\.json")


class Reach(NamedTuple):
    """What a root names, directly and through snapshots.

    Attributes:
        snapshots: Snapshots, each once.
        fragments: Objects as the root sees them, that is with their homes.
    """

    snapshots: tuple[SnapshotPointer, ...]
    fragments: tuple[StreamObjectPointer, ...]

    @property
    def homes(self) -> set[str]:
        """Where it lies, as pointers say it."""
        return {each.home for each in self.snapshots} | {each.home for each in self.fragments}


def reach(root: Root, load: Callable[[SnapshotPointer], Snapshot]) -> Reach:
    """Collect all objects that a root references, directly and through snapshots.

    Args:
        root: The root.
        load: Gives the snapshot that a pointer names.
    """
    snapshots: list[SnapshotPointer] = []
    fragments: list[StreamObjectPointer] = []
    waiting = list(reversed(root.snapshots))
    while waiting:
        pointer = waiting.pop()
        snapshot = load(pointer)
        snapshots.append(pointer)
        fragments += snapshot.fragments
        waiting += reversed(snapshot.snapshots)
    return Reach(tuple(snapshots), (*fragments, *root.fragments))


def keys_of(reached: Reach, seen_from: PartitionPath, home: PartitionPath) -> Iterator[str]:
    """Keys of what is reached and lies in the directory of one partition.

    Args:
        reached: What a root reaches.
        seen_from: The partition of that root.
        home: The partition whose directory it is about.
    """
    for snapshot in reached.snapshots:
        if seen_from.at(snapshot.home) == home:
            yield home.snapshot(snapshot.digest)
    for fragment in reached.fragments:
        if seen_from.at(fragment.home) == home:
            yield home.fragment(fragment.name)


def is_ours(path: PartitionPath, key: str) -> bool:
    """Whether a key of a partition's directory is one that a stream object or a snapshot may have."""
    return _OURS.fullmatch(key.removeprefix(path.directory)) is not None


def is_older(entry: Entry, store_now_ns: int, grace_ns: int) -> bool:
    """Whether an object was written at least the grace period ago, all by the clock of the store."""
    return entry.modified_ns + grace_ns <= store_now_ns
