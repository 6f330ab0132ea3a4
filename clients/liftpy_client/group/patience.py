"""Waiting that may end sooner: for what does not matter any more, and until there is something to say."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

__all__ = ["Patience", "rest"]

_Result = TypeVar("_Result")


class Patience:
    """Waits for one thing at a time. A heartbeat that waits for news must not hold up the next join."""

    def __init__(self) -> None:
        self._scope: asyncio.Timeout | None = None

    async def wait(self, work: Coroutine[Any, Any, _Result]) -> _Result | None:
        """What comes of it, or what it raises; None when it was given up."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scope = scope
                return await work
        except TimeoutError:
            if not scope.expired():
                raise
            return None
        finally:
            self._scope = None

    def give_up(self) -> None:
        """Whatever is waited for does not matter any more."""
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())


async def rest(until: asyncio.Event, pause_s: float) -> None:
    """Wait for so long, or until something happens."""
    try:
        async with asyncio.timeout(max(pause_s, 0.0)):
            await until.wait()
    except TimeoutError:
        pass
