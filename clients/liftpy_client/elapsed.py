"""How much time has passed, also while the machine slept: nodes forget ids meanwhile, whatever this machine does."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ElapsedClock"]


def _boot_clock() -> Callable[[], float]:
    """Goes on while the machine sleeps, where the system has such a clock."""
    number = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if number is None else partial(time.clock_gettime, number)


class ElapsedClock:
    """Seconds from an arbitrary origin, never less than have passed, and at worst more.

    `time.monotonic` stands still while a machine sleeps. The boot clock does not, but it stands still while a virtual
    machine is paused and moved; there the wall clock is set right afterwards. So the one counts that went further.

    Args:
        boot: Seconds, never going back.
        wall: Seconds, which may be set in either direction.
    """

    def __init__(self, boot: Callable[[], float] | None = None, wall: Callable[[], float] = time.time) -> None:
        self._clocks = (_boot_clock() if boot is None else boot, wall)
        self._seen = [clock() for clock in self._clocks]
        self._elapsed_s = 0.0

    def __call__(self) -> float:
        """The time now."""
        now = [clock() for clock in self._clocks]
        self._elapsed_s += max(0.0, *(new - old for new, old in zip(now, self._seen, strict=True)))
        self._seen = now
        return self._elapsed_s
