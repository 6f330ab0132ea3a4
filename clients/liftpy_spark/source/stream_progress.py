"""How a streaming query goes on: from what its checkpoint has and what the streams have now, to the end of a batch.

What a query reads from is always in its checkpoint before it is read from: a stream or partition that appears later is
first written down where it begins, in a batch that reads nothing of it, and read from the next batch on. So the ranges
of a batch follow from the start and end that Spark has recorded, and from nothing else. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from liftpy_spark.options.offsets import QueryCheckpoint
from liftpy_spark.reading.planning import Range
from liftpy_spark.source.rate_limits import Backlog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from liftpy_spark.heads import StreamHeads

__all__ = [
    "Comparison",
    "capped",
    "compare",
    "ends_of",
    "epochs_of",
    "ranges_between",
    "silent_before",
    "to_prove",
]

_NOWHERE: Final[Mapping[tuple[str, int], int]] = MappingProxyType({})


@dataclass(slots=True)
class Comparison:
    """What there is now beside what was read.

    Attributes:
        backlogs: What can be read of each partition that the query knows, by stream and partition; where records were
            lost, from behind these on.
        found: Where partitions begin that the query does not know yet.
        uuids: UUIDs of the streams in `backlogs` and `found`.
        epochs: No record before the end of a backlog has a later one; of partitions where that is known.
        losses: What was to be read and is not there any more, each in words.
        behind: Partitions that end before what was read; after a change of leader that is so for a moment.
        gone: Streams that are not there, or not among those to be read.
    """

    backlogs: dict[tuple[str, int], Backlog] = field(default_factory=dict)
    found: dict[tuple[str, int], int] = field(default_factory=dict)
    uuids: dict[str, str] = field(default_factory=dict)
    epochs: dict[tuple[str, int], int] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)

    def reached(self, ends: Mapping[tuple[str, int], int]) -> QueryCheckpoint:
        """The end of a batch that reads up to `ends`."""
        offsets: dict[str, dict[int, int]] = {}
        epochs: dict[str, dict[int, int]] = {}
        for (stream, partition), offset in (*ends.items(), *self.found.items()):
            offsets.setdefault(stream, {})[partition] = offset
            epoch = self.epochs.get((stream, partition), -1)
            if epoch >= 0:
                epochs.setdefault(stream, {})[partition] = epoch
        return QueryCheckpoint(offsets, {stream: self.uuids[stream] for stream in offsets}, epochs)


def compare(
    start: QueryCheckpoint, heads: Iterable[StreamHeads], parted: Mapping[tuple[str, int], int] = _NOWHERE
) -> Comparison:
    """Hold what a query has read against what there is.

    A partition whose head nobody knows at the moment stays where it is. One that ends before what was read goes back
    to that end, and one that took another way goes back to where it did.

    Args:
        start: What the query has read.
        heads: What there is.
        parted: Offsets from which on other records are there now than the query has read.
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
            _compare_stream(comparison, start, now[stream], parted)
            _note_beginnings(comparison, now[stream], offsets)
    for stream, there in now.items():
        if stream not in start.offsets:
            _note_beginnings(comparison, there, {})
    return comparison


def _compare_stream(
    comparison: Comparison, start: QueryCheckpoint, now: StreamHeads, parted: Mapping[tuple[str, int], int]
) -> None:
    for partition, offset in start.offsets[now.stream].items():
        head = now.partitions.get(partition)
        place = f"stream {now.stream} partition {partition}"
        other = parted.get((now.stream, partition), offset)
        epoch = start.epochs.get(now.stream, {}).get(partition, -1) if head is None else head.epoch
        comparison.epochs[now.stream, partition] = epoch
        if head is None:
            backlog = Backlog(offset, offset)
        elif head.start <= other < min(offset, head.end):
            backlog = Backlog(other, other)
            comparison.losses.append(
                f"{place} has other records from offset {other} on than the query, which has read up to {offset}: the "
                "cluster was restored from its bucket, or an unclean election has lost records"
            )
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
            comparison.epochs[there.stream, partition] = head.epoch


def ends_of(heads: Iterable[StreamHeads]) -> QueryCheckpoint:
    """Where a query is that has read all there is."""
    streams = [each for each in heads if each.partitions]
    return QueryCheckpoint(
        {each.stream: {number: head.end for number, head in each.partitions.items()} for each in streams},
        {each.stream: each.uuid for each in streams},
        epochs_of(streams),
    )


def epochs_of(heads: Iterable[StreamHeads]) -> dict[str, dict[int, int]]:
    """The epochs of leaders by stream and partition, where they are known."""
    known = {
        each.stream: {number: head.epoch for number, head in each.partitions.items() if head.epoch >= 0}
        for each in heads
    }
    return {stream: epochs for stream, epochs in known.items() if epochs}


def to_prove(start: QueryCheckpoint, heads: Iterable[StreamHeads]) -> dict[str, dict[int, int]]:
    """By stream and partition, the epochs of what was read from a leader of another epoch than leads now.

    Whether all that was read is still in the log is shown by where that epoch ended, see `compare`.
    """
    wanted: dict[str, dict[int, int]] = {}
    for each in heads:
        if start.uuids.get(each.stream) != each.uuid:
            continue
        for number, epoch in start.epochs.get(each.stream, {}).items():
            head = each.partitions.get(number)
            offset = start.offsets[each.stream].get(number, 0)
            if head is not None and head.epoch not in {-1, epoch} and head.start < offset:
                wanted.setdefault(each.stream, {})[number] = epoch
    return wanted


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
