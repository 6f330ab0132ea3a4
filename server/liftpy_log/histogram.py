"""A histogram of durations, cheap enough to be kept always: one per chunk, round or request, never per message."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

__all__ = ["BOUNDS_S", "Histogram"]

BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Upper bounds of the buckets, in seconds."""


class Histogram:
    """Counts durations by bucket. One thread writes; any may read, and be a count behind.

    Attributes:
        sum_s: Sum of all durations, seconds.
    """

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds as Prometheus writes them, and how many durations were not above each."""
        bounds = [*map(repr, BOUNDS_S), "+Inf"]
        return [(bound, float(count)) for bound, count in zip(bounds, accumulate(self._counts), strict=True)]
