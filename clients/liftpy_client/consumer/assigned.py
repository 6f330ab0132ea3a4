"""A consumer whose partitions are assigned and revoked while it runs: the reader of a group member.

`revoke` returns up to where the revoked partitions are processed, because `positions` does not know them any more.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from liftpy_client.consumer.delivery import Mark
from liftpy_client.consumer.feed import Feed
from liftpy_client.consumer.positions import Position, check_offset
from liftpy_client.consumer.taking import Taker
from liftpy_client.errors import AdminError, NodeUnavailableError, NoStreamError, StreamGoneError
from liftpy_envelope.pull import PartitionKey

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    import pyarrow as pa

    from liftpy_client.connection.cluster import StreamPlace
    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.options import ConsumeOptions
    from liftpy_client.message import Message

__all__ = ["AssignedConsumer"]

_LOOK_S: Final = 10.0
_LOOK_PAUSE_S: Final = 0.1
_GONE_GRACE_S: Final = 30.0  # the coordinator of a group revokes what is gone when it hears of that


class AssignedConsumer:
    """An asynchronous iterator over messages or Arrow record batches of assigned partitions. It ends when it is closed.

    Call all methods in the event loop's thread. Several tasks may call them; only one may iterate.

    Args:
        session: Connections and the cluster's metadata.
        options: Fetch options. `on_lost` decides about positions that retention removed.
        batches: Whether to deliver Arrow record batches rather than messages.
    """

    def __init__(self, session: Session, options: ConsumeOptions, *, batches: bool) -> None:
        self._session = session
        self._batches = batches
        self._feed = Feed(session, options, lasting=True, gone_grace_s=_GONE_GRACE_S)
        self._taker: Taker[Message | pa.RecordBatch] | None = None

    # -- iterating

    def __aiter__(self) -> AsyncIterator[Message | pa.RecordBatch]:
        return self._iterate()

    async def _iterate(self) -> AsyncGenerator[Message | pa.RecordBatch, None]:
        feed = self._feed
        take_apart = feed.delivery.records if self._batches else feed.delivery.messages
        iteration = feed.begin()
        while (taken := await feed.take(iteration)) is not None:
            for part in take_apart(*taken):
                for item in part:
                    yield item

    async def next(self, timeout_s: float | None) -> Message | pa.RecordBatch | None:
        """The next item; None when time is up. Raises ConsumerEndedError when it is closed."""
        return await self._current_taker().next(timeout_s)

    async def next_batch(self, count: int, timeout_s: float | None) -> list[Message | pa.RecordBatch]:
        """Up to `count` items of one partition; none when time is up. Raises ConsumerEndedError when it is closed."""
        return await self._current_taker().next_batch(count, timeout_s)

    def redeliver(self) -> None:
        """Deliver what is in hand again, with the next request."""
        self._taker = None

    def _current_taker(self) -> Taker[Message | pa.RecordBatch]:
        if self._taker is None or not self._taker.is_current:
            delivery = self._feed.delivery
            self._taker = Taker(self._feed, delivery.records if self._batches else delivery.messages)
        return self._taker

    @property
    def in_hand(self) -> PartitionKey | None:
        """The partition of what the application has in hand."""
        return self._feed.in_hand

    def settle(self, stream: str, uuid: bytes, partition: int, offset: int) -> None:
        """Count what is in hand of a partition, below an offset, as finished: it was committed."""
        del stream
        for key in self._here(uuid, [partition]):
            self._feed.settle(key, offset)

    async def close(self) -> None:
        """Stop fetching. A running iteration ends. `positions` still returns what was processed."""
        await self._feed.close()

    # -- partitions

    async def assign(self, stream: str, uuid: bytes, positions: Mapping[int, Position | int]) -> None:
        """Add partitions, from these positions on. A partition that is already here is moved to its position.

        A `Position` carries the epoch of the record before it, so that a log that took another way is noticed.

        Raises:
            StreamGoneError: the cluster has no such incarnation of the stream, and had none for ten seconds.
            UsageError: a position is none, or the consumer is closed.
        """
        for position in positions.values():
            if not isinstance(position, Position):
                check_offset(position, "assign")
        place = await self._find(stream, uuid)
        self._feed.assign(
            place,
            {
                number: position if isinstance(position, Position) else Position(position, None)
                for number, position in positions.items()
            },
        )

    async def revoke(
        self, stream: str, uuid: bytes, partitions: Sequence[int]
    ) -> dict[tuple[str, bytes, int], tuple[int, int]]:
        """Remove partitions. When this returns, no more of their records are delivered.

        A message that the application has in hand is not waited for, and never counts as finished.

        Returns:
            Positions up to which they are processed. Partitions that are not here are left out.
        """
        return {(stream, uuid, key.partition): self._feed.revoke(key) for key in self._here(uuid, partitions)}

    def positions(self) -> dict[tuple[str, bytes, int], tuple[int, int]]:
        """What the application has finished: by stream, uuid and partition, the next offset and its leader epoch.

        A message is finished when the next one is asked for. The epoch is that of the record before the offset, -1
        when it is not known. Partitions of which nothing was finished are where they were assigned.
        """
        return {(cursor.stream, *cursor.key): self._feed.finished(cursor.key) for cursor in self._feed.cursors()}

    async def _find(self, stream: str, uuid: bytes) -> StreamPlace:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _LOOK_S
        fresh = False
        while True:
            why: Exception | None = None
            try:
                place = await self._session.cluster.stream(stream, fresh=fresh)
            except (NodeUnavailableError, NoStreamError, AdminError) as error:
                why = error
            else:
                if place.uuid == uuid:
                    return place
            if loop.time() >= until_s:
                if isinstance(why, (NodeUnavailableError, AdminError)):
                    raise why
                raise StreamGoneError(f"stream {stream!r} was deleted, or deleted and created again") from why
            if fresh:
                await asyncio.sleep(_LOOK_PAUSE_S * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries
            fresh = True

    # -- steering

    def seek(self, stream: str, uuid: bytes, partition: int, offset: int) -> None:
        """Go on with a partition at an offset, which counts as its position from now on; ignored when it is not here.

        Raises:
            UsageError: it is no offset.
        """
        del stream
        check_offset(offset, "seek")
        for key in self._here(uuid, [partition]):
            self._feed.seek(key, Mark(offset, -1))

    def pause(self, stream: str, uuid: bytes, partitions: Sequence[int]) -> None:
        """Hand nothing out of these partitions until they are resumed; those that are not here are ignored."""
        del stream
        for key in self._here(uuid, partitions):
            self._feed.pause(key)

    def resume(self, stream: str, uuid: bytes, partitions: Sequence[int]) -> None:
        """Go on with paused partitions; those that are not here are ignored."""
        del stream
        for key in self._here(uuid, partitions):
            self._feed.resume(key)

    def position(self, stream: str, uuid: bytes, partition: int) -> int | None:
        """Return the offset after the last delivered message; None if the partition is not here."""
        del stream
        return next((self._feed.delivered(key).offset for key in self._here(uuid, [partition])), None)

    def mark(self, key: PartitionKey) -> Mark | None:
        """Return the position after the last delivered message; None if the partition is not here."""
        return self._feed.delivered(key) if self._feed.has(key) else None

    def lag(self) -> dict[tuple[str, bytes, int], int]:
        """Return the lag of each partition, as last reported by the nodes. Partitions without a report are left out."""
        lags = {(cursor.stream, *cursor.key): self._feed.lag(cursor.key) for cursor in self._feed.cursors()}
        return {key: lag for key, lag in lags.items() if lag is not None}

    def _here(self, uuid: bytes, partitions: Sequence[int]) -> list[PartitionKey]:
        return [key for key in (PartitionKey(uuid, number) for number in partitions) if self._feed.has(key)]
