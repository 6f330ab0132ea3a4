"""The clock of this package: the library's, whose deadlines it reads and sets.

It is not `time.monotonic`. The library takes the kernel's raw clock where there is one, and the two part by up to a
second in an hour while the machine's time is being corrected: a heartbeat that is due by one of them would be late, or
sent without end, by the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pysyncobj.monotonic import monotonic as _library_monotonic

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["monotonic"]

monotonic: Final[Callable[[], float]] = _library_monotonic
"""Seconds."""
