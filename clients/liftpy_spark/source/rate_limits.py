"""How far one batch of a streaming query goes, where its options bound what a batch may have.

What a batch may have is divided among the partitions in proportion to what waits in each, as Kafka's source does it;
a partition in which something waits always gets at least one offset, so that none of them starves beside a large one.
Pure functions: the same arguments give the same batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Backlog", "divide_bytes", "divide_offsets"]


class Backlog(NamedTuple):
    """What waits in a partition: the offsets from `start` up to `end`.

    Attributes:
        start: The first offset that can still be read.
        end: The offset after the last one.
        record_bytes: The mean size of a record there, at least 1.
    """

    start: int
    end: int
    record_bytes: int = 1

    @property
    def offsets(self) -> int:
        """How many offsets wait."""
        return max(self.end - self.start, 0)


def divide_offsets(backlogs: Mapping[tuple[str, int], Backlog], offsets_max: int) -> dict[tuple[str, int], int]:
    """How far a batch of at most `offsets_max` offsets goes, by stream and partition.

    It has exactly that many where so many wait; more only where that is less than one for every partition in which
    something waits. Offsets that key compaction left without a record count like others.
    """
    waiting = {place: backlog.offsets for place, backlog in backlogs.items() if backlog.offsets}
    if sum(waiting.values()) <= offsets_max:
        shares = waiting
    else:
        shares = dict(zip(waiting, _proportional(list(waiting.values()), offsets_max), strict=True))
    return {place: backlog.start + shares.get(place, 0) for place, backlog in backlogs.items()}


def _proportional(waiting: Sequence[int], offsets_max: int) -> list[int]:
    """Shares of `offsets_max`: one where that is more than the proportion, the others by largest remainder."""
    if offsets_max <= len(waiting):
        return [1] * len(waiting)
    shares = [1] * len(waiting)
    ascending = sorted(range(len(waiting)), key=waiting.__getitem__)
    rest, more = offsets_max, sum(waiting)
    while rest * waiting[ascending[0]] < more:
        rest, more = rest - 1, more - waiting[ascending.pop(0)]
    for index in ascending:
        shares[index] = rest * waiting[index] // more
    by_remainder = sorted(ascending, key=lambda index: -(rest * waiting[index] % more))
    for index in by_remainder[: offsets_max - sum(shares)]:
        shares[index] += 1
    return shares


def divide_bytes(backlogs: Mapping[tuple[str, int], Backlog], bytes_max: int) -> dict[tuple[str, int], int]:
    """How far a batch of about `bytes_max` bytes goes, by stream and partition, as far as mean sizes can tell."""
    total = sum(backlog.offsets * backlog.record_bytes for backlog in backlogs.values())
    if total <= bytes_max:
        return {place: backlog.start + backlog.offsets for place, backlog in backlogs.items()}
    return {
        place: backlog.start + min(backlog.offsets, max(1, backlog.offsets * bytes_max // total))
        for place, backlog in backlogs.items()
    }
