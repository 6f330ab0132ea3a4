"""The sink's own connection to a cluster: it publishes chunks with ids of the sink's choosing, and reads batch headers.

It lives in an event loop in a thread of its own, for as long as one task or one commit takes.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from liftpy_bucket.layout import PartitionPath
from liftpy_client.client import connect_as
from liftpy_client.connection.nats_options import NatsOptions
from liftpy_client.connection.session import Session
from liftpy_client.consumer.fetcher import Fetcher
from liftpy_client.consumer.options import ConsumeOptions
from liftpy_client.consumer.prefetch import PrefetchBuffer
from liftpy_client.consumer.start_finder import StartFinder
from liftpy_client.errors import NodeUnavailableError, OffsetLostError, StreamGoneError, UnreachableError
from liftpy_client.publisher.ack_inbox import AckInbox
from liftpy_client.publisher.delivery import BatchDelivery
from liftpy_client.publisher.options import PublisherOptions
from liftpy_client.publisher.outgoing import OutgoingBatch
from liftpy_client.publisher.resender import Resender
from liftpy_client.publisher.routes import find_route
from liftpy_client.sync.background import BackgroundLoop
from liftpy_envelope.errors import LiftError
from liftpy_envelope.stream_config import AckMode
from liftpy_envelope.subject import matches
from liftpy_spark.connections import nats_failure
from liftpy_spark.sink.bucket_look import look_in_bucket
from liftpy_spark.sink.log_scan import LogScan
from liftpy_spark.sink.referring import Referring
from liftpy_spark.sink.target import ChunkRange, ChunkScan, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping
    from typing import Any, TypeVar

    from liftpy_bucket.staging.section import RowChunk, Section
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_client.client import Lift
    from liftpy_client.connection.cluster import StreamPlace
    from liftpy_client.consumer.positions import Position
    from liftpy_client.publisher.routes import Route
    from liftpy_envelope.ack import AckPolicy
    from liftpy_envelope.batch import BatchHeader
    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_spark.options.connection import ConnectionOptions

    T = TypeVar("T")

__all__ = ["SinkLink", "StreamTarget", "open_link"]

logger = logging.getLogger(__name__)

_SETTLE_S: Final = 15.0
_NAME: Final = "liftpy spark sink"
_SHARE_OF_WINDOW: Final = 0.4  # a look's age and a delivery together stay within the window in which ids are known
_DELIVERY_S_MAX: Final = 60.0
_ROUTES_MAX: Final = 100_000
_LOOKS_MAX: Final = 20
_STAGED_LEVEL: Final = 2  # of nodes: all that have it know messages that say where rows are staged
_LEADER_PAUSE_S: Final = 0.25


class SinkLink:
    """A connection. Made by `open_link`.

    Args:
        loop: Where everything runs.
        lift: The connection.
        options: How it was made.
    """

    def __init__(self, loop: BackgroundLoop, lift: Lift, options: NatsOptions) -> None:
        self._loop = loop
        self._lift = lift
        self._options = options

    @property
    def payload_bytes_max(self) -> int:
        """How large a message NATS takes."""
        return self._lift.nats.max_payload

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the link's loop, and wait for it."""
        return self._loop.run(coroutine)

    def target(
        self,
        stream: str,
        uuid: str,
        window_s: float,
        ack_policy: AckPolicy | None,
        store: ObjectStore | None = None,
        *,
        leaders_read: bool = False,
    ) -> StreamTarget:
        """A stream to write to; see `StreamTarget`."""

        def make() -> StreamTarget:
            options = self._options
            return StreamTarget(
                self._lift, options, stream, uuid, window_s, ack_policy, store, leaders_read=leaders_read
            )

        return self._loop.call(make)


@contextmanager
def open_link(connection: ConnectionOptions) -> Iterator[SinkLink]:
    """Connect for as long as the `with` lasts.

    Raises:
        NatsError: NATS can not be reached from here.
        ConfigError: an option can not be used.
    """
    options = NatsOptions.resolve(context=connection.context, url=connection.servers, creds=connection.credentials_file)

    async def connect() -> Lift:
        return await connect_as(options, name=_NAME)

    loop = BackgroundLoop(_NAME)
    try:
        try:
            lift = loop.run(connect())
        except UnreachableError as error:
            raise nats_failure(error) from None
        try:
            yield SinkLink(loop, lift, options)
        finally:
            loop.run(lift.close())
    finally:
        loop.close()


