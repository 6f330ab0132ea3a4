"""Small values that a partition's log hands around."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from liftpy_envelope.ipc import BufferLike
    from liftpy_log.segments.segment import Segment

__all__ = ["Appended", "LogConfig", "Tail", "Unsynced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How a partition's log is kept.

    Attributes:
        segment_bytes: Size at which a segment is closed.
        segment_age_ns: Age of its first record at which a segment is closed.
        keep_unsynced: Remember what is not durable yet, so that a round can write it ahead.
    """

    segment_bytes: int = 256 * 1024 * 1024
    segment_age_ns: int = 86_400 * 10**9
    keep_unsynced: bool = True


class Appended(NamedTuple):
    """Where a batch went."""

    base_offset: int
    next_offset: int
    timestamp: int


class Tail(NamedTuple):
    """The end of the log at one moment."""

    segment: Segment
    position: int
    next_offset: int


class Unsynced(NamedTuple):
    """A batch that may not be durable yet."""

    segment: Segment
    position: int
    parts: list[BufferLike]
    next_offset: int
