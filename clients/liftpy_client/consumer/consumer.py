"""Consuming streams: from any offset or time, message by message or in Arrow record batches."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import pyarrow as pa

from liftpy_client.consumer.delivery import Mark
from liftpy_client.consumer.feed import Feed
from liftpy_client.consumer.options import ConsumeOptions
from liftpy_client.consumer.positions import check_offset, check_partitions, check_start, check_stop
from liftpy_client.consumer.start_finder import StartFinder
from liftpy_client.errors import UsageError
from liftpy_client.message import Message

if TYPE_CHECKING:
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
    """What both kinds of consumer share.

    It begins when it is entered with `async with`, or else when it is iterated. Entered, it goes on where it was when
    it is iterated again; otherwise it ends with the iteration. What is said to it before it begins is done then.
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
            raise UsageError("stream: name one, or several different ones")
        if len(streams) > 1 and isinstance(start, Mapping):
            raise UsageError("start: offsets per partition say nothing of several streams; use seek(..., stream=...)")
        self._session = session
        self._streams = tuple(streams)
        self._start = start
        self._stop = stop
        self._partitions = partitions
        self._options = options
        self._feed: Feed | None = None
        self._iterated: Feed | None = None
        self._places: dict[str, StreamPlace] = {}
        self._opening = asyncio.Lock()
        self._steps: list[Callable[[Feed], None]] = []
        self._is_entered = False

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
        """What iterating gives, but in parts as they arrive; each is to be gone through before the next is asked for.

        Raises:
            LiftError: fetching came to an end.
            UsageError: it is being iterated already.
        """
        feed = await self._open()
        if feed is self._iterated and not self._is_entered:
            raise UsageError("this consumer is being iterated already; make another one")
        self._iterated = feed
        iteration, take_apart = feed.begin(), self._take_apart(feed)
        try:
            while (taken := await feed.take(iteration)) is not None:
                yield take_apart(*taken)
        finally:
            if not self._is_entered:
                await feed.close()

    async def _open(self) -> Feed:
        """Begin, unless that was done before."""
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
        """Stop fetching; whoever iterates comes to an end."""
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
        """Go on at an offset, back or forth. Nothing that was fetched ahead is handed out after that.

        After an error that ended the iteration, inside `async with`: iterate again, and it goes on there.

        Args:
            offset: the next one wanted, of every partition that is consumed, or by partition.
            stream: which; needed only when several are consumed.

        Raises:
            UsageError: there is no such offset, stream or partition. An offset that is not there any more, or not
                yet, is noticed by the node: then `on_lost` of the options says what happens to the iteration.
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
        """Go on at the first message that is not older than a time, which has a time zone.

        Args:
            when: the time; after that of the last message, the end.
            partitions: which; by default all that are consumed.
            stream: which; needed only when several are consumed.

        Raises:
            UsageError: the time has no time zone, or there is no such stream or partition.
            LiftError: nobody can tell.
        """
        check_start(when)
        await self._open()
        numbers = [key.partition for key in self._keys(stream, partitions)]
        finder = StartFinder(self._session, when, None, numbers, self._options)
        _, found = await finder.find(self._stream(stream))
        self.seek({number: position.offset for number, position in found.items()}, stream=stream)

    def pause(self, partitions: Sequence[int] | None = None, *, stream: str | None = None) -> None:
        """Hand out nothing of some partitions, by default all, until they are resumed; the others go on.

        Raises:
            UsageError: there is no such stream or partition.
        """
        self._for_each(Feed.pause, partitions, stream)

    def resume(self, partitions: Sequence[int] | None = None, *, stream: str | None = None) -> None:
        """Go on with partitions that were paused, where they were.

        Raises:
            UsageError: there is no such stream or partition.
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
        """The offset after the last message that was handed out.

        Raises:
            UsageError: it has not begun, or there is no such stream or partition.
        """
        return self._begun().delivered(self._key(partition, stream)).offset

    def lag(self, *, stream: str | None = None) -> dict[int, int]:
        """By partition, how many offsets are committed beyond what was handed out, as nodes said last.

        Nodes say so whenever they are asked for more, which is not while as much is fetched ahead as may be. Offsets
        are counted: of a compacted or filtered stream there may be fewer messages.

        Raises:
            UsageError: it has not begun, or there is no such stream.
        """
        feed = self._begun()
        lags = {key.partition: feed.lag(key) for key in self._keys(stream, None)}
        return {partition: lag for partition, lag in lags.items() if lag is not None}

    def gone_below(self, partition: int = 0, *, stream: str | None = None) -> int:
        """Below this offset tombstones may be gone, as the node said with what was handed out last; 0 when none are.

        Raises:
            UsageError: it has not begun, or there is no such stream or partition.
        """
        return self._begun().cursor(self._key(partition, stream)).gone_below

    def stream_uuid(self, *, stream: str | None = None) -> str:
        """The uuid of a stream that is consumed, as 32 hexadecimal digits; one made anew under its name has another.

        Raises:
            UsageError: it has not begun, or there is no such stream.
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
    """An asynchronous iterator over messages. In order within a partition; between partitions as they arrive."""

    def _take_apart(self, feed: Feed) -> Callable[[Fetched, Cursor], Iterator[Iterable[Message]]]:
        return feed.delivery.messages


class BatchConsumer(Consuming[pa.RecordBatch]):
    """An asynchronous iterator over Arrow record batches of `RECORDS_SCHEMA`, each of one partition."""

    def _take_apart(self, feed: Feed) -> Callable[[Fetched, Cursor], Iterator[Iterable[pa.RecordBatch]]]:
        return feed.delivery.records
