"""Feeds one application from any number of partitions of any number of streams, and seeks, pauses and revokes them.

One fetcher per stream fills one buffer, and one `Delivery` delivers its items. Seeks, pauses and revocations happen in
the event loop's thread and take effect immediately: prefetched records of the partition are dropped, and the rest of
its item in delivery is not delivered. `resume` continues a paused partition after its last delivered record
and fetches again from there, so that a paused partition fills no buffer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from liftpy_client.connection.cancelling import end_tasks
from liftpy_client.consumer.delivery import Cursor, Delivery, Mark
from liftpy_client.consumer.fetcher import Fetcher
from liftpy_client.consumer.filtering import SubjectFilter
from liftpy_client.consumer.prefetch import PrefetchBuffer
from liftpy_client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_client.connection.cluster import StreamPlace
    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.options import ConsumeOptions
    from liftpy_client.consumer.positions import Position
    from liftpy_client.consumer.prefetch import Fetched
    from liftpy_envelope.pull import PartitionKey

__all__ = ["Feed"]


class Feed:
    """Fetches and delivers the partitions of one consumer.

    Args:
        session: Connections and the cluster's metadata.
        options: Fetch options of the consumer.
        lasting: Whether partitions may be added after all have been read.
        gone_grace_s: Seconds that partitions of a deleted stream may stay before that is an error.

    Attributes:
        delivery: Delivers the fetched items.
        is_closed: Whether fetching has ended.
    """

    def __init__(
        self, session: Session, options: ConsumeOptions, *, lasting: bool = False, gone_grace_s: float = 0.0
    ) -> None:
        self._session = session
        self._options = options
        self._gone_grace_s = gone_grace_s
        self._buffer = PrefetchBuffer(options.prefetch_bytes)
        if lasting:
            self._buffer.add_source()
        self.delivery = Delivery(SubjectFilter(options.subjects) if options.subjects else None, options.extra_columns)
        self._cursors: dict[PartitionKey, Cursor] = {}
        self._fetchers: dict[bytes, Fetcher] = {}
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._iteration: object = None
        self._is_taking = False
        self.is_closed = False

    # -- partitions

    def assign(self, place: StreamPlace, positions: Mapping[int, Position]) -> None:
        """Feed these partitions of a stream, too, from these positions on."""
        if self.is_closed:
            raise UsageError("this consumer is closed; create another one")
        fetcher = self._fetchers.get(place.uuid)
        if fetcher is None:
            fetcher = Fetcher(self._session, place, {}, self._buffer, self._options, self._gone_grace_s)
            self._fetchers[place.uuid] = fetcher
        for number, position in positions.items():
            key = place.key(number)
            if key in self._cursors:
                self.revoke(key)
            cursor = self._cursors[key] = Cursor(place.name, key, fetcher, position)
            self._fetch(cursor)

    def revoke(self, key: PartitionKey) -> Mark:
        """Remove a partition. Return the position up to which it is processed."""
        cursor = self._cursors.pop(key)
        mark = self.delivery.finished(cursor)
        self._stop(cursor)
        self.delivery.forget(cursor)
        self._hold(cursor, is_paused=False)
        return mark

    def seek(self, key: PartitionKey, mark: Mark) -> None:
        """Go on elsewhere; what is in hand does not count any more."""
        cursor = self._cursors[key]
        self._buffer.go_on()
        self.delivery.forget(cursor)
        self._move(cursor, mark)
        cursor.finished = mark

    def pause(self, key: PartitionKey) -> None:
        """Hand nothing out of a partition until it is resumed."""
        cursor = self._cursors[key]
        if not cursor.is_paused:
            mark = self.delivery.delivered(cursor)
            self.delivery.interrupt(cursor)
            self._stop(cursor)
            cursor.fetching = cursor.fetching.elsewhere(*mark)
            self._hold(cursor, is_paused=True)

    def resume(self, key: PartitionKey) -> None:
        """Go on with a paused partition."""
        cursor = self._cursors[key]
        if cursor.is_paused:
            self._fetch(cursor)
            self._hold(cursor, is_paused=False)

    def _move(self, cursor: Cursor, mark: Mark) -> None:
        self._stop(cursor)
        was_paused = cursor.is_paused
        self._hold(cursor, is_paused=False)
        cursor.fetching = cursor.fetching.elsewhere(*mark)
        if was_paused:
            self._hold(cursor, is_paused=True)
        else:
            self._fetch(cursor)

    def _stop(self, cursor: Cursor) -> None:
        cursor.fetcher.revoke(cursor.key.partition)
        self._buffer.drop(cursor.fetching)

    def _hold(self, cursor: Cursor, *, is_paused: bool) -> None:
        """Note whether a partition is paused; one that is, and is not done, keeps the buffer from being finished."""
        if cursor.is_paused != is_paused and not cursor.fetching.is_done:
            (self._buffer.add_source if is_paused else self._buffer.finish)()
        cursor.is_paused = is_paused

    def _fetch(self, cursor: Cursor) -> None:
        if self.is_closed:
            return
        uuid = cursor.key.uuid
        cursor.fetcher.assign(cursor.key.partition, cursor.fetching)
        task = self._tasks.get(uuid)
        if task is None or task.done():
            self._buffer.add_source()
            self._tasks[uuid] = asyncio.create_task(cursor.fetcher.run(), name=f"fetch {cursor.stream}")

    # -- where it is

    def cursors(self) -> list[Cursor]:
        """All partitions that are fed."""
        return list(self._cursors.values())

    def has(self, key: PartitionKey) -> bool:
        """Whether a partition is fed."""
        return key in self._cursors

    def cursor(self, key: PartitionKey) -> Cursor:
        """One of them."""
        return self._cursors[key]

    def delivered(self, key: PartitionKey) -> Mark:
        """Return the position after the last delivered record."""
        return self.delivery.delivered(self._cursors[key])

    def finished(self, key: PartitionKey) -> Mark:
        """The place after what is finished."""
        return self.delivery.finished(self._cursors[key])

    def lag(self, key: PartitionKey) -> int | None:
        """Return the lag: committed offsets not yet delivered. None before a node has reported it."""
        high_watermark = self._cursors[key].fetching.high_watermark
        return None if high_watermark < 0 else max(0, high_watermark - self.delivered(key).offset)

    def settle(self, key: PartitionKey, offset: int) -> None:
        """Count what is in hand of a partition, below an offset, as processed: it was committed."""
        self.delivery.settle(self._cursors[key], offset)

    @property
    def in_hand(self) -> PartitionKey | None:
        """The partition of what the application has in hand."""
        cursor = self.delivery.in_hand
        return None if cursor is None else cursor.key

    # -- delivering

    def begin(self) -> object:
        """Begin to iterate. What an earlier iteration had in hand was not processed: it is delivered again.

        Raises:
            UsageError: another task waits for the next item.
        """
        if self._is_taking:
            raise UsageError("this consumer is being iterated already; create another one")
        self._iteration = object()
        cursor = self.delivery.in_hand
        if cursor is not None:
            mark = cursor.finished = self.delivery.finished(cursor)
            self.delivery.forget(cursor)
            self._move(cursor, mark)
        return self._iteration

    def is_current(self, iteration: object) -> bool:
        """Whether no other iteration has begun since."""
        return iteration is self._iteration

    async def take(self, iteration: object) -> tuple[Fetched, Cursor] | None:
        """The next item, to be taken apart by the `delivery`; None when nothing more will come.

        Raises:
            LiftError: fetching came to an end.
            UsageError: another iteration has begun since, or another task waits for the next item.
        """
        if iteration is not self._iteration:
            raise UsageError("this consumer is iterated elsewhere now; create another one")
        if self._is_taking:  # what one of them takes would make the other leave out the rest of its item
            raise UsageError("another task waits for the next item of this consumer; create a consumer for each task")
        self._is_taking = True
        try:
            item = await self._buffer.take()
        finally:
            self._is_taking = False
        return None if item is None else (item, self._cursors[item.key])

    async def close(self) -> None:
        """Stop fetching. A running iteration ends after the records in hand."""
        self.is_closed = True
        self._session.running.discard(self)
        self._buffer.close()
        cursor = self.delivery.unfinished
        if cursor is not None:
            self.delivery.interrupt(cursor)
        await end_tasks(self._tasks.values())
