"""Which members of stream sets belong to the history of a partition.

From the end of the root on, offsets belong to the claims: those from the start of a claim up to the start of the next
one are what the claim's node uploaded in the claim's epoch, as far as its set manifest names it. What a deposed leader
adds later lies at or above the start of the claim that ended its own, and does not count. Members that count follow
on one another; the first gap ends the history.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from liftpy_bucket.manifest.json import INT64_MAX
from liftpy_bucket.manifest.lineage import cut_epochs, join_epochs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from liftpy_bucket.manifest.root.format import Claim, Root
    from liftpy_bucket.manifest.stream_sets.format import SetPart
    from liftpy_bucket.objects.pointers import SetMember, SetObjectPointer

__all__ = ["IgnoredMember", "Resolved", "ResolvedMember", "continuing_nodes", "counting", "counts", "resolve"]


class ResolvedMember(NamedTuple):
    """A member that counts.

    Attributes:
        node: Id of the node whose set manifest names it.
        pointer: Pointer to the object that holds its records.
        member: Member that counts.
        start: The first offset for which it counts.
        end: The offset after the last one.
    """

    node: str
    pointer: SetObjectPointer
    member: SetMember
    start: int
    end: int


class IgnoredMember(NamedTuple):
    """A member of the partition that does not count: superseded, of a deposed leader, or behind a gap.

    Attributes:
        node: Id of the node whose set manifest names it.
        pointer: Pointer to the object that holds its records.
        member: Member that does not count.
    """

    node: str
    pointer: SetObjectPointer
    member: SetMember


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What follows on a root.

    Attributes:
        end: The offset after the last one that the bucket holds.
        members: Members that hold [root.end, end), in order and without holes.
        ignored: All others of the partition.
        epochs: (leader epoch, first offset) of the root and the members, oldest first, up to `end`.
    """

    end: int
    members: tuple[ResolvedMember, ...]
    ignored: tuple[IgnoredMember, ...]
    epochs: tuple[tuple[int, int], ...]


def _spans(root: Root) -> Iterator[tuple[Claim, int, int]]:
    """(claim, first offset, offset after the last one) of what the claims may hold beyond the root."""
    for claim, following in pairwise(root.claims):
        yield claim, max(claim.start, root.end), following.start
    yield root.claims[-1], max(root.claims[-1].start, root.end), INT64_MAX


def continuing_nodes(root: Root) -> tuple[str, ...]:
    """The nodes whose shared objects may hold what follows on a root."""
    return tuple(dict.fromkeys(claim.node for claim, start, end in _spans(root) if start < end))


def counts(member: SetMember, node: str, root: Root) -> bool:
    """Whether a member may hold a part of the history, now or once what lies before it is there.

    Args:
        member: Member of any partition.
        node: Id of the node whose set manifest names it.
        root: Root of the member's partition.
    """
    return counting(member, node, root) is not None


def counting(member: SetMember, node: str, root: Root) -> tuple[int, int] | None:
    """The part of a member that may count, see `counts`; None where nothing of it does. It never grows again.

    Returns:
        (first offset, offset after the last one)
    """
    assert (member.uuid, member.partition) == (root.uuid, root.partition), "a root says nothing of other partitions"
    found = [
        (max(start, member.base), min(end, member.end))
        for claim, start, end in _spans(root)
        if claim.epoch == member.tier_epoch and claim.node == node and max(start, member.base) < min(end, member.end)
    ]
    return (found[0][0], found[-1][1]) if found else None


def resolve(root: Root, parts: Mapping[str, SetPart]) -> Resolved:
    """Go on where a root ends.

    Args:
        root: Root of the partition.
        parts: What set manifests say of the partition, by node: at least those of the nodes in `root.claims`, as far as
            there are any; read after the root, or read again together with it when the root has moved meanwhile.
    """
    found = [
        IgnoredMember(node, each, member)
        for node, part in sorted(parts.items())
        for each in part.objects
        for member in each.members
        if (member.uuid, member.partition) == (root.uuid, root.partition)
    ]
    found.sort(key=lambda each: (each.member.base, each.member.end))
    reached = root.end
    members: list[ResolvedMember] = []
    epochs = root.epochs
    for claim, start, end in _spans(root):
        if reached != start:
            break
        for node, each, member in found:
            if member.tier_epoch != claim.epoch or node != claim.node or member.end <= reached:
                continue
            if member.base > reached or reached >= end:
                break
            member_end = min(member.end, end)
            members.append(ResolvedMember(node, each, member, reached, member_end))
            epochs = join_epochs(epochs, cut_epochs(member.epochs, reached, member_end))
            reached = member_end
    taken = {id(each.member) for each in members}
    ignored = tuple(each for each in found if id(each.member) not in taken)
    return Resolved(end=reached, members=tuple(members), ignored=ignored, epochs=epochs)
