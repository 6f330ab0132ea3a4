"""Links that delay, drop, duplicate and reorder, each direction for itself; sessions are in order, and wait instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulation.scheduler import MS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from simulation.scheduler import Scheduler


class Network:
    """`cut` holds the (source, target) pairs that nothing passes."""

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self.cut: set[tuple[str, str]] = set()
        self.is_calm = False
        self._scheduler = scheduler
        self._rng = rng
        self._bad = rng.choice((0.0, 0.01, 0.05))

    def send(self, source: str, target: str, deliver: Callable[..., None], *args: Any) -> None:
        if (source, target) in self.cut:
            return
        chance = self._rng.random()
        bad = 0.0 if self.is_calm else self._bad
        if chance < bad:
            return
        copies = 2 if chance < 2 * bad else 1
        for _ in range(copies):
            delay = 200 + int(self._rng.random() * 4 * MS)
            if chance > 1 - bad:
                delay += int(self._rng.random() * 900 * MS)  # late enough to arrive in another epoch
            self._scheduler.after(delay, self._arrive, source, target, deliver, args)

    def in_order(self, last_us: int, deliver: Callable[..., None], *args: Any) -> int:
        """Deliver after what arrives at `last_us`. Returns when."""
        delay = 200 + int(self._rng.random() * 4 * MS)
        if not self.is_calm and self._rng.random() < self._bad:
            delay += int(self._rng.random() * 900 * MS)
        arrives_us = max(last_us, self._scheduler.now_us + delay)
        self._scheduler.after(arrives_us - self._scheduler.now_us, deliver, *args)
        return arrives_us

    def _arrive(self, source: str, target: str, deliver: Callable[..., None], args: tuple[Any, ...]) -> None:
        if (source, target) not in self.cut:
            deliver(*args)
