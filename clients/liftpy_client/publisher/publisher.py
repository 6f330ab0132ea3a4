"""A publisher for many messages: it batches, keeps a window in flight, and retries without storing anything twice.

Messages for one subject and partition are collected for `linger_s` and sent as one batch envelope. The envelope carries
the publisher's id and a sequence, so a batch that is sent again is stored once. Batches of a partition are sent in
order. While no node answers, they wait for the oldest of them. Only a single batch that is lost or refused can be
stored after its successors.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Final, Self

from liftpy_client.connection.cancelling import end_tasks
from liftpy_client.errors import UsageError
from liftpy_client.publisher.delivery import BatchDelivery
from liftpy_client.publisher.outgoing import OutgoingBatch, PendingAck, as_table, by_partition, pieces_of
from liftpy_client.publisher.routes import find_route
from liftpy_envelope.errors import LiftError
from liftpy_envelope.headers import encode_header_block
from liftpy_envelope.limits import ENVELOPE_RECORDS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    import pyarrow as pa

    from liftpy_client.connection.session import Session
    from liftpy_client.publisher.ack_inbox import AckInbox
    from liftpy_client.publisher.options import PublisherOptions
    from liftpy_client.publisher.resender import Resender
    from liftpy_client.publisher.routes import Route
    from liftpy_client.tracing.interceptors import Interceptors

__all__ = ["Publisher"]

logger = logging.getLogger(__name__)

_ENVELOPE_BYTES: Final = 4_096  # room for everything in a payload that is not records
_RECORD_OVERHEAD_BYTES: Final = 16
_ROUTES_MAX: Final = 100_000


class Publisher:
    """Publishes messages in batches. Use it in an `async with`, or call `close`.

    Args:
        session: Connections and the cluster's metadata.
        inbox: Subscription on which acks arrive.
        resender: Sends batches until they are acknowledged.
        options: Options for batches, window and retries.
        stream: Stream whose acks count; by default the first that stores the subject.
        interceptors: What stands around each message.
    """

    def __init__(
        self,
        session: Session,
        inbox: AckInbox,
        resender: Resender,
        options: PublisherOptions,
        stream: str | None = None,
        interceptors: Interceptors | None = None,
    ) -> None:
        self._interceptors = interceptors
        self._session = session
        self._inbox = inbox
        self._options = options
        self._stream = stream
        self._delivery = BatchDelivery(resender, options, stream, secrets.token_bytes(16))
        self._sequence = 0
        self._routes: dict[str, Route] = {}
        self._gathering: dict[tuple[str, int | None], OutgoingBatch] = {}
        self._in_flight: set[asyncio.Task[None]] = set()
        self._unacked_bytes = 0  # gathered or in flight
        self._unacked_bytes_max = options.in_flight_bytes
        self._room = asyncio.Event()
        self._room.set()
        self._failure: LiftError | None = None
        self._failed_batches = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._inbox.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)):
            await self._close_soon()
            return
        try:
            await self.close()
        except LiftError as failure:
            if error is None:
                raise
            error.add_note(f"and the publisher failed: {failure}")

    async def publish(
        self,
        subject: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, str | Sequence[str]] | None = None,
    ) -> PendingAck:
        """Publish a message; returns as soon as it is on its way, and waits while too much is in flight.

        Args:
            subject: a literal subject that a stream stores.
            value: payload; None is a tombstone.
            key: of the record.
            headers: NATS headers. One with several values has a list of them.

        Raises:
            NoStreamError: no stream stores the subject.
            UsageError: the message is too large, or the publisher closed.
        """
        route = self._routes.get(subject)
        if route is None:
            route = await self._find_route(subject)
        if not self._room.is_set():
            await self._wait_for_room()
        sent = headers
        if self._interceptors:
            with self._interceptors.publishing(subject, headers) as sent:
                pass  # the message is only gathered here
        block = None if sent is None else encode_header_block(sent)
        size = len(value or b"") + len(key or b"") + len(block or b"") + _RECORD_OVERHEAD_BYTES
        place = (subject, route.partition(key))
        batch = self._gathering.get(place)
        if batch is not None and batch.size + size > batch.size_max:
            self._send(batch)
            batch = None
        if batch is None:
            batch = self._begin(route, place, size)
        index = batch.count
        batch.values.append(value)
        batch.keys.append(key)
        batch.headers.append(block)
        batch.count = index + 1
        batch.size += size
        self._unacked_bytes += size
        if self._unacked_bytes >= self._unacked_bytes_max:
            self._room.clear()
        if batch.size >= batch.size_max:
            self._send(batch)
        return PendingAck(batch, index)

    async def publish_batch(
        self, subject: str, records: pa.RecordBatch | pa.Table | Mapping[str, pa.Array]
    ) -> list[PendingAck]:
        """Publish Arrow records: columns `value` and, where wanted, `key` and `headers` (NATS header blocks).

        Args:
            subject: a literal subject that a stream stores.
            records: columns of binary or string type.

        Returns:
            For each batch that left, the ack of its last record.

        Raises:
            NoStreamError: no stream stores the subject.
            UsageError: the columns are not as they must be.
        """
        route = self._routes.get(subject) or await self._find_route(subject)
        limit = self._size_max(route)
        shares = by_partition(route, as_table(records))
        pieces = [(partition, piece) for partition, share in shares for piece in pieces_of(share, limit)]
        acks = []
        for partition, piece in pieces:
            if not self._room.is_set():
                await self._wait_for_room()
            waiting = self._gathering.get((subject, partition))
            if waiting is not None:
                self._send(waiting)
            batch = OutgoingBatch(route, partition, asyncio.get_running_loop().create_future(), limit)
            batch.take(piece)
            self._unacked_bytes += batch.size
            if self._unacked_bytes >= self._unacked_bytes_max:
                self._room.clear()
            self._dispatch(batch)
            acks.append(PendingAck(batch, batch.count - 1))
        return acks

    async def _wait_for_room(self) -> None:
        """Wait until less is unacknowledged; those who waited go on one after the other, each looking again."""
        while not self._room.is_set():
            self._send_gathered()
            await self._room.wait()
        if self._closed:
            raise UsageError("the publisher was closed while a message waited to be sent")

    def _size_max(self, route: Route) -> int:
        """The size at which a batch leaves: NATS and the stream take no larger one."""
        return min(
            self._options.batch_bytes,
            self._session.nats.max_payload - _ENVELOPE_BYTES,
            route.config.message_bytes_max,
            ENVELOPE_RECORDS_MAX * _RECORD_OVERHEAD_BYTES,
        )

    async def _find_route(self, subject: str) -> Route:
        if self._closed:
            raise UsageError("the publisher is closed")
        await self._inbox.open()
        route = await find_route(self._session.cluster, subject, self._stream)
        if len(self._routes) >= _ROUTES_MAX:
            self._routes.clear()
        self._routes[subject] = route
        return route

    def _begin(self, route: Route, place: tuple[str, int | None], size: int) -> OutgoingBatch:
        """A batch that gathers messages, the first of them of `size` bytes."""
        limit = self._session.nats.max_payload - _ENVELOPE_BYTES
        if size > limit:
            raise UsageError(f"a message of {size} bytes exceeds max_payload of the NATS server ({limit})")
        loop = asyncio.get_running_loop()
        batch = self._gathering[place] = OutgoingBatch(route, place[1], loop.create_future(), self._size_max(route))
        batch.timer = loop.call_later(self._options.linger_s, self._send, batch)
        return batch

    def _send(self, batch: OutgoingBatch) -> None:
        """Let a batch leave that was being gathered."""
        if batch.timer is not None:
            batch.timer.cancel()
        self._gathering.pop((batch.route.subject, batch.partition), None)
        self._dispatch(batch)

    def _dispatch(self, batch: OutgoingBatch) -> None:
        sequence, self._sequence = self._sequence, self._sequence + 1
        task = asyncio.create_task(self._deliver(batch, sequence))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def _deliver(self, batch: OutgoingBatch, sequence: int) -> None:
        try:
            batch.done.set_result(await self._delivery.deliver(batch, sequence))
        except asyncio.CancelledError:
            batch.done.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait for the batch must hear of it
            self._fail(batch, error)
        finally:
            self._unacked_bytes -= batch.size
            if self._unacked_bytes < self._unacked_bytes_max:
                self._room.set()

    def _fail(self, batch: OutgoingBatch, error: Exception) -> None:
        if not isinstance(error, LiftError):
            cause, error = error, UsageError(f"a batch for {batch.route.subject!r} cannot be sent: {error}")
            error.__cause__ = cause
        self._routes.pop(batch.route.subject, None)  # the stream may be another one by now
        self._failure = self._failure or error
        self._failed_batches += 1
        batch.done.set_exception(error)
        batch.done.exception()  # told by `flush`, whether or not anyone awaits the ack

    async def flush(self) -> None:
        """Send what was gathered, and wait until all of it is acknowledged.

        Raises:
            LiftError: something since the last flush was not acknowledged; the first failure is raised.
        """
        self._send_gathered()
        if self._in_flight:
            await asyncio.wait(set(self._in_flight))
        self._raise_failures()

    def _send_gathered(self) -> None:
        for batch in list(self._gathering.values()):
            self._send(batch)

    def _raise_failures(self) -> None:
        failure, count = self._failure, self._failed_batches
        self._failure, self._failed_batches = None, 0
        if failure is not None:
            if count > 1:
                failure.add_note(f"and {count - 1} more batches failed")
            raise failure

    async def close(self) -> None:
        """Flush, and take no more messages.

        Raises:
            LiftError: see `flush`.
        """
        self._closed = True
        self._routes.clear()
        self._send_gathered()
        while self._in_flight:
            await asyncio.wait(self._in_flight)
        self._raise_failures()

    async def _close_soon(self) -> None:
        """Close after an interruption: what is sound is delivered at once, and the rest is not waited for long."""
        try:
            async with asyncio.timeout(self._options.ack_timeout_s):
                await self.close()
        except (LiftError, TimeoutError) as failure:
            logger.warning(
                "a publisher was interrupted while %d bytes of messages had no ack; they may be stored or not: %s",
                self._unacked_bytes,
                str(failure) or "no time was left",
            )
        finally:
            await end_tasks(self._in_flight)
