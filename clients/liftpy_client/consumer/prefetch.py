"""What has been fetched and not yet taken: bounded by bytes, filled by readers, emptied by the consumer."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from liftpy_client.consumer.decode import WireBatch
    from liftpy_client.consumer.positions import Position
    from liftpy_envelope.pull import PartitionKey

__all__ = ["Fetched", "PrefetchBuffer"]

_ITEM_BYTES_MIN: Final = 512  # what an item costs that has no batches, only news of where to go on
_FETCH_BYTES_MIN: Final = 64 * 1024


class Fetched(NamedTuple):
    """Batches of one partition, in order.

    Attributes:
        key: Partition that they are of.
        position: Position whose move brought them; a partition that was moved elsewhere since has another one.
        batches: May be none, when there was nothing that is wanted up to `next_offset`.
        next_offset: Where the partition goes on after them.
        epoch: Leader epoch of the last of them, -1 when what lies before `next_offset` was skipped.
        delete_horizon: Tombstones below this offset may be gone.
        size: Size of the batches, bytes.
    """

    key: PartitionKey
    position: Position
    batches: list[WireBatch]
    next_offset: int
    epoch: int
    delete_horizon: int
    size: int

    @property
    def partition(self) -> int:
        """Its number."""
        return self.key.partition


class PrefetchBuffer:
    """A queue with a budget of bytes, filled by any number of sources.

    Args:
        bytes_max: Size at which readers wait, bytes. What was asked for before that still arrives: at most as much
            again, or 64 KiB for each reader.

    Attributes:
        readers: How many fill it.
    """

    def __init__(self, bytes_max: int) -> None:
        self.readers = 0
        self._bytes_max = bytes_max
        self._items: deque[Fetched] = deque()
        self._bytes = 0
        self._data = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._sources = 0
        self._error: BaseException | None = None
        self._is_told = False
        self._finished = False
        self._closed = False

    def put(self, item: Fetched) -> None:
        """Add what was fetched; the budget is looked at before fetching, not here."""
        self._items.append(item)
        self._bytes += _size(item)
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

    def fetch_bytes(self, wanted: int) -> int:
        """How much one fetch may ask for, so that all readers together ask for no more than the budget."""
        return min(wanted, max(self._bytes_max // max(self.readers, 1), _FETCH_BYTES_MIN))

    def drop(self, position: Position) -> None:
        """Drop what was fetched for a position that nobody wants any more."""
        if any(item.position is position for item in self._items):
            self._items = deque(item for item in self._items if item.position is not position)
            self._bytes = sum(map(_size, self._items))
            self._make_room()

    def add_source(self) -> None:
        """Something more may come, until it says that it is finished."""
        self._sources += 1
        if self._error is None and not self._closed:
            self._finished = False

    def finish(self, error: BaseException | None = None) -> None:
        """A source will bring nothing more, because everything was read; with an error, none of them will."""
        self._sources = max(self._sources - 1, 0)
        if self._finished or (self._sources and error is None):
            return
        self._finished = True
        self._error = error
        self._data.set()

    def go_on(self) -> None:
        """Be done with an error that `take` has raised: whoever seeks after it goes on elsewhere."""
        if self._is_told and not self._closed:
            self._error, self._is_told = None, False
            self._finished = not self._sources

    def close(self) -> None:
        """Nothing more is wanted: what waits is dropped, and `take` answers None."""
        self._items.clear()
        self._bytes = 0
        self._error = None
        self._closed = self._finished = True
        self._data.set()

    async def take(self) -> Fetched | None:
        """The oldest item; None when there will be no more.

        Raises:
            BaseException: the error that ended the fetching.
        """
        while not self._items:
            if self._finished:
                if self._error is not None:
                    self._is_told = True
                    raise self._error
                return None
            self._data.clear()
            await self._data.wait()
        item = self._items.popleft()
        self._bytes -= _size(item)
        self._make_room()
        return item

    def _make_room(self) -> None:
        if self._bytes < self._bytes_max:
            self._room.set()


def _size(item: Fetched) -> int:
    return max(item.size, _ITEM_BYTES_MIN)
