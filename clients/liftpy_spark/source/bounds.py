"""Where to begin and to end in each partition: what the options say, held against what there is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from liftpy_spark.errors import DataLossError, NoSuchStreamError
from liftpy_spark.options.offsets import EARLIEST, LATEST
from liftpy_spark.options.values import OptionError
from liftpy_spark.reading.planning import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from liftpy_spark.heads import StreamHeads
    from liftpy_spark.options.offsets import StreamOffsets
    from liftpy_spark.options.source import Bound

    AtTime = Callable[[StreamHeads, Mapping[int, int]], dict[int, int | None]]

__all__ = ["assigned", "batch_ranges", "ends", "starts"]

logger = logging.getLogger(__name__)


def assigned(heads: Sequence[StreamHeads], assign: Mapping[str, tuple[int, ...]] | None) -> list[StreamHeads]:
    """Only the partitions that are assigned; all of them when None are named.

    Raises:
        NoSuchStreamError: a stream has no such partition.
    """
    if assign is None:
        return list(heads)
    found = []
    for each in heads:
        wanted = assign[each.stream]
        missing = [number for number in wanted if number not in each.partitions]
        if missing:
            raise NoSuchStreamError(
                f"stream {each.stream} has partitions 0 to {max(each.partitions)}, not {missing[0]}; see 'assign'"
            )
        found.append(each._replace(partitions={number: each.partitions[number] for number in wanted}))
    return found


def starts(bound: Bound, heads: Sequence[StreamHeads], at_time: AtTime, *, late_is_latest: bool) -> StreamOffsets:
    """The first offset of each partition. What the user does not say of a partition is its earliest.

    Args:
        bound: What the user says.
        heads: Heads of what is read.
        at_time: See `offsets_at_time`.
        late_is_latest: Begin at the end where no record is young enough.

    Raises:
        OptionError: the user names what is not read, or a time after the last record.
    """
    found = _offsets(bound, heads, at_time, "startingOffsets", EARLIEST)
    late = [(stream, number) for stream, of in found.items() for number, offset in of.items() if offset is None]
    if late and not late_is_latest:
        raise OptionError(
            "startingOffsetsByTimestamp" if bound.times_ms else "startingTimestamp",
            f"stream {late[0][0]} partition {late[0][1]} has no record that is as young; with "
            "'startingOffsetsByTimestampStrategy' set to latest it begins at the end",
        )
    return _settled(found, heads)


def ends(bound: Bound, heads: Sequence[StreamHeads], at_time: AtTime) -> StreamOffsets:
    """The offset after the last one of each partition. What the user does not say of a partition is its latest.

    Raises:
        OptionError: the user names what is not read.
    """
    return _settled(_offsets(bound, heads, at_time, "endingOffsets", LATEST), heads)


def batch_ranges(
    begin: StreamOffsets, end: StreamOffsets, heads: Sequence[StreamHeads], *, fail_on_data_loss: bool
) -> list[Range]:
    """What a batch reads.

    Raises:
        OptionError: an offset is beyond the end, or an end before its start.
        DataLossError: records at the start are gone, and that is to be an error.
    """
    found = []
    for each in heads:
        for number, head in sorted(each.partitions.items()):
            start, until = begin[each.stream][number], end[each.stream][number]
            where = f"stream {each.stream} partition {number}"
            for option, offset in (("startingOffsets", start), ("endingOffsets", until)):
                if offset > head.end:
                    raise OptionError(option, f"{where} ends at {head.end}, before offset {offset}")
            if start < head.start and until > start:
                lost = f"{where}: the records from {start} to {min(head.start, until)} are gone (retention or a purge)"
                if fail_on_data_loss:
                    raise DataLossError(f"{lost}; set failOnDataLoss to false to go on without them")
                logger.warning("%s: reading goes on without them", lost)
                start = head.start
            found.append(Range(each.stream, each.uuid, number, start, max(start, until)))
    return found


def _offsets(
    bound: Bound, heads: Sequence[StreamHeads], at_time: AtTime, option: str, default: int
) -> dict[str, dict[int, int | None]]:
    if isinstance(bound.everywhere, int):
        time_ms = bound.everywhere
        return {each.stream: at_time(each, dict.fromkeys(each.partitions, time_ms)) for each in heads}
    if bound.everywhere is not None:
        everywhere = {"earliest": EARLIEST, "latest": LATEST}[bound.everywhere]
        return {each.stream: dict.fromkeys(each.partitions, everywhere) for each in heads}
    by_time = bound.times_ms is not None
    given = bound.times_ms or bound.offsets or {}
    _check_named(given, heads, f"{option}ByTimestamp" if by_time else option)
    found: dict[str, dict[int, int | None]] = {}
    for each in heads:
        said = given.get(each.stream, {})
        numbers: dict[int, int | None] = dict.fromkeys(each.partitions, default)
        numbers.update(at_time(each, said) if by_time and said else said)
        found[each.stream] = numbers
    return found


def _check_named(given: StreamOffsets, heads: Sequence[StreamHeads], option: str) -> None:
    read = {each.stream: each.partitions for each in heads}
    for stream, of in given.items():
        if stream not in read:
            raise OptionError(option, f"stream {stream!r:.80} is not one of those that are read: {', '.join(read)}")
        for number in of:
            if number not in read[stream]:
                there = ", ".join(map(str, sorted(read[stream])))
                raise OptionError(option, f"partition {number} of stream {stream} is not one that is read: {there}")


def _settled(found: Mapping[str, Mapping[int, int | None]], heads: Sequence[StreamHeads]) -> StreamOffsets:
    """Earliest and latest as offsets; None, for which there is no record, is the end."""
    settled: StreamOffsets = {}
    for each in heads:
        settled[each.stream] = {
            number: head.start
            if found[each.stream][number] == EARLIEST
            else _or_end(found[each.stream][number], head.end)
            for number, head in each.partitions.items()
        }
    return settled


def _or_end(offset: int | None, end: int) -> int:
    return end if offset is None or offset == LATEST else offset
