"""The root that a copied partition gets, and what may be done where there is one already. Pure.

A copy has no shared objects: what the source has there behind its root becomes one object of the partition's own, the
tail. Nor does it name objects of other partitions: what a fork has of another stream becomes its own. All else is as in
the source, down to the version of the root, so that the same source always gives the same root.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import LineageError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.lineage import check_lineage, cut_epochs, join_epochs
from liftpy_bucket.manifest.root.folding import (
    DRAFT,
    FRAGMENTS_KEPT,
    POINTERS_MAX,
    SNAPSHOT_FRAGMENTS_MAX,
    roll_up,
    stamp,
)
from liftpy_bucket.manifest.root.snapshot import make_snapshot
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.manifest.root.snapshot import Snapshot
    from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer

__all__ = ["CopyRefusedError", "CopyState", "check_history", "of_its_own", "standing", "with_tail"]

_NONCE: Final = "copy"  # of snapshots that a copy makes: the same lists always give the same names


class CopyRefusedError(LiftError):
    """What is at the destination does not let a history be copied there."""


class CopyState(StrEnum):
    """What the destination has of a partition: the same, less of the same, or more of it."""

    EQUAL = "equal"
    BEHIND = "behind"
    AHEAD = "ahead"


def with_tail(root: Root, epochs: Sequence[tuple[int, int]], tail: StreamObjectPointer | None) -> Root:
    """A root, and behind it what the source has in shared objects.

    Args:
        root: Root of the source.
        epochs: (leader epoch, first offset), oldest first, up to the end of the tail.
        tail: What holds it; None where there is nothing of it.
    """
    if tail is None:
        return root
    assert tail.base == root.end, "it follows on the root"
    passed = sum(later.start <= tail.end for later in root.claims[1:])
    return replace(
        root,
        version=root.version + 1,
        end=tail.end,
        fragments=(*root.fragments, tail),
        setsum=root.setsum + tail.setsum,
        epochs=join_epochs(root.epochs, cut_epochs(epochs, tail.base, tail.end)),
        claims=root.claims[passed:],
    )


def of_its_own(root: Root, fragments: Sequence[StreamObjectPointer]) -> tuple[Root, tuple[Snapshot, ...]]:
    """A root that names other fragments of the same records, and the snapshots that it needs for that.

    Args:
        root: Root of the source.
        fragments: All of them, oldest first, none of which lies elsewhere.

    Returns:
        (the root, the snapshots to be written)
    """
    assert not any(each.home for each in fragments), "all are its own"
    path = PartitionPath(root.uuid, root.partition)
    kept = len(fragments) - FRAGMENTS_KEPT if len(fragments) > POINTERS_MAX else 0
    drafts = [
        make_snapshot(path, fragments[at : min(at + SNAPSHOT_FRAGMENTS_MAX, kept)], DRAFT)
        for at in range(0, kept, SNAPSHOT_FRAGMENTS_MAX)
    ]
    bare = replace(root, snapshots=tuple(each.pointer for each in drafts), fragments=tuple(fragments[kept:]))
    return stamp(*roll_up(bare, drafts, _no_other), _NONCE)


def _no_other(pointer: SnapshotPointer) -> Snapshot:
    raise AssertionError(f"all snapshots are drafts, and {pointer.digest} is none")


def check_history(label: str, there: Root, root: Root, epochs: Sequence[tuple[int, int]], end: int) -> None:
    """Check that a root at the destination is of the same history, as far as both reach.

    Args:
        label: Label of the partition, for people.
        there: What is at the destination.
        root: Root of the source.
        epochs: Epochs of the source, up to `end`.
        end: Where the source ends.

    Raises:
        CopyRefusedError: it is not.
    """
    try:
        check_lineage(label, there.epochs, epochs, max(there.start, root.start), min(there.end, end))
    except LineageError:
        raise _another(label, "leader epochs of its records differ") from None
    if there.end == root.end and there.setsum + there.collected != root.setsum + root.collected:
        raise _another(label, f"its records up to offset {root.end} are others")


def _another(label: str, why: str) -> CopyRefusedError:
    return CopyRefusedError(
        f"the destination has another history of {label}: {why}; nothing of it was changed. Copy to a prefix of its own"
    )


def standing(there: Root, wanted: Root) -> CopyState:
    """What to do with a root at the destination that is of the same history as what is wanted there."""
    if there == wanted:
        return CopyState.EQUAL
    if there.end > wanted.end or there.version > wanted.version:
        return CopyState.AHEAD
    return CopyState.BEHIND
