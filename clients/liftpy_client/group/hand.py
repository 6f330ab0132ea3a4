"""What the application of a group member has in hand: since when, and whether it is stuck with it."""

from __future__ import annotations

import asyncio

__all__ = ["Hand"]


class Hand:
    """The hand of one application.

    Attributes:
        since_s: Loop time since which something is in hand; None when nothing is.
        watchers: How many are to be told when it is put down.
        free: Set while nothing is in hand, as far as somebody watches.
    """

    __slots__ = ("_turn", "free", "since_s", "watchers")

    def __init__(self) -> None:
        self.since_s: float | None = None
        self.watchers = 0
        self.free = asyncio.Event()
        self._turn: object = None

    def begin(self) -> object:
        """Another iteration begins; the hand is empty. Returns what proves to be it."""
        self.put_down()
        self._turn = object()
        return self._turn

    def end(self, turn: object) -> None:
        """An iteration was left. No effect if another has begun since."""
        if turn is self._turn:
            self.put_down()

    def put_down(self) -> None:
        """Nothing is in hand any more."""
        self.since_s = None
        if self.watchers:
            self.free.set()

    def watch(self) -> None:
        """Have `free` set when what is in hand is put down, until `unwatch`."""
        self.watchers += 1
        if self.since_s is None:
            self.free.set()
        else:
            self.free.clear()

    def unwatch(self) -> None:
        """One of those who watch does not any more."""
        self.watchers -= 1

    async def wait_free(self, timeout_s: float) -> None:
        """Wait until nothing is in hand, or time is up."""
        self.watch()
        try:
            async with asyncio.timeout(timeout_s):
                await self.free.wait()
        except TimeoutError:
            pass
        finally:
            self.unwatch()
