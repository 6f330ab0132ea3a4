"""The clock of the simulation: events in the order of their time, and of their making where times are equal."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MS = 1_000
S = 1_000_000


class Scheduler:
    """Time in microseconds."""

    def __init__(self) -> None:
        self.now_us = 0
        self.count = 0
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay_us: int, act: Callable[..., None], *args: Any) -> None:
        self.count += 1
        heapq.heappush(self._events, (self.now_us + delay_us, self.count, act, args))

    def run_until(self, end_us: int) -> None:
        events = self._events
        while events and events[0][0] <= end_us:
            self.now_us, _, act, args = heapq.heappop(events)
            act(*args)
        self.now_us = end_us
