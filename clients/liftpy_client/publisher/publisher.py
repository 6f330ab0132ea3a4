"""A publisher for many messages: it batches, keeps a window in flight, and retries without storing anything twice.

Messages for one subject and partition are collected for `linger_s` and sent as one batch envelope. A message whose key
is in the batch of another subject lets that batch leave first, so that messages of a key are sent in their order. The
envelope carries the publisher's id and a sequence, so a batch that is sent again is stored once. Batches of a partition
are sent in order. While no node answers, they wait for the oldest of them. Only a single batch that is lost or refused
can be stored after its successors.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Final, Self

from liftpy_client.connection.cancelling import end_tasks
from liftpy_client.errors import DisconnectedError, UsageError
from liftpy_client.publisher.delivery import BatchDelivery, OutgoingMessage, as_bytes
from liftpy_client.publisher.outgoing import OutgoingBatch, PendingAck, as_table, by_partition, pieces_of
from liftpy_client.publisher.routes import find_route
from liftpy_envelope.errors import LiftError
from liftpy_envelope.headers import Headers, check_record_headers, encode_header_block
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
_LOG_S: Final = 10.0
_COLUMNS: Final = ("value", "key", "headers")


class Publisher:
    """Publishes messages in batches. Use it in an `async with`, or call `close`.

    Args:
        session: Connections and the cluster's metadata.
        inbox: Subscription on which acks arrive.
        resender: Sends batches until they are acknowledged.
        options: Options for batches, window and retries.
        stream: Stream whose acks count; by default the first that stores the subject.
        interceptors: Hooks around each message.
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
        self._first_subject: str | None = None
        self._has_several = False  # subjects, so far; before that, nothing is noted of keys
        self._of_key: dict[bytes, OutgoingBatch] = {}  # that is gathered, where there are several subjects
        self._in_flight: set[asyncio.Task[None]] = set()
        self._unacked_bytes = 0  # gathered or in flight
        self._unacked_bytes_max = options.in_flight_bytes
        self._room = asyncio.Event()
        self._room.set()
        self._failed: list[OutgoingBatch] = []  # since somebody was told
        self._failed_batches = 0
        self._logged_s = float("-inf")
        self._closed = False
        session.publishing.add(self)

    async def __aenter__(self) -> Self:
        await self._inbox.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)):
            await self.close_within(self._options.ack_timeout_s)
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
            subject: A literal subject that a stream stores.
            value: Payload; None is a tombstone.
            key: Key of the record.
            headers: NATS headers. One with several values has a list of them.

        Raises:
            NoStreamError: no stream stores the subject.
            UsageError: the message is too large or not bytes, or the publisher closed.
            HeaderError: a header cannot be written, or asks for what a batch cannot do.
            LiftError: An earlier message was not delivered, and no call has raised that yet. This message was not
                accepted.
        """
        if type(value) is not bytes:
            value = as_bytes("value", value)
        if type(key) is not bytes:
            key = as_bytes("key", key)
        route = self._routes.get(subject)
        if route is None or self._failed or not self._room.is_set():
            route = await self._admit(subject)
        if self._interceptors:
            with self._interceptors.publishing(subject, headers) as sent:
                headers = sent  # the message is only gathered here
        if not self._options.envelope:
            return self._send_plain(route, value, key, headers)
        block = None if headers is None else _block(headers)
        size = len(value or b"") + len(key or b"") + len(block or b"") + _RECORD_OVERHEAD_BYTES
        batch = self._batch_for(route, key, size)
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

    def _batch_for(self, route: Route, key: bytes | None, size: int) -> OutgoingBatch:
        """The batch for a message of `size` bytes. That of another subject which has its key leaves first."""
        place = (route.subject, route.partition(key))
        batch = self._gathering.get(place)
        if batch is not None and batch.size + size > batch.size_max:
            self._send(batch)
            batch = None
        if key is None or not self._has_several:
            return batch or self._begin(route, place, size)
        other = self._of_key.get(key)
        if other is not None and other is not batch:
            self._send(other)
        batch = self._of_key[key] = batch or self._begin(route, place, size)
        return batch

    async def _admit(self, subject: str) -> Route:
        """Tell of a failure, find the route, and wait for room."""
        if self._failed:
            self._tell_failure()
        route = self._routes.get(subject) or await self._find_route(subject)
        if not self._room.is_set():
            await self._wait_for_room()
            route = self._routes.get(subject, route)
        return route

    async def publish_batch(
        self, subject: str, records: pa.RecordBatch | pa.Table | Mapping[str, pa.Array]
    ) -> list[PendingAck]:
        """Publish Arrow records: columns `value` and, where wanted, `key` and `headers` (NATS header blocks).

        Args:
            subject: A literal subject that a stream stores.
            records: Columns of binary or string type.

        Returns:
            For each batch that left, the ack of its last record.

        Raises:
            NoStreamError: no stream stores the subject.
            UsageError: the columns are not as they must be.
        """
        if self._failed:
            self._tell_failure()
        table = as_table(records)
        route = self._routes.get(subject) or await self._find_route(subject)
        if not self._options.envelope:
            return await self._publish_rows(subject, table)
        limit = self._size_max(route)
        shares = by_partition(route, table)
        pieces = [(partition, piece) for partition, share in shares for piece in pieces_of(share, limit)]
        acks = []
        for partition, piece in pieces:
            if not self._room.is_set():
                await self._wait_for_room()
            for waiting in list(self._gathering.values()):
                if waiting.partition == partition:  # whatever its subject: keys keep their order
                    self._send(waiting)
            batch = OutgoingBatch(route, partition, asyncio.get_running_loop().create_future(), limit)
            batch.take(piece)
            acks.append(self._dispatch_whole(batch))
        return acks

    def _dispatch_whole(self, batch: OutgoingBatch, message: OutgoingMessage | None = None) -> PendingAck:
        """Let a batch leave that was never gathered."""
        self._unacked_bytes += batch.weight
        if self._unacked_bytes >= self._unacked_bytes_max:
            self._room.clear()
        self._dispatch(batch, message)
        return PendingAck(batch, batch.count - 1)

    def _send_plain(
        self, route: Route, value: bytes | None, key: bytes | None, headers: Mapping[str, str | Sequence[str]] | None
    ) -> PendingAck:
        """Let a message leave as it is, without an envelope."""
        message = OutgoingMessage(value, key=key, headers=headers, ack_policy=self._options.ack_policy)
        message.check_plain(route)
        size = len(value or b"") + len(key or b"") + _RECORD_OVERHEAD_BYTES
        batch = OutgoingBatch(route, route.partition(key), asyncio.get_running_loop().create_future(), size)
        batch.count, batch.size = 1, size
        return self._dispatch_whole(batch, message)

    async def _publish_rows(self, subject: str, table: pa.Table) -> list[PendingAck]:
        """Publish records one by one."""
        names = table.column_names
        columns = [table.column(name).to_pylist() if name in names else [None] * len(table) for name in _COLUMNS]
        acks = []
        for value, key, block in zip(*columns, strict=True):
            headers = None if block is None else Headers(block)
            acks.append(await self.publish(subject, value, key=key, headers=headers))
        return acks

    async def _wait_for_room(self) -> None:
        """Wait until less is unacknowledged; those who waited go on one after the other, each looking again."""
        while not self._room.is_set():
            self._send_gathered()
            await self._room.wait()
        self._check_open()
        if self._failed:
            self._tell_failure()

    def _check_open(self) -> None:
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
        self._check_open()
        if self._first_subject is None:
            self._first_subject = subject
        elif subject != self._first_subject and not self._has_several:
            self._has_several = True
            self._send_gathered()  # of its keys nothing was noted
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
        self._unacked_bytes += batch.weight  # what each message takes is added with it
        batch.timer = loop.call_later(self._options.linger_s, self._send, batch)
        return batch

    def _send(self, batch: OutgoingBatch) -> None:
        """Let a batch leave that was being gathered."""
        if batch.timer is not None:
            batch.timer.cancel()
        self._gathering.pop((batch.route.subject, batch.partition), None)
        if self._of_key:
            for key in batch.keys:
                if key is not None and self._of_key.get(key) is batch:
                    del self._of_key[key]
        self._dispatch(batch)

    def _dispatch(self, batch: OutgoingBatch, message: OutgoingMessage | None = None) -> None:
        sequence, self._sequence = self._sequence, self._sequence + 1
        task = asyncio.create_task(self._deliver(batch, sequence, message))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def _deliver(self, batch: OutgoingBatch, sequence: int, message: OutgoingMessage | None) -> None:
        try:
            batch.done.set_result(await self._delivery.deliver(batch, sequence, message))
        except asyncio.CancelledError:
            batch.done.set_exception(
                DisconnectedError("the publisher was closed before the ack came; the message may be stored or not")
            )
            batch.done.exception()  # logged by whoever closed
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait for the batch must hear of it
            self._fail(batch, error)
        finally:
            self._unacked_bytes -= batch.weight
            if self._unacked_bytes < self._unacked_bytes_max:
                self._room.set()

    def _fail(self, batch: OutgoingBatch, error: Exception) -> None:
        if not isinstance(error, LiftError):
            cause, error = error, UsageError(f"a batch for {batch.route.subject!r} cannot be sent: {error}")
            error.__cause__ = cause
        self._routes.pop(batch.route.subject, None)  # the stream may be another one by now
        batch.done.set_exception(error)
        batch.done.exception()  # told below, whether or not anyone awaits the ack
        if self._options.on_error is not None:
            try:
                self._options.on_error(error)
            except Exception:
                logger.exception("on_error of a publisher raised, while it was told: %s", error)
            return
        batch.release()
        self._failed.append(batch)
        self._failed_batches += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s >= _LOG_S:
            self._logged_s = now_s
            logger.warning("%d batches of a publisher were not delivered: %s", self._failed_batches, error)

    def _tell_failure(self) -> None:
        """Raise the first failure of which nobody was told: neither here, nor whoever awaited an ack of the batch."""
        failed, self._failed = self._failed, []
        untold = [batch for batch in failed if not batch.is_told]
        failure = untold[0].done.exception() if untold else None
        if failure is not None:
            if len(untold) > 1:
                failure.add_note(f"and {len(untold) - 1} more batches failed")
            raise failure

    async def flush(self) -> None:
        """Send what was gathered, and wait until all of it is acknowledged.

        Raises:
            LiftError: A batch was not delivered, and nobody was told: neither by a call before, nor by an awaited ack.
                The first failure is raised.
        """
        self._send_gathered()
        if self._in_flight:
            await asyncio.wait(set(self._in_flight))
        self._tell_failure()

    def _send_gathered(self) -> None:
        for batch in list(self._gathering.values()):
            self._send(batch)

    async def close(self) -> None:
        """Flush, and take no more messages.

        Raises:
            LiftError: see `flush`.
        """
        self._closed = True
        self._session.publishing.discard(self)
        self._routes.clear()
        self._send_gathered()
        while self._in_flight:
            await asyncio.wait(self._in_flight)
        self._tell_failure()

    async def close_within(self, timeout_s: float) -> None:
        """Close because of an interruption, or with the connection. What has no ack in time is logged."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.close()
        except (LiftError, TimeoutError) as failure:
            logger.warning(
                "a publisher was closed while %d bytes of messages had no ack; they may be stored or not: %s",
                self._unacked_bytes,
                str(failure) or f"there was none in {timeout_s:g} s",
            )
        finally:
            await end_tasks(self._in_flight)


def _block(headers: Mapping[str, str | Sequence[str]]) -> bytes:
    """The header block of a message in a batch."""
    block = encode_header_block(headers)
    check_record_headers(block)
    return block
