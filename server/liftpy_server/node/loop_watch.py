"""Whether the event loop turns: how late it calls, and how long garbage collection stops it."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any, Final

from liftpy_log.histogram import Histogram

if TYPE_CHECKING:
    import asyncio

__all__ = ["LoopWatch"]

_INTERVAL_S: Final = 0.1


class LoopWatch:
    """See the module.

    Args:
        loop: Event loop to watch.

    Attributes:
        lag_s: How late calls were.
        gc_s: How long garbage collections took.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._gc_began_s = 0.0
        self.lag_s = Histogram()
        self.gc_s = Histogram()

    def start(self) -> None:
        """Begin to watch."""
        gc.callbacks.append(self._collected)
        self._arm()

    def stop(self) -> None:
        """Watch no longer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            gc.callbacks.remove(self._collected)

    def _arm(self) -> None:
        self._handle = self._loop.call_later(_INTERVAL_S, self._called, self._loop.time() + _INTERVAL_S)

    def _called(self, due_s: float) -> None:
        self.lag_s.observe(max(0.0, self._loop.time() - due_s))
        self._arm()

    def _collected(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._gc_began_s = time.perf_counter()
        else:
            self.gc_s.observe(time.perf_counter() - self._gc_began_s)
