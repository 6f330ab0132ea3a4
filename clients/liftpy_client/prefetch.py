"""What has been fetched and not yet taken: bounded by bytes, filled by readers, emptied by the consumer."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from liftpy_client.decode import WireBatch

__all__ = ["Fetched", "PrefetchBuffer"]


class Fetched(NamedTuple):
    """Batches of one partition, in order."""

    partition: int
    batches: list[WireBatch]
    size: int


class PrefetchBuffer:
    """A queue with a budget of bytes.

    Args:
        bytes_max: while so much waits, readers wait too.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._items: deque[Fetched] = deque()
        self._bytes = 0
        self._data = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._error: BaseException | None = None
        self._finished = False

    def put(self, item: Fetched) -> None:
        """Add what was fetched; the budget is looked at before fetching, not here."""
        self._items.append(item)
        self._bytes += item.size
        if self._bytes >= self._bytes_max:
            self._room.clear()
        self._data.set()

    @property
    def has_room(self) -> bool:
        """Whether more may be fetched."""
        return self._room.is_set()

    async def wait_for_room(self) -> None:
        """Wait until more may be fetched."""
        await self._room.wait()

    def finish(self, error: BaseException | None = None) -> None:
        """Nothing more will come: because everything was read, or because of an error."""
        if self._finished:
            return
        self._finished = True
        self._error = error
        self._data.set()

    def close(self) -> None:
        """Nothing more is wanted: what waits is dropped, and `take` answers None."""
        self._items.clear()
        self._bytes = 0
        self._error = None
        self._finished = True
        self._data.set()

    async def take(self) -> Fetched | None:
        """The oldest item; None when there will be no more.

        Raises:
            BaseException: the error that ended the fetching.
        """
        while not self._items:
            if self._finished:
                if self._error is not None:
                    raise self._error
                return None
            self._data.clear()
            await self._data.wait()
        item = self._items.popleft()
        self._bytes -= item.size
        if self._bytes < self._bytes_max:
            self._room.set()
        return item
