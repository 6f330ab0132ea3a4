"""Consuming streams: from any offset or time, message by message or in Arrow record batches."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import pyarrow as pa

from liftpy_client.connection.session import close_when_dropped
from liftpy_client.consumer.delivery import Mark
from liftpy_client.consumer.feed import Feed
from liftpy_client.consumer.options import ConsumeOptions
from liftpy_client.consumer.positions import check_offset, check_partitions, check_start, check_stop
from liftpy_client.consumer.start_finder import StartFinder
from liftpy_client.consumer.taking import Taker, check_count, check_timeout
from liftpy_client.errors import UsageError
from liftpy_client.message import Message

if TYPE_CHECKING:
    import weakref
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
    from datetime import datetime
    from types import TracebackType

    from liftpy_client.connection.cluster import StreamPlace
    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.delivery import Cursor
    from liftpy_client.consumer.positions import Start, Stop
    from liftpy_client.consumer.prefetch import Fetched
    from liftpy_envelope.pull import PartitionKey

__all__ = ["BatchConsumer", "ConsumeOptions", "Consumer", "Consuming"]

_Item = TypeVar("_Item")


class Consuming(ABC, Generic[_Item]):
    """Base of both kinds of consumer.

    It starts when it is entered with `async with`, or else when it is iterated. A message is in hand until the next one
    is requested. A new iteration continues with what was in hand: whoever catches the error of a handler and iterates
    again gets its message again. Outside of an `async with` the consumer ends at its stop, with an error of its own,
    with `close`, with the connection, and when nothing refers to it any more. Calls of `seek` and `pause` before the
    start take effect at the start.
    """

    def __init__(
        self,
        session: Session,
        streams: Sequence[str],
        start: Start | Mapping[int, int],
        stop: Stop | None,
        partitions: Sequence[int] | None,
        options: ConsumeOptions,
    ) -> None:
        check_start(start)
        check_stop(stop)
        check_partitions(partitions)
        if not streams or len(set(streams)) < len(streams):
            raise UsageError("stream: give one name, or several different ones")
        if len(streams) > 1 and isinstance(start, Mapping):
            raise UsageError(
                "start: offsets per partition are ambiguous for several streams; use seek(..., stream=...)"
            )
        self._session = session
        self._streams = tuple(streams)
        self._start = start
        self._stop = stop
        self._partitions = partitions
        self._options = options
        self._feed: Feed | None = None
        self._taker: Taker[_Item] | None = None
        self._places: dict[str, StreamPlace] = {}
        self._opening = asyncio.Lock()
        self._steps: list[Callable[[Feed], None]] = []
        self._is_entered = False
        self._finalizer: weakref.finalize[..., Any] | None = None

    # -- iterating

    def __aiter__(self) -> AsyncIterator[_Item]:
        return self._iterate()

    @abstractmethod
    def _take_apart(self, feed: Feed) -> Callable[[Fetched, Cursor], Iterator[Iterable[_Item]]]: ...

    async def _iterate(self) -> AsyncGenerator[_Item, None]:
        fetched = self.parts()
        try:
            async for parts in fetched:
                for part in parts:
                    for item in part:
                        yield item
        finally:
            await fetched.aclose()

    async def parts(self) -> AsyncGenerator[Iterator[Iterable[_Item]], None]:
        """Iterate in parts, as they arrive. Exhaust each part before you request the next.

        Raises:
            LiftError: Fetching has ended.
            UsageError: Another iteration is under way.
        """
        feed = await self._open()
        iteration, take_apart = feed.begin(), self._take_apart(feed)
        try:
            while (taken := await feed.take(iteration)) is not None:
                yield take_apart(*taken)
        except Exception:
            await self._iterated(feed, iteration)
            raise
        await self._iterated(feed, iteration)

    async def _iterated(self, feed: Feed, iteration: object) -> None:
        """An iteration has come to its end: outside of an `async with` the consumer ends with it."""
        if not self._is_entered and feed.is_current(iteration):
            await feed.close()

    async def next(self, timeout_s: float | None = None) -> _Item | None:
        """Return the next item, and count the one before as processed; None when none came in time.

        Args:
            timeout_s: Seconds to wait; None waits as long as it takes.

        Raises:
            ConsumerEndedError: The consumer is at its stop, or was closed.
            LiftError: Fetching has ended.
            UsageError: Another task waits for the next item.
        """
        check_timeout(timeout_s)
        return await (await self._current_taker()).next(timeout_s)

    def redeliver(self) -> None:
        """Deliver what `next` or `next_batch` returned last again, with the next request."""
        self._taker = None

    async def _current_taker(self) -> Taker[_Item]:
        taker = self._taker
        if taker is None or not taker.is_current or self._feed is None:
            feed = await self._open()
            taker = self._taker = Taker(feed, self._take_apart(feed))
        return taker

    async def _open(self) -> Feed:
        """Start, unless it has started."""
        async with self._opening:
            if self._feed is not None and not self._feed.is_closed:
                return self._feed
            feed = self._feed = Feed(self._session, self._options)
            self._places = {}
            try:
                await self._begin(feed)
            except BaseException:
                await feed.close()
                raise
            self._session.running.add(feed)
            if self._finalizer is not None:
                self._finalizer.detach()  # else it keeps the feed of the iteration before
            self._finalizer = close_when_dropped(self, feed)
            return feed

    async def _begin(self, feed: Feed) -> None:
        finder = StartFinder(self._session, self._start, self._stop, self._partitions, self._options)
        found = [await finder.find(stream) for stream in self._streams]
        if feed.is_closed:
            return
        for place, positions in found:
            feed.assign(place, positions)
        self._places = {place.name: place for place, _ in found}
        steps, self._steps = self._steps, []
        for step in steps:
            step(feed)

    async def close(self) -> None:
        """Stop fetching. A running iteration ends."""
        if self._feed is not None:
            await self._feed.close()

    async def __aenter__(self) -> Self:
        self._is_entered = True
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_entered = False
        await self.close()

    # -- steering

    def seek(self, offset: int | Mapping[int, int], *, stream: str | None = None) -> None:
        """Continue at another offset. No prefetched message is delivered after the call.

        After an error that ended the iteration, inside `async with`: iterate again to continue at the offset.

        Args:
            offset: The next offset to deliver, for all consumed partitions or by partition.
            stream: Name of the stream; needed only when several are consumed.

        Raises:
            UsageError: There is no such stream or partition, or the offset is invalid. An offset that was deleted or
                does not exist yet is noticed by the node later. `on_lost` of the options decides then.
        """
        if not isinstance(offset, Mapping):
            check_offset(offset, "seek")
        else:
            check_start(offset)
        self._stream(stream)

        def step(feed: Feed) -> None:
            for key in self._keys(stream, list(offset) if isinstance(offset, Mapping) else None):
                feed.seek(key, Mark(offset[key.partition] if isinstance(offset, Mapping) else offset, -1))

        self._steer(step)

    async def seek_to_time(
        self, when: datetime, *, partitions: Sequence[int] | None = None, stream: str | None = None
    ) -> None:
        """Continue at the first message that is not older than a time.

        Args:
            when: The time, with a time zone. If all messages are older, the consumer continues at the end.
            partitions: Numbers of the partitions; by default all that are consumed.
            stream: Name of the stream; needed only when several are consumed.

        Raises:
            UsageError: The time has no time zone, or there is no such stream or partition.
            LiftError: The leaders could not be asked.
        """
        check_start(when)
        await self._open()
        numbers = [key.partition for key in self._keys(stream, partitions)]
        finder = StartFinder(self._session, when, None, numbers, self._options)
        _, found = await finder.find(self._stream(stream))
        self.seek({number: position.offset for number, position in found.items()}, stream=stream)

    def pause(self, partitions: Sequence[int] | None = None, *, stream: str | None = None) -> None:
        """Stop the delivery of some partitions, by default all, until `resume`.

        Raises:
            UsageError: There is no such stream or partition.
        """
        self._for_each(Feed.pause, partitions, stream)

    def resume(self, partitions: Sequence[int] | None = None, *, stream: str | None = None) -> None:
        """Continue the delivery of paused partitions at their positions.

        Raises:
            UsageError: There is no such stream or partition.
        """
        self._for_each(Feed.resume, partitions, stream)

    def _for_each(
        self, act: Callable[[Feed, PartitionKey], None], partitions: Sequence[int] | None, stream: str | None
    ) -> None:
        check_partitions(partitions)
        if stream is not None:
            self._stream(stream)

        def step(feed: Feed) -> None:
            for name in self._streams if stream is None and partitions is None else (stream,):
                for key in self._keys(name, partitions):
                    act(feed, key)

        self._steer(step)

    def _steer(self, step: Callable[[Feed], None]) -> None:
        if self._feed is None or self._feed.is_closed or not self._places:
            self._steps.append(step)
        else:
            step(self._feed)

    # -- where it is

    def position(self, partition: int = 0, *, stream: str | None = None) -> int:
        """Return the offset after the last delivered message.

        Raises:
            UsageError: The consumer has not started, or there is no such stream or partition.
        """
        return self._begun().delivered(self._key(partition, stream)).offset

    def lag(self, *, stream: str | None = None) -> dict[int, int]:
        """Return the lag of each partition: committed offsets not yet delivered, as last reported by the nodes.

        Nodes report it with each fetch. There is no fetch while the prefetch buffer is full. Lag counts offsets:
        compacted and filtered streams can have fewer messages.

        Raises:
            UsageError: The consumer has not started, or there is no such stream.
        """
        feed = self._begun()
        lags = {key.partition: feed.lag(key) for key in self._keys(stream, None)}
        return {partition: lag for partition, lag in lags.items() if lag is not None}

    def delete_horizon(self, partition: int = 0, *, stream: str | None = None) -> int:
        """Return the delete horizon: tombstones below this offset may be gone. 0 if none are.

        The node reported it with the last delivered records.

        Raises:
            UsageError: The consumer has not started, or there is no such stream or partition.
        """
        return self._begun().cursor(self._key(partition, stream)).delete_horizon

    def stream_uuid(self, *, stream: str | None = None) -> str:
        """Return the uuid of a consumed stream, as 32 hexadecimal digits. A new stream of the same name has another.

        Raises:
            UsageError: The consumer has not started, or there is no such stream.
        """
        self._begun()
        return self._places[self._stream(stream)].uuid.hex()

    def _begun(self) -> Feed:
        if self._feed is None or not self._places:
            raise UsageError("this consumer has not begun: enter it with `async with`, or iterate it first")
        return self._feed

    def _stream(self, stream: str | None) -> str:
        if stream is None and len(self._streams) == 1:
            return self._streams[0]
        if stream not in self._streams:
            raise UsageError(f"stream: {stream!r} is not one of those that are consumed: {', '.join(self._streams)}")
        return stream

    def _key(self, partition: int, stream: str | None) -> PartitionKey:
        (key,) = self._keys(stream, [partition])
        return key

    def _keys(self, stream: str | None, partitions: Sequence[int] | None) -> list[PartitionKey]:
        place = self._places[self._stream(stream)]
        consumed = [cursor.key for cursor in self._begun().cursors() if cursor.key.uuid == place.uuid]
        if partitions is None:
            return consumed
        missing = [number for number in partitions if place.key(number) not in consumed]
        if missing:
            raise UsageError(f"partition {missing[0]} of stream {place.name} is not consumed here")
        return [place.key(number) for number in partitions]


class Consumer(Consuming[Message]):
    """An asynchronous iterator over messages. They are in order within a partition."""

    async def next_batch(self, max_messages: int, timeout_s: float | None = None) -> list[Message]:
        """Return the next messages, all of one partition, and count those before as processed.

        They are in hand together. Only the first of them is waited for.

        Args:
            max_messages: How many at most.
            timeout_s: Seconds to wait; None waits as long as it takes.

        Returns:
            The messages; none if none came in time.

        Raises:
            LiftError: As for `next`.
        """
        check_count(max_messages)
        check_timeout(timeout_s)
        return await (await self._current_taker()).next_batch(max_messages, timeout_s)

    def _take_apart(self, feed: Feed) -> Callable[[Fetched, Cursor], Iterator[Iterable[Message]]]:
        return feed.delivery.messages


class BatchConsumer(Consuming[pa.RecordBatch]):
    """An asynchronous iterator over Arrow record batches of `RECORDS_SCHEMA`, each of one partition."""

    def _take_apart(self, feed: Feed) -> Callable[[Fetched, Cursor], Iterator[Iterable[pa.RecordBatch]]]:
        return feed.delivery.records
