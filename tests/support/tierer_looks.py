"""To know that the shell of the schedule has looked, and found nothing more to be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.cluster import eventually

if TYPE_CHECKING:
    from support.tierer_bench import Bench

__all__ = ["looked"]


async def looked(bench: Bench, times: int = 2) -> None:
    """Wait until it has looked so many times from beginning to end, and what it began is done."""
    tierer, count = bench.tierer, 0
    whole = tierer._pass

    async def counted() -> None:
        nonlocal count
        await whole()
        count += 1

    tierer._pass = counted
    try:
        await eventually(lambda: count >= times and not tierer._running)
    finally:
        del tierer._pass
