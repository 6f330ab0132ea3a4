"""Which segments a log may drop: a pure decision over their sizes, ends and times."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_log.segments.segment import Segment

__all__ = ["is_active_expired", "retention_offset"]


def retention_offset(segments: Sequence[Segment], *, before_ns: int, bytes_max: int, messages_max: int) -> int | None:
    """The offset below which whole segments may go; None when all of them stay.

    A segment goes when everything in it is too old, or when the log without it still holds as much as it may. The
    newest segment always stays. A limit of 0 is none.

    Args:
        segments: Segments, oldest first.
        before_ns: Records with an earlier time may go.
        bytes_max: The log may be cut to this size.
        messages_max: The log may be cut to this number of records.
    """
    if not segments:
        return None
    end = segments[-1].next_offset
    size = sum(segment.size for segment in segments)
    keep_from = None
    for segment in segments[:-1]:
        size -= segment.size
        is_old = segment.max_timestamp < before_ns
        is_surplus = bytes_max and size >= bytes_max
        is_uncounted = messages_max and end - segment.next_offset >= messages_max
        if not (is_old or is_surplus or is_uncounted):
            break
        keep_from = segment.next_offset
    return keep_from


def is_active_expired(active: Segment, now: int, before_ns: int, *, segment_age_ns: int) -> bool:
    """Whether the newest segment should be closed although nothing is being written.

    So that records of a stream that went quiet are dropped in time too.

    Args:
        active: The newest segment.
        now: The log's time, ns since the epoch.
        before_ns: Records with an earlier time may go; 0 is no limit.
        segment_age_ns: How long a segment may grow.
    """
    if not active.size or active.first_timestamp is None:
        return False
    too_long_open = now - active.first_timestamp >= segment_age_ns
    return too_long_open or active.max_timestamp < before_ns
