"""Takes one item of a feed after the other, or several at once, with a time limit that ends nothing."""

from __future__ import annotations

import asyncio
from itertools import chain, islice
from typing import TYPE_CHECKING, Generic, TypeVar

from liftpy_client.errors import ConsumerEndedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from liftpy_client.consumer.delivery import Cursor
    from liftpy_client.consumer.feed import Feed
    from liftpy_client.consumer.prefetch import Fetched

__all__ = ["Taker", "check_count", "check_timeout"]

_Item = TypeVar("_Item")


class Taker(Generic[_Item]):
    """An iteration that goes on from call to call.

    Args:
        feed: Where items come from. An iteration of it that is under way ends.
        take_apart: Makes the items of what was fetched.
    """

    def __init__(self, feed: Feed, take_apart: Callable[[Fetched, Cursor], Iterator[Iterable[_Item]]]) -> None:
        self._feed = feed
        self._take_apart = take_apart
        self._iteration = feed.begin()
        self._items: Iterator[_Item] = iter(())
        self._cursor: Cursor | None = None

    @property
    def is_current(self) -> bool:
        """Whether no other iteration has begun since."""
        return self._feed.is_current(self._iteration)

    async def next(self, timeout_s: float | None) -> _Item | None:
        """The next item; None when time is up. What was taken before is processed.

        Raises:
            ConsumerEndedError: Nothing more will come.
            LiftError: Fetching has ended.
        """
        self._feed.delivery.release()
        item = next(self._items, None)
        if item is not None:
            return item
        try:
            async with asyncio.timeout(timeout_s):
                while item is None:
                    taken = await self._feed.take(self._iteration)
                    if taken is None:
                        raise ConsumerEndedError("nothing more will come: the consumer was closed, or is at its stop")
                    self._cursor = taken[1]
                    self._items = chain.from_iterable(self._take_apart(*taken))
                    item = next(self._items, None)
        except TimeoutError:
            return None
        return item

    async def next_batch(self, count: int, timeout_s: float | None) -> list[_Item]:
        """Up to `count` items of one partition, all in hand together; none when time is up. Raises as `next` does."""
        first = await self.next(timeout_s)
        if first is None:
            return []
        assert self._cursor is not None, "something was taken"
        delivery = self._feed.delivery
        delivery.hold(self._cursor, delivery.finished(self._cursor))
        return [first, *islice(self._items, count - 1)]


def check_timeout(timeout_s: float | None) -> None:
    """Refuse what is no time limit.

    Raises:
        UsageError: It is none.
    """
    if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s >= 0):
        raise UsageError(f"timeout_s must be 0 or more, or None, not {timeout_s!r:.60}")


def check_count(max_messages: int) -> None:
    """Refuse what is no number of messages.

    Raises:
        UsageError: It is none.
    """
    if isinstance(max_messages, bool) or not isinstance(max_messages, int) or max_messages < 1:
        raise UsageError(f"max_messages must be 1 or more, not {max_messages!r:.60}")
