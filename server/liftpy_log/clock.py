"""Time, as an argument."""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Where a component reads the time."""

    def now_ns(self) -> int:
        """Wall-clock time, ns since the epoch. May jump either way."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; never goes back."""
        ...

    def elapsed(self) -> float:
        """Seconds like `monotonic`, which also count while the machine sleeps."""
        ...


class SystemClock:
    """The machine's clocks, without a Python frame around them: they are read several times per chunk."""

    now_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)
    elapsed = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))