class _Held(NamedTuple):
    """Where a partition has its records.

    Attributes:
        log_start: The first offset.
        local_start: The first one on the disk of its leader.
    """

    log_start: int
    local_start: int


class StreamTarget(Target):
    """A stream that is written to.

    Args:
        lift: The connection.
        options: How it was made.
        stream: Name of the stream.
        uuid: UUID of the stream, in hexadecimal.
        window_s: Time for which the stream's nodes know ids, seconds.
        ack_policy: When a chunk counts as published; None leaves it to the stream.
        store: The bucket of the nodes; None where nobody looks for chunks, or only in logs.
        leaders_read: Whether leaders are to read rows from where they are staged.
    """

    def __init__(
        self,
        lift: Lift,
        options: NatsOptions,
        stream: str,
        uuid: str,
        window_s: float,
        ack_policy: AckPolicy | None,
        store: ObjectStore | None = None,
        *,
        leaders_read: bool = False,
    ) -> None:
        self.look_age_max_s = window_s * _SHARE_OF_WINDOW
        self.settle_s = _SETTLE_S
        self._lift = lift
        self._stream = stream
        self._uuid = uuid
        self._store = store
        self._session = Session(lift.nats, options, _NAME)
        self._inbox = AckInbox(lift.nats)
        self._resender = Resender(self._session, self._inbox)
        self._options = PublisherOptions(
            delivery_timeout_s=min(self.look_age_max_s, _DELIVERY_S_MAX) if window_s else _DELIVERY_S_MAX,
            ack_policy=ack_policy,
        )
        self._referring = Referring(self._resender, self._options, stream, is_on=leaders_read)
        self._others: list[str] | None = None  # what other streams store of it; None until somebody asked
        self._asking = asyncio.Lock()
        self._routes: dict[str, Route] = {}
        self._epochs: dict[int, int] = {}  # of the leaders that were asked for the ends

    async def ends(self) -> list[int]:
        """The offset after the last committed record, of every partition; see `Target`.

        Raises:
            StreamGoneError: the stream is not there any more.
        """
        finder = StartFinder(self._session, "new", "latest", None, ConsumeOptions())
        place, positions = await finder.find(self._stream)
        self._check(place)
        self._epochs = finder.epochs
        return [positions[number].offset for number in range(place.config.partitions)]

    async def epoch_ends(self, epochs: Mapping[int, int]) -> dict[int, int]:
        """Where the log of a partition left a leader epoch; see `Target`. Asked only where the leader changed."""
        left = {number: epoch for number, epoch in epochs.items() if self._epochs.get(number, epoch) != epoch}
        return await self._lift.epoch_ends(self._stream, left) if left else {}

    def _check(self, place: StreamPlace) -> None:
        if place.uuid.hex() != self._uuid:
            raise StreamGoneError(f"stream {self._stream!r} was deleted and created again while it was written to")

    async def publish(self, chunk: RowChunk, producer_id: bytes, sequence: int) -> ChunkRange:
        """Publish a chunk, and wait until it is acknowledged; see `Target`."""
        route = await self._route(chunk.subject)
        partition = None if route.config.partitions == 1 else chunk.partition
        batch = OutgoingBatch(route, partition, asyncio.get_running_loop().create_future(), 0)
        batch.take(pa.Table.from_batches([chunk.records]))
        delivery = BatchDelivery(self._resender, self._options, self._stream, producer_id)
        ack = await delivery.deliver(batch, sequence)
        return ChunkRange(ack.offset + 1 - chunk.records.num_rows, ack.offset + 1, ack.epoch)

    async def _route(self, subject: str) -> Route:
        route = self._routes.get(subject)
        if route is None:
            await self._inbox.open()
            route = await find_route(self._session.cluster, subject, self._stream)
            if len(self._routes) >= _ROUTES_MAX:
                self._routes.clear()
            self._routes[subject] = route
        return route

    def suits(self, section: Section) -> bool:
        """See `Target`."""
        return self._referring.suits(section)

    async def refers(self, section: Section, chunk: int) -> bool:
        """See `Target`."""
        if not self.suits(section):
            return False
        subject = section.subjects[chunk]
        others = await self._other_patterns((await self._route(subject)).config)
        return self.suits(section) and not any(matches(other, subject) for other in others)

    async def _other_patterns(self, config: StreamConfig) -> list[str]:
        """What other streams store of the subjects of this one: they would not get what its leaders read.

        Asked once, as is whether there are nodes that do not know such messages where they could not say so.
        """
        async with self._asking:
            if self._others is None:
                try:
                    self._others = await self._ask_others(config)
                except LiftError as error:  # an older node, or no permission to ask, or too many for an answer
                    self._referring.give_up(f"whether leaders can read it is not known: {error}")
                    self._others = []
            return self._others

    async def _ask_others(self, config: StreamConfig) -> list[str]:
        if config.acks is not AckMode.REPLY or config.keep_replies:
            older = [node["node_id"] for node in await self._lift.nodes() if node.get("level", 0) < _STAGED_LEVEL]
            if older:
                self._referring.give_up(f"nodes have an older version: {', '.join(older)}", logging.INFO)
                return []
        streams = await self._session.cluster.overlapping(config.subject)
        return [other for name, other in streams.items() if name != self._stream]

    async def refer(
        self, section: Section, directory: str | None, chunk: int, producer_id: bytes, sequence: int
    ) -> ChunkRange | None:
        """See `Target`."""
        route = await self._route(section.subjects[chunk])
        ack = await self._referring.deliver(route, section, directory, chunk, producer_id, sequence)
        return None if ack is None else ChunkRange(ack.offset + 1 - ack.count, ack.offset + 1, ack.epoch)

    async def look(self, partition: int, start: int, producer_id: bytes, stop: int | None = None) -> ChunkScan:
        """Read the ids of batches, in the bucket and then in the log; see `Target`."""
        at, doubt = start, ""
        sequences: frozenset[int] = frozenset()
        for _ in range(_LOOKS_MAX):
            held = await self._held(partition)
            if held.log_start > at:
                doubt = doubt or f"its records before offset {held.log_start} are gone by retention or a purge"
                at = held.log_start
            below = held.local_start if stop is None else min(held.local_start, stop)
            if below > at:
                scan = await self._look_in_bucket(partition, at, below, producer_id)
                at, sequences, doubt = below, sequences | scan.sequences, doubt or scan.doubt
            if stop is not None and at >= stop:
                return ChunkScan(stop, sequences, doubt)
            try:
                scan = await self._read(partition, at, producer_id, stop)
            except OffsetLostError as error:
                if error.log_start <= at:
                    return ChunkScan(error.log_end, sequences, doubt)  # the log ends before: a restore has cut it
                continue
            if (await self._held(partition)).local_start <= at:
                return ChunkScan(scan.end, sequences | scan.sequences, doubt or scan.doubt)
            # It moved: some of what was read came from the bucket, and batches that nodes make of rows have no ids.
        raise NodeUnavailableError(
            f"the log of {self._stream} partition {partition} is dropped quicker than it is read"
        )

    async def _look_in_bucket(self, partition: int, start: int, end: int, producer_id: bytes) -> ChunkScan:
        if self._store is None:
            doubt = f"its records before offset {end} are no longer on the disk of its leader"
            return ChunkScan(end, frozenset(), doubt)
        path = PartitionPath(self._uuid, partition)
        return await asyncio.to_thread(look_in_bucket, self._store, path, start, end, producer_id)

    async def _held(self, partition: int) -> _Held:
        """From where on a partition has records, and from where on its leader has them."""
        for _ in range(_LOOKS_MAX):
            info = await self._lift.stream_info(self._stream)
            details = info.partitions[partition]
            if details.log_start is not None and details.local_start is not None:
                return _Held(details.log_start, details.local_start)
            await asyncio.sleep(_LEADER_PAUSE_S)
        raise NodeUnavailableError(f"the leader of {self._stream} partition {partition} does not answer")

    async def _read(self, partition: int, start: int, producer_id: bytes, until: int | None) -> ChunkScan:
        options = ConsumeOptions()
        finder = StartFinder(
            self._session, {partition: start}, "latest" if until is None else until, [partition], options
        )
        place, positions = await finder.find(self._stream)
        self._check(place)
        stop = positions[partition].stop
        assert stop is not None, "it was asked for"
        scan = LogScan(start, producer_id)
        await self._headers(place, positions, options, scan.see)
        return scan.result(max(start, stop))

    async def _headers(
        self,
        place: StreamPlace,
        positions: dict[int, Position],
        options: ConsumeOptions,
        see: Callable[[BatchHeader], None],
    ) -> None:
        """Go through the batches up to the stop."""
        buffer = PrefetchBuffer(options.prefetch_bytes)
        buffer.add_source()
        fetching = asyncio.create_task(Fetcher(self._session, place, positions, buffer, options).run())
        try:
            while (fetched := await buffer.take()) is not None:
                for batch in fetched.batches:
                    see(batch.header)
        finally:
            buffer.close()
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
