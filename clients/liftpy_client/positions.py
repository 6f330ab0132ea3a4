"""Where a consumer starts, where it stops, and where it is."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

from liftpy_client.errors import UsageError
from liftpy_envelope.pull import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Position", "Start", "Stop", "check_start", "check_stop", "time_query"]

Start = Literal["earliest", "latest", "new"] | int | datetime
"""Where to start: at the first message there is, at the last committed one, after it, at an offset, or at a time."""

Stop = Literal["latest"] | int | datetime
"""Where to stop: after the last message committed when consuming began, before an offset, or before a time."""


class Position:
    """Where a consumer is in one partition.

    Attributes:
        offset: the next offset to hand out.
        stop: the offset to stop before; None for never.
        epoch: leader epoch of the last record that was read; -1 when there was none.
    """

    __slots__ = ("epoch", "offset", "stop")

    def __init__(self, offset: int, stop: int | None) -> None:
        self.offset = offset
        self.stop = stop
        self.epoch = -1

    @property
    def is_done(self) -> bool:
        """Whether the stop is reached."""
        return self.stop is not None and self.offset >= self.stop


def time_query(when: datetime) -> int:
    """A time as ns since the epoch.

    Raises:
        UsageError: it has no time zone, so nobody can know what it means.
    """
    if when.tzinfo is None:
        raise UsageError(f"the time {when} has no time zone; use datetime.now(tz=UTC) or the like")
    delta = when - datetime.fromtimestamp(0, when.tzinfo)
    nanoseconds = (delta.days * 86_400 + delta.seconds) * 10**9 + delta.microseconds * 1_000
    return max(0, nanoseconds)


def _check_offset(offset: object, what: str) -> None:
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 2**63:
        raise UsageError(f"{what}: {offset!r} is not an offset (a whole number from 0 on)")


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
    elif isinstance(start, dict):
        for offset in start.values():
            _check_offset(offset, "start")
    else:
        _check_offset(start, "start")


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
        _check_offset(stop, "stop")


def start_query(start: Start | Mapping[int, int], partition: int) -> tuple[int | None, int]:
    """What to ask the leader to learn where to start.

    Returns:
        (query, 0) to ask a question whose answer is the offset, or (None, offset) when it is known.
    """
    if isinstance(start, str):
        return (EARLIEST if start == "earliest" else LATEST), 0
    if isinstance(start, datetime):
        return time_query(start), 0
    if isinstance(start, int):
        return None, start
    return (None, start[partition]) if partition in start else (EARLIEST, 0)
