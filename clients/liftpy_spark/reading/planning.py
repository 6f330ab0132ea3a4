"""Which task reads what: a function of the ranges and of two limits, and of nothing else.

It knows nothing of objects in the bucket. Those are merged and compacted at any time, also between two attempts of the
same batch, and no record may move from one task to another by that.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_spark.connections import BucketAddress

__all__ = ["BatchTask", "Range", "plan"]

_OFFSETS_PER_TASK: Final = 1_000_000  # half a second of work; a task costs a few hundredths


class Range(NamedTuple):
    """Offsets of one partition.

    Attributes:
        stream: Name of the stream.
        uuid: UUID of the stream, as 32 hexadecimal digits.
        partition: Number of the partition.
        start: The first offset.
        end: The offset after the last one.
    """

    stream: str
    uuid: str
    partition: int
    start: int
    end: int


class BatchTask(NamedTuple):
    """A task of a batch.

    Attributes:
        ranges: What it reads.
        bucket: Where the bucket is, as far as that is known; a task that knows need not ask the nodes.
    """

    ranges: tuple[Range, ...] = ()
    bucket: BucketAddress | None = None


def plan(ranges: Sequence[Range], *, tasks_max: int, partitions_min: int = 1) -> list[tuple[Range, ...]]:
    """Deal ranges out to tasks of about the same size.

    A task for each range, and several for one that is long. Where that makes more than `tasks_max`, tasks get several
    ranges; where it makes fewer than `partitions_min`, ranges are cut, down to single offsets.

    Args:
        ranges: What is to be read; no two of one partition. Empty ones are left out.
        tasks_max: How many tasks there may be.
        partitions_min: How many there are to be, where there are as many offsets.

    Returns:
        The ranges of every task, in the order of stream, partition and offset. None is empty.
    """
    assert 1 <= partitions_min <= tasks_max, "the least is not more than the most"
    wanted = sorted(each for each in ranges if each.start < each.end)
    if not wanted:
        return []
    total = sum(each.end - each.start for each in wanted)
    tasks = max(partitions_min, min(tasks_max, max(len(wanted), -(-total // _OFFSETS_PER_TASK))))
    shares = _shares([each.end - each.start for each in wanted], tasks)
    pieces = [piece for each, parts in zip(wanted, shares, strict=True) for piece in _cut(each, parts)]
    if len(pieces) <= tasks_max:
        return [(piece,) for piece in pieces]
    return _grouped(pieces, tasks_max)


def _shares(sizes: Sequence[int], tasks: int) -> list[int]:
    """Into how many parts to cut each range: one at least, and the next part goes where the parts are largest."""
    shares = [1] * len(sizes)
    if len(sizes) >= tasks:
        return shares
    largest = [(-float(size), at) for at, size in enumerate(sizes)]
    heapq.heapify(largest)
    for _ in range(tasks - len(sizes)):
        _, at = largest[0]
        if shares[at] == sizes[at]:
            break  # every part is a single offset
        shares[at] += 1
        heapq.heapreplace(largest, (-sizes[at] / shares[at], at))
    return shares


def _cut(whole: Range, parts: int) -> list[Range]:
    size = whole.end - whole.start
    edges = [whole.start + size * at // parts for at in range(parts + 1)]
    return [whole._replace(start=start, end=end) for start, end in itertools.pairwise(edges)]


def _grouped(pieces: Sequence[Range], tasks: int) -> list[tuple[Range, ...]]:
    """The largest first, each to the task that has least so far."""
    groups: list[list[Range]] = [[] for _ in range(tasks)]
    least = [(0, at) for at in range(tasks)]
    for piece in sorted(pieces, key=lambda each: (each.start - each.end, each)):
        size, at = least[0]
        groups[at].append(piece)
        heapq.heapreplace(least, (size + piece.end - piece.start, at))
    return sorted(tuple(sorted(group)) for group in groups)
