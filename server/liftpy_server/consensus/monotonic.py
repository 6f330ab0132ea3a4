"""The clock of this package: the library's, whose deadlines it reads and sets.

It is not `time.monotonic`. The library takes the kernel's raw clock where there is one, and the two part by up to a
second in an hour while the machine's time is being corrected: a heartbeat that is due by one of them would be late, or
sent without end, by the other. It is looked up in the library at every call, so who replaces it there replaces it here.
"""

from __future__ import annotations

from pysyncobj import syncobj

__all__ = ["monotonic"]


def monotonic() -> float:
    """Seconds."""
    return float(syncobj.monotonicTime())
