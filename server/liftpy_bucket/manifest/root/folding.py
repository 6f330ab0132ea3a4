"""How a root stays small however long the history is.

A root names at most POINTERS_MAX things, or a few more. When it would name more, `fold` moves all but its newest
fragments into a snapshot, and `roll_up` joins that with the older ones that are not much larger, so that the sizes of
snapshots grow geometrically with age, up to SNAPSHOT_FRAGMENTS_MAX. Full snapshots are listed by ones of greater depth
once there are more than SNAPSHOTS_MAX. A fragment is so written into a bounded number of snapshots, the bytes of all
snapshots together grow linearly with the history, and up to 1 TiB of fragments of 64 MiB each is one snapshot away
from the root.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.root.snapshot import Snapshot, make_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.objects.pointers import SnapshotPointer

__all__ = ["DRAFT", "POINTERS_MAX", "SNAPSHOT_FRAGMENTS_MAX", "fold", "roll_up", "stamp"]

POINTERS_MAX: Final = 18
SNAPSHOT_FRAGMENTS_MAX: Final = 2048
FRAGMENTS_KEPT: Final = 2
SNAPSHOTS_MAX: Final = 14
SNAPSHOTS_LISTED: Final = 8
_FAN_OUT: Final = 64
_GROWTH: Final = 8
DRAFT: Final = "draft"
"""Nonce of a snapshot that no commit has stamped yet."""


def fold(root: Root) -> tuple[Root, tuple[Snapshot, ...]]:
    """Move fragments out of a root that names too many things.

    Returns:
        (the root, the draft of the snapshot that it names now, if any)
    """
    if len(root.snapshots) + len(root.fragments) <= POINTERS_MAX or len(root.fragments) <= FRAGMENTS_KEPT:
        return root, ()
    snapshot = make_snapshot(PartitionPath(root.uuid, root.partition), root.fragments[:-FRAGMENTS_KEPT], DRAFT)
    snapshots = (*root.snapshots, snapshot.pointer)
    return replace(root, snapshots=snapshots, fragments=root.fragments[-FRAGMENTS_KEPT:]), (snapshot,)


def _capacity(depth: int) -> int:
    """How many fragments there may be below a snapshot for another one to be joined with it."""
    return int(SNAPSHOT_FRAGMENTS_MAX * _FAN_OUT ** (depth - 1))


def _groups(pointers: Iterable[SnapshotPointer]) -> list[list[SnapshotPointer]]:
    """Which neighbours are to be joined."""
    groups: list[list[SnapshotPointer]] = []
    counts: list[int] = []
    for pointer in pointers:
        groups.append([pointer])
        counts.append(pointer.fragments)
        while (
            len(groups) > 1
            and groups[-2][0].depth == pointer.depth
            and counts[-2] < _GROWTH * counts[-1]
            and counts[-2] + counts[-1] <= _capacity(pointer.depth)
        ):
            newer, count = groups.pop(), counts.pop()
            groups[-1] += newer
            counts[-1] += count
    return groups


def roll_up(
    root: Root, drafts: Sequence[Snapshot], load: Callable[[SnapshotPointer], Snapshot]
) -> tuple[Root, tuple[Snapshot, ...]]:
    """Join small snapshots of a root, and list full ones in deeper ones.

    Args:
        root: The root.
        drafts: Drafts of the snapshots that it names and that are not written yet.
        load: Reads one that is.

    Returns:
        (the root, the drafts that it names now, lower ones first)
    """
    path = PartitionPath(root.uuid, root.partition)
    made = {draft.pointer.digest: draft for draft in drafts}

    def make(children: Sequence[SnapshotPointer]) -> SnapshotPointer:
        opened = [made[each.digest] if each.digest in made else load(each) for each in children]
        fragments = [fragment for snapshot in opened for fragment in snapshot.fragments]
        snapshot = make_snapshot(path, fragments or [child for each in opened for child in each.snapshots], DRAFT)
        made[snapshot.pointer.digest] = snapshot
        return snapshot.pointer

    pointers = [make(group) if len(group) > 1 else group[0] for group in _groups(root.snapshots)]
    for depth in sorted({pointer.depth for pointer in pointers}):
        level = [number for number, pointer in enumerate(pointers) if pointer.depth == depth]
        if len(level) > SNAPSHOTS_MAX:
            first, behind = level[0], level[0] + SNAPSHOTS_LISTED
            listing = make_snapshot(path, pointers[first:behind], DRAFT)
            made[listing.pointer.digest] = listing
            pointers[first:behind] = [listing.pointer]
    return replace(root, snapshots=tuple(pointers)), _named(pointers, made)


def _named(pointers: Iterable[SnapshotPointer], made: Mapping[str, Snapshot]) -> tuple[Snapshot, ...]:
    """Those of the drafts that are named, lower ones first."""
    found: list[Snapshot] = []
    waiting = list(pointers)
    while waiting:
        pointer = waiting.pop()
        if pointer.digest in made:
            found.append(made[pointer.digest])
            waiting += made[pointer.digest].snapshots
    return tuple(sorted(found, key=lambda snapshot: snapshot.pointer.depth))


def stamp(root: Root, drafts: Iterable[Snapshot], nonce: str) -> tuple[Root, tuple[Snapshot, ...]]:
    """Give drafts the names under which one commit writes them.

    Args:
        root: Root that names them.
        drafts: They, lower ones first.
        nonce: Nonce of the commit, which no other attempt has.

    Returns:
        (the root that names them so, the snapshots to be written)
    """
    path = PartitionPath(root.uuid, root.partition)
    stamped: dict[str, Snapshot] = {}

    def renamed(pointer: SnapshotPointer) -> SnapshotPointer:
        return stamped[pointer.digest].pointer if pointer.digest in stamped else pointer

    for draft in drafts:
        listed = tuple(renamed(each) for each in draft.snapshots)
        stamped[draft.pointer.digest] = make_snapshot(path, draft.fragments or listed, nonce)
    return replace(root, snapshots=tuple(renamed(each) for each in root.snapshots)), tuple(stamped.values())
