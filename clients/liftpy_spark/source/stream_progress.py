"""How a streaming query goes on: from what its checkpoint has and what the streams have now, to the end of a batch.

What a query reads from is always in its checkpoint before it is read from: a stream or partition that appears later is
first written down where it begins, in a batch that reads nothing of it, and read from the next batch on. So the ranges
of a batch follow from the start and end that Spark has recorded, and from nothing else. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from liftpy_spark.options.offsets import QueryCheckpoint
from liftpy_spark.reading.planning import Range
from liftpy_spark.source.rate_limits import Backlog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from liftpy_spark.heads import StreamHeads

__all__ = ["Comparison", "capped", "compare", "ends_of", "ranges_between", "silent_before"]


@dataclass(slots=True)
class Comparison:
    """What there is now beside what was read.

    Attributes:
        backlogs: what can be read of each partition that the query knows, by stream and partition; where records were
            lost, from behind these on.
        found: where partitions begin that the query does not know yet.
        uuids: UUIDs of the streams in `backlogs` and `found`.
        losses: what was to be read and is not there any more, each in words.
        behind: likewise, of partitions that end before what was read; after a change of leader that is so for a moment.
        gone: streams that are not there, or not among those to be read.
    """

    backlogs: dict[tuple[str, int], Backlog] = field(default_factory=dict)
    found: dict[tuple[str, int], int] = field(default_factory=dict)
    uuids: dict[str, str] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)

    def reached(self, ends: Mapping[tuple[str, int], int]) -> QueryCheckpoint:
        """The end of a batch that reads up to `ends`."""
        offsets: dict[str, dict[int, int]] = {}
        for (stream, partition), offset in (*ends.items(), *self.found.items()):
            offsets.setdefault(stream, {})[partition] = offset
        return QueryCheckpoint(offsets, {stream: self.uuids[stream] for stream in offsets})


def compare(start: QueryCheckpoint, heads: Iterable[StreamHeads]) -> Comparison:
    """Hold what a query has read against what there is.

    A partition whose head nobody knows at the moment stays where it is. One that ends before what was read goes back
    to that end.
    """
    now = {each.stream: each for each in heads}
    comparison = Comparison(uuids={stream: each.uuid for stream, each in now.items()})
    for stream, offsets in start.offsets.items():
        uuid = start.uuids[stream]
        if stream not in now:
            comparison.gone.append(stream)
        elif now[stream].uuid != uuid:
            comparison.losses.append(
                f"stream {stream} was deleted and created again (it was {uuid}, and is {now[stream].uuid} now)"
            )
            _note_beginnings(comparison, now[stream], {})
        else:
            _compare_stream(comparison, offsets, now[stream])
            _note_beginnings(comparison, now[stream], offsets)
    for stream, there in now.items():
        if stream not in start.offsets:
            _note_beginnings(comparison, there, {})
    return comparison


def _compare_stream(comparison: Comparison, offsets: Mapping[int, int], now: StreamHeads) -> None:
    for partition, offset in offsets.items():
        head = now.partitions.get(partition)
        place = f"stream {now.stream} partition {partition}"
        if head is None:
            backlog = Backlog(offset, offset)
        elif head.end < offset:
            backlog = Backlog(head.end, head.end)
            comparison.behind.append(f"{place} ends at offset {head.end}, but the query has read up to {offset}")
        else:
            backlog = Backlog(max(offset, head.start), head.end)
            if head.start > offset:
                comparison.losses.append(
                    f"{place}: offsets {offset} to {head.start - 1} are not there any more: retention or a purge was "
                    "quicker than the query"
                )
        comparison.backlogs[now.stream, partition] = backlog


def _note_beginnings(comparison: Comparison, there: StreamHeads, known: Mapping[int, int]) -> None:
    for partition, head in there.partitions.items():
        if partition not in known:
            comparison.found[there.stream, partition] = head.start


def ends_of(heads: Iterable[StreamHeads]) -> QueryCheckpoint:
    """Where a query is that has read all there is."""
    streams = [each for each in heads if each.partitions]
    return QueryCheckpoint(
        {each.stream: {number: head.end for number, head in each.partitions.items()} for each in streams},
        {each.stream: each.uuid for each in streams},
    )


def capped(heads: Iterable[StreamHeads], target: QueryCheckpoint, start: QueryCheckpoint) -> list[StreamHeads]:
    """What there is, without what came after `target`; never less than what was read up to `start`."""
    seen = []
    for each in heads:
        wanted = target.offsets[each.stream] if target.uuids.get(each.stream) == each.uuid else {}
        read = start.offsets[each.stream] if start.uuids.get(each.stream) == each.uuid else {}
        partitions = {
            number: head._replace(end=min(head.end, max(wanted[number], read.get(number, 0))))
            for number, head in each.partitions.items()
            if number in wanted
        }
        seen.append(each._replace(partitions=partitions))
    return seen


def silent_before(target: QueryCheckpoint, heads: Iterable[StreamHeads], start: QueryCheckpoint) -> list[str]:
    """Partitions, as `stream/partition`, that are to be read up to `target` and that nobody knows of at the moment."""
    return [
        f"{each.stream}/{number}"
        for each in heads
        if target.uuids.get(each.stream) == each.uuid
        for number, end in target.offsets[each.stream].items()
        if number not in each.partitions and _read_up_to(start, each, number) < end
    ]


def _read_up_to(start: QueryCheckpoint, there: StreamHeads, partition: int) -> int:
    """How far a partition was read; -1 where the query does not know it yet."""
    is_same = start.uuids.get(there.stream) == there.uuid
    return start.offsets[there.stream].get(partition, -1) if is_same else -1


def ranges_between(start: QueryCheckpoint, end: QueryCheckpoint) -> list[Range]:
    """What a batch reads.

    Nothing of what appears in `end` first, and nothing of a partition that ends where it starts or before: that is so
    of the first batch of a query that began at the latest offset, when it is run again after a crash.
    """
    return [
        Range(stream, end.uuids[stream], partition, start.offsets[stream].get(partition, offset), offset)
        for stream, offsets in sorted(end.offsets.items())
        if start.uuids.get(stream) == end.uuids[stream]
        for partition, offset in sorted(offsets.items())
        if start.offsets[stream].get(partition, offset) < offset
    ]
