"""How many bytes jobs may hold in memory at a time, all together."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["WORK_BYTES", "MemoryBudget"]

WORK_BYTES: Final = 32 * 1024 * 1024
"""What a job needs for the row groups that it works on, besides the object that it makes."""

_LOOK_S: Final = 5.0


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
    def hold(self, size: int, waiting: Callable[[], None]) -> Iterator[None]:
        """Have `size` bytes as long as the context lasts.

        Args:
            size: Size in bytes.
            waiting: Called now and then until it begins.
        """
        wanted = min(size, self.bytes_max)
        while not self._take(wanted):
            waiting()
        try:
            yield
        finally:
            with self._changed:
                self._left += wanted
                self._changed.notify_all()

    def _take(self, size: int) -> bool:
        with self._changed:
            if not self._changed.wait_for(lambda: self._left >= size, _LOOK_S):
                return False
            self._left -= size
            return True
