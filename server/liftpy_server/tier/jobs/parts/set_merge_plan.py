"""Which shared objects become others, and what each of the new ones holds. Pure.

Small objects merge whosever records they hold. Larger ones merge where four hold the same slot, with about as many
records for a slot; neighbours, which may overlap a little at their ends, do not. What comes is divided by slot again,
so that no partition is in two of the new objects. So the members of a partition grow by a few for each fourfold of its
records, however many partitions there are, and a record is written anew about once for each fourfold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.layout import SLOTS
from liftpy_bucket.objects.pointers import member_order
from liftpy_server.tier.jobs.parts.merge_plan import FAN, run_to_merge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from liftpy_bucket.objects.pointers import SetMember, SetObject, SetObjectPointer

__all__ = ["OBJECT_BYTES_MAX", "Part", "chains_of", "divided", "has_moved", "objects_to_merge"]

OBJECT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of an object that several partitions share, also where those of one partition may be larger."""

_MOVED_PART: Final = 4
_SMALL: Final = 16  # so many small objects are one of full size, at least
_RUN_MAX: Final = 16


class Part(NamedTuple):
    """The rows [start, end) of a member, and where they are."""

    pointer: SetObjectPointer
    member: SetMember
    start: int
    end: int


def objects_to_merge(objects: Sequence[SetObject], object_bytes: int) -> list[SetObject]:
    """Which objects are to become others next; none where there are none.

    Args:
        objects: Objects of a manifest, oldest first.
        object_bytes: Size up to which there are several partitions in an object.
    """
    small = [each for each in objects if each.size * _SMALL < object_bytes]
    run = [small[place] for place in run_to_merge([each.size for each in small], object_bytes)]
    if run:
        return run
    large = [each for each in objects if each.size * _SMALL >= object_bytes and not _is_whole(each, object_bytes)]
    levels = [_level_of(each) for each in large]
    for level in sorted(set(levels)):
        there = [each for each, its in zip(large, levels, strict=True) if its == level]
        below = [each for each, its in zip(large, levels, strict=True) if its < level]
        for middle in sorted({(each.first + each.last) // 2 for each in there}):
            # All of a run have one slot in common, of which one object is left: so merging ends.
            run = [each for each in there if each.first <= middle <= each.last]
            if len(run) >= FAN:
                run += [each for each in below if each.first <= middle <= each.last]
                return _some(run, object_bytes)
    return []


def _is_whole(each: SetObject, object_bytes: int) -> bool:
    """Whether it can not be divided, and would grow beyond bounds."""
    return each.first == each.last and each.size * 2 > object_bytes


def _level_of(each: SetObject) -> int:
    """How often records were merged, about: by how many there are for a slot, as sizes shrink with it."""
    density = each.records * SLOTS // (each.last - each.first + 1)
    return density.bit_length() // (FAN.bit_length() - 1)


def _some(run: list[SetObject], object_bytes: int) -> list[SetObject]:
    """No more than one job can do: what is left comes next."""
    size = 0
    for number, each in enumerate(run):
        size += each.size
        if number == _RUN_MAX or (number >= FAN and size > FAN * object_bytes):
            return run[:number]
    return run


def has_moved(moved_bytes: int, size: int) -> bool:
    """Whether so much of an object has moved out of it that the rest is worth being written anew."""
    return moved_bytes * _MOVED_PART > size


def chains_of(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """What becomes one member each, in the order of members: those of one leadership that follow on one another.

    Args:
        parts: All of each member.
    """
    chain: list[Part] = []
    for part in sorted(parts, key=lambda part: (member_order(part.member), part.member.end)):
        if chain and _follows(chain[-1].member, part.member):
            chain.append(part)
            continue
        if chain:
            yield chain
        chain = [part]
    if chain:
        yield chain


def _follows(before: SetMember, after: SetMember) -> bool:
    return (before.uuid, before.partition, before.tier_epoch, before.end) == (
        *(after.uuid, after.partition, after.tier_epoch, after.base),
    )


def divided(chains: Iterable[list[Part]], object_bytes: int) -> list[list[list[Part]]]:
    """Which chains make an object each: of about the same size, and all of a slot in one of them.

    Args:
        chains: Chains in their order.
        object_bytes: Size of an object; more only where one slot has more.
    """
    slots: list[tuple[int, list[list[Part]], int]] = []
    for chain in chains:
        slot = member_order(chain[0].member)[0]
        size = sum(part.member.extent.size for part in chain)
        if slots and slots[-1][0] == slot:
            _, there, before = slots[-1]
            slots[-1] = (slot, [*there, chain], before + size)
        else:
            slots.append((slot, [chain], size))
    whole = sum(size for _, _, size in slots)
    count = -(-whole // object_bytes)
    found: list[list[list[Part]]] = []
    done = 0
    for _, there, size in slots:
        if not found or done * count >= whole * len(found):
            found.append([])
        found[-1] += there
        done += size
    return found
