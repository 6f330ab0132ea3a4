"""Waiting for what takes as long as the machine lets it: given up when nothing moves, and not by the clock."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["until_through"]

LOOK_S = 0.05


async def until_through(look: Callable[[], Awaitable[object]], stalled_s: float, message: str) -> None:
    """Wait until something is through, for as long as it goes on.

    Args:
        look: how far it is, as something that compares; None when it is through.
        stalled_s: how long it may stay where it is.
        message: what is the matter when it stays there longer.

    Raises:
        AssertionError: it stays where it is.
    """
    reached: object = None
    deadline = 0.0
    while (now := await look()) is not None:
        if now != reached:
            reached, deadline = now, time.monotonic() + stalled_s
        assert time.monotonic() < deadline, f"{message}: for {stalled_s:g} s it stays at {reached}"
        await asyncio.sleep(LOOK_S)
