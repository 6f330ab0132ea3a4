"""Changing fragments below snapshots: what is on the way down is drafted anew, all else is named as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_bucket.manifest.root.folding import DRAFT, SNAPSHOT_FRAGMENTS_MAX
from liftpy_bucket.manifest.root.snapshot import Snapshot, make_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer

__all__ = ["Rewriter", "fragments_below"]


def fragments_below(
    pointers: Iterable[SnapshotPointer], snapshots: Mapping[str, Snapshot], start: int, end: int
) -> list[StreamObjectPointer]:
    """The fragments of [start, end) that are named through snapshots, oldest first.

    Args:
        pointers: Pointers to snapshots.
        snapshots: Snapshots by digest, all that are on the way to [start, end).
        start: The first wanted offset.
        end: The offset after the last one.
    """
    found: list[StreamObjectPointer] = []
    for pointer in pointers:
        if pointer.end > start and pointer.base < end:
            snapshot = _given(snapshots, pointer)
            found += [each for each in snapshot.fragments if each.end > start and each.base < end]
            found += fragments_below(snapshot.snapshots, snapshots, start, end)
    return found


def _given(snapshots: Mapping[str, Snapshot], pointer: SnapshotPointer) -> Snapshot:
    assert pointer.digest in snapshots, f"snapshot {pointer.digest} is needed to change what is below it"
    return snapshots[pointer.digest]


class Rewriter:
    """Rewrites what is below the snapshots that reach into [start, end).

    Args:
        path: Path of the partition whose root is changed.
        snapshots: Snapshots by digest, all that are on the way to [start, end).
        start: The first offset of what may change.
        end: The offset after the last one.
        change: Given the fragments of one snapshot, those that take their place; called from old to new.

    Attributes:
        drafts: Drafts of snapshots that came of it, lower ones first.
        gone: Pointers to those whose place they took, or that are not needed any more.
    """

    def __init__(
        self,
        path: PartitionPath,
        snapshots: Mapping[str, Snapshot],
        start: int,
        end: int,
        change: Callable[[Sequence[StreamObjectPointer]], Sequence[StreamObjectPointer]],
    ) -> None:
        self._path = path
        self._snapshots = snapshots
        self._start = start
        self._end = end
        self._change = change
        self.drafts: list[Snapshot] = []
        self.gone: list[SnapshotPointer] = []

    def rewrite(self, pointers: Iterable[SnapshotPointer]) -> tuple[SnapshotPointer, ...]:
        """Return the pointers that replace some pointers."""
        return tuple(after for before in pointers for after in self._rewritten(before))

    def _rewritten(self, pointer: SnapshotPointer) -> Sequence[SnapshotPointer]:
        if pointer.end <= self._start or pointer.base >= self._end:
            return (pointer,)
        snapshot = _given(self._snapshots, pointer)
        if snapshot.snapshots:
            deeper = self.rewrite(snapshot.snapshots)
            if deeper == snapshot.snapshots:
                return (pointer,)
            drafts = [make_snapshot(self._path, deeper, DRAFT)] if deeper else []
        else:
            fragments = tuple(self._change(snapshot.fragments))
            if fragments == snapshot.fragments:
                return (pointer,)
            drafts = [
                make_snapshot(self._path, fragments[at : at + SNAPSHOT_FRAGMENTS_MAX], DRAFT)
                for at in range(0, len(fragments), SNAPSHOT_FRAGMENTS_MAX)
            ]
        self.gone.append(pointer)
        self.drafts += drafts
        return [draft.pointer for draft in drafts]
