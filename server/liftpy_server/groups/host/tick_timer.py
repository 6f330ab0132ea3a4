"""The timer of a partition's coordinators. Its lateness tells for how long the node stood still and heard nobody."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from liftpy_server.groups.host.limits import PAUSE_S_MIN, TICK_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TickTimer"]

_NEVER = float("inf")


class TickTimer:
    """One timer; it runs only while there is something to wait for.

    Args:
        now_s: The monotonic clock.
        on_tick: Called when it is time, with the seconds for which the node stood still.
    """

    def __init__(self, now_s: Callable[[], float], on_tick: Callable[[float], None]) -> None:
        self._now_s = now_s
        self._on_tick = on_tick
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._wake_s = _NEVER

    def expect(self, next_s: float, *, is_needed: bool) -> None:
        """Something is due at `next_s`; `is_needed` wants a tick before long in any case."""
        if next_s == _NEVER and not is_needed:
            return
        now_s = self._now_s()
        wake_s = max(now_s, min(next_s, now_s + TICK_S_MAX))
        if self._timer is not None:
            if self._wake_s <= wake_s:
                return
            self._timer.cancel()
        self._wake_s = wake_s
        self._timer = self._loop.call_later(wake_s - now_s, self._wake)

    def _wake(self) -> None:
        late_s = self._now_s() - self._wake_s
        self._timer = None
        self._on_tick(late_s if late_s > PAUSE_S_MIN else 0.0)

    def end(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
