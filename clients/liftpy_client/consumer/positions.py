"""Where a consumer starts, where it stops, and where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from liftpy_client.errors import UsageError
from liftpy_envelope.pull import EARLIEST, LATEST

__all__ = [
    "Position",
    "Start",
    "Stop",
    "Word",
    "check_offset",
    "check_partitions",
    "check_start",
    "check_stop",
    "needs_end",
    "offset_of",
    "position",
    "queries",
]

Word = Literal["earliest", "latest", "new"]
"""A place in a partition: its first message, its last committed one, or after that."""

Start = Word | int | datetime
"""Where to start: at a place, at an offset, or at a time."""

Stop = Literal["latest"] | int | datetime
"""Where to stop: after the last message committed when consuming began, before an offset, or before a time (of those
committed when consuming began)."""


class Position:
    """Where a consumer is in one partition.

    Attributes:
        offset: The next offset to deliver.
        stop: The offset to stop before; None for never.
        epoch: Leader epoch of the last record that was read; -1 when there was none.
        read_end: The offset after that record; what comes up to `offset` was skipped by the node unread.
        is_exact: Whether someone counts on this very offset: it was given, or records before it were read. An offset
            that was found by asking where a stream begins may be gone a moment later, and nothing is lost by that.
        high_watermark: The offset after the last committed record, as the node said last; -1 before it did.
    """

    __slots__ = ("epoch", "high_watermark", "is_exact", "offset", "read_end", "stop")

    def __init__(self, offset: int, stop: int | None, *, is_exact: bool = True, epoch: int = -1) -> None:
        self.offset = offset
        self.stop = stop
        self.epoch = epoch
        self.read_end = offset
        self.is_exact = is_exact
        self.high_watermark = -1

    def elsewhere(self, offset: int, epoch: int = -1) -> Position:
        """Another position in the same partition, with the same stop."""
        other = Position(offset, self.stop, epoch=epoch)
        other.high_watermark = self.high_watermark
        return other

    def limit(self, offset: int) -> int:
        """An offset, or the stop when that comes before it."""
        return offset if self.stop is None else min(offset, self.stop)

    @property
    def is_done(self) -> bool:
        """Whether the stop is reached."""
        return self.stop is not None and self.offset >= self.stop


def time_query(when: datetime) -> int:
    """A time as ns since the epoch.

    Raises:
        UsageError: it has no time zone, so nobody can know what it means; or it is after the year 2262.
    """
    if when.tzinfo is None:
        raise UsageError(f"the time {when} has no time zone; use datetime.now(tz=UTC) or the like")
    delta = when - datetime.fromtimestamp(0, when.tzinfo)
    nanoseconds = (delta.days * 86_400 + delta.seconds) * 10**9 + delta.microseconds * 1_000
    if nanoseconds >= 2**63:
        raise UsageError(f"the time {when} is too late: streams count nanoseconds in 64 bits, up to April 2262")
    return max(0, nanoseconds)


def check_offset(offset: object, what: str) -> None:
    """Check an offset.

    Raises:
        UsageError: it is none; `what` says of what it is told.
    """
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 2**63:
        raise UsageError(f"{what}: {offset!r} is not an offset (a whole number from 0 on)")


def _check_partition(partition: object, what: str) -> None:
    if isinstance(partition, bool) or not isinstance(partition, int) or partition < 0:
        raise UsageError(f"{what}: {partition!r} is not a partition (a whole number from 0 on)")


def check_partitions(partitions: Sequence[int] | None) -> None:
    """Check a `partitions` argument.

    Raises:
        UsageError: it means nothing.
    """
    if partitions is not None:
        for partition in partitions:
            _check_partition(partition, "partitions")
        if not partitions:
            raise UsageError("partitions: names none; leave it out to consume all of them")


def check_start(start: object) -> None:
    """Check a `start` argument.

    Raises:
        UsageError: it means nothing.
    """
    if isinstance(start, str):
        if start not in {"earliest", "latest", "new"}:
            raise UsageError(f"start: {start!r} is not one of earliest, latest, new, an offset or a time")
    elif isinstance(start, datetime):
        time_query(start)
    elif isinstance(start, Mapping):
        for partition, offset in start.items():
            _check_partition(partition, "start")
            check_offset(offset, "start")
    else:
        check_offset(start, "start")


def check_stop(stop: object) -> None:
    """Check a `stop` argument.

    Raises:
        UsageError: it means nothing.
    """
    if isinstance(stop, str):
        if stop != "latest":
            raise UsageError(f"stop: {stop!r} is not latest, an offset or a time")
    elif isinstance(stop, datetime):
        time_query(stop)
    elif stop is not None:
        check_offset(stop, "stop")


def queries(start: Start | Mapping[int, int], stop: Stop | None) -> list[int]:
    """What to ask the leader of each partition: where it begins, where it ends, and where the times are."""
    return [EARLIEST, LATEST, *(time_query(place) for place in (start, stop) if isinstance(place, datetime))]


def offset_of(word: str, log_start: int, end: int) -> int:
    """The offset that a `Word` means in a partition, wherever it is said."""
    return {"earliest": log_start, "latest": max(log_start, end - 1), "new": end}[word]


def needs_end(start: Start | Mapping[int, int], stop: Stop | None) -> bool:
    """Whether nobody can begin without knowing how far records are committed."""
    is_open = stop is None or isinstance(stop, int)
    return start in ("latest", "new") or not is_open


def position(
    start: Start | Mapping[int, int], stop: Stop | None, partition: int, answers: list[int]
) -> tuple[Position, bool]:
    """Where to begin and end in a partition.

    Args:
        start: Start, as the user says it.
        stop: Stop, as the user says it.
        partition: Number of the partition.
        answers: Answers to what `queries` asks; the end is -1 where the leader does not know it, and `needs_end` is
            false.

    Returns:
        The position, and whether it can be reached: False when it is said to begin beyond what is committed, and to
        stop there, too; nothing would be consumed, and nobody would learn that the offset does not exist.
    """
    log_start, end, *times = answers
    given = start.get(partition, "earliest") if isinstance(start, Mapping) else start
    is_exact = isinstance(given, int)
    if isinstance(given, datetime):
        offset = times[0]
    elif isinstance(given, int):
        offset = given
    else:
        offset = offset_of(given, log_start, end)
    if isinstance(stop, datetime):
        until: int | None = times[-1]
    else:
        until = end if stop == "latest" else stop
    reachable = not (is_exact and offset > end and not (stop is None or isinstance(stop, int)))
    found = Position(offset, until, is_exact=is_exact)
    found.high_watermark = end
    return found, reachable
