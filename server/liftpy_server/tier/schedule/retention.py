"""What of a tiered stream may leave the disk, and what may leave the bucket. Pure.

Local retention bounds what stays on the nodes' disks; what the bucket does not have yet stays in any case. Total
retention counts bucket and log as one: it moves the bucket's start, and what lies below that start the log need not
keep either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from liftpy_log.segments.retention import retention_offset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_log.segments.segment import Segment

__all__ = ["StoredLimits", "counted_start", "local_age_s", "local_start", "stored_limits"]


class StoredLimits(NamedTuple):
    """What the objects of a partition may hold.

    Attributes:
        before_ns: What is older may go; 0 is no limit.
        stored_bytes_max: Bytes of the objects that lie below `below`, so much may stay; -1 is no limit.
        below: What the bucket holds from there on is counted as part of the log.
    """

    before_ns: int
    stored_bytes_max: int
    below: int


def _smaller(local: float, total: float) -> float:
    """The smaller of two limits, of which 0 is none."""
    return min(local, total) if local and total else local or total


def local_age_s(config: StreamConfig) -> float:
    """How old records on the disk may be; 0 is no limit."""
    return _smaller(config.local_retention_age_s, config.retention_age_s)


def local_start(segments: Sequence[Segment], config: StreamConfig, before_ns: int, tiered_end: int) -> int | None:
    """The offset below which whole segments may go; None when all of them stay.

    Args:
        segments: Segments of the log, oldest first.
        config: Settings of the stream.
        before_ns: Records with an earlier time are older than `local_age_s`.
        tiered_end: The bucket has everything below.
    """
    offset = retention_offset(
        segments,
        before_ns=before_ns,
        bytes_max=int(_smaller(config.local_retention_bytes, config.retention_bytes)),
        messages_max=config.retention_messages,
    )
    return None if offset is None or tiered_end <= segments[0].base_offset else min(offset, tiered_end)


def counted_start(config: StreamConfig, end: int) -> int:
    """The first offset that stays for the number of records; 0 where that is not limited.

    Args:
        config: Settings of the stream.
        end: The offset after the last record.
    """
    return max(0, end - config.retention_messages) if config.retention_messages else 0


def stored_limits(config: StreamConfig, before_ns: int, *, local_bytes: int, log_start: int) -> StoredLimits | None:
    """How old and how large the bucket's objects may be; None for no limit.

    Args:
        config: Settings of the stream.
        before_ns: Records with an earlier time are older than the stream's retention says; 0 is no limit.
        local_bytes: Bytes of record batches in the log.
        log_start: Where the log begins: what the bucket holds from there on is counted as part of the log.
    """
    if not (config.retention_age_s or config.retention_bytes):
        return None
    stored_bytes_max = max(0, config.retention_bytes - local_bytes) if config.retention_bytes else -1
    return StoredLimits(before_ns, stored_bytes_max, log_start)
