"""How many bytes jobs may hold in memory at a time, all together."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["WORK_BYTES", "MemoryBudget", "MemoryShare"]

WORK_BYTES: Final = 32 * 1024 * 1024
"""What a job needs for the row groups that it works on, besides the object that it makes."""

_LOOK_S: Final = 5.0


class MemoryShare:
    """What one job holds of a budget.

    Args:
        size: How much that is, bytes.
        give_back: Gives bytes back to the budget.
    """

    def __init__(self, size: int, give_back: Callable[[int], None]) -> None:
        self._size = size
        self._give_back = give_back

    def reduce(self, size: int) -> None:
        """Hold `size` bytes at most from now on."""
        if size < self._size:
            self._size, rest = size, self._size - size
            self._give_back(rest)


class MemoryBudget:
    """Bytes to be taken and given back; whoever finds too few of them waits.

    Args:
        bytes_max: What there is. Who wants more than that gets all of it, alone.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._left = bytes_max
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, size: int, waiting: Callable[[], None]) -> Iterator[MemoryShare]:
        """Have `size` bytes as long as the context lasts, or less of them when some are given back.

        Args:
            size: Size in bytes.
            waiting: Called now and then until it begins.
        """
        wanted = min(size, self.bytes_max)
        while not self._take(wanted):
            waiting()
        share = MemoryShare(wanted, self._give_back)
        try:
            yield share
        finally:
            share.reduce(0)

    def _give_back(self, size: int) -> None:
        with self._changed:
            self._left += size
            self._changed.notify_all()

    def _take(self, size: int) -> bool:
        with self._changed:
            if not self._changed.wait_for(lambda: self._left >= size, _LOOK_S):
                return False
            self._left -= size
            return True
