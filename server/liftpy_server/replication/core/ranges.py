"""Ranges of records, as a replica appends and sends them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BatchRange", "ranges_up_to"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """Records from `base` up to, and without, `end`, all of one leader epoch."""

    epoch: int
    base: int
    end: int


def ranges_up_to(ranges: tuple[BatchRange, ...], end: int) -> tuple[BatchRange, ...]:
    """What of the ranges was appended; a disk that fills on the way takes the first of several segments only."""
    if ranges[-1].end <= end:
        return ranges
    return tuple(
        part if part.end <= end else BatchRange(epoch=part.epoch, base=part.base, end=end)
        for part in ranges
        if part.base < end
    )
