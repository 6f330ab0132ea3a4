"""Finding the last of consecutive numbers by asking which ones exist: gallop, then bisect. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["find_last"]


def find_last(exists: Callable[[int], bool], floor: int, hint: int) -> int | None:
    """The last number that exists, where those that do are [floor, last]; None where none does.

    Asks 2 * log2(distance between hint and last) times, a few more or less.

    Args:
        exists: Whether a number does.
        floor: The first one that can.
        hint: Where to begin; anything.
    """
    at = max(hint, floor)
    step = 1
    if exists(at):
        low = at
        while exists(at := low + step):
            low, step = at, step * 2
        high = at
    else:
        high = at
        low = floor - 1
        while high > floor:
            at = max(floor, high - step)
            if exists(at):
                low = at
                break
            high, step = at, step * 2
    while high - low > 1:
        middle = (low + high) // 2
        if exists(middle):
            low = middle
        else:
            high = middle
    return low if low >= floor else None
