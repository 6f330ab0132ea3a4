"""How many uploads run at once: fewer while the store asks for fewer requests, and again more, one by one. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["Pace"]

_GROWTH: Final = 0.25  # for each job that went well
_REST_S: Final = 1.0  # of the jobs that were under way at one time all may be told to slow down, and that counts once


class Pace:
    """How many jobs run at once: half as many after a refusal, and a quarter more after each that went well.

    Args:
        jobs_max: Maximum number of jobs.
    """

    def __init__(self, jobs_max: int) -> None:
        self._jobs_max = jobs_max
        self._allowed = float(jobs_max)
        self._slowed_s = float("-inf")

    @property
    def jobs(self) -> int:
        """How many may run."""
        return int(self._allowed)

    @property
    def is_full(self) -> bool:
        """Whether that is as many as there are to be."""
        return self.jobs >= self._jobs_max

    def slow_down(self, now_s: float) -> None:
        """The store asked for fewer requests."""
        if now_s - self._slowed_s >= _REST_S:
            self._slowed_s = now_s
            self._allowed = max(1.0, self._allowed / 2)

    def went_well(self) -> None:
        """A job went well."""
        self._allowed = min(float(self._jobs_max), self._allowed + _GROWTH)
