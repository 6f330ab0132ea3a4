"""A publisher for many messages: batches, a window in flight, retries that store nothing twice.

Messages for one subject and partition are gathered for `linger_s` and leave as one batch envelope, which carries the
publisher's id and a sequence: a batch whose ack is late is sent again as it was, and the node stores it once. Batches
of one subject leave in order; only a retry can put one behind its successors.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from liftpy_client.errors import PublishTimeoutError, UsageError
from liftpy_client.routes import Route, find_route
from liftpy_envelope.ack import Ack, PublishRefusedError
from liftpy_envelope.envelope import encode_batch
from liftpy_envelope.errors import AckErrorCode, LiftError
from liftpy_envelope.headers import encode_header_block

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from types import TracebackType

    from liftpy_client.ack_inbox import AckInbox
    from liftpy_client.session import Session
    from liftpy_envelope.ack import AckPolicy

__all__ = ["PendingAck", "Publisher", "PublisherOptions"]

logger = logging.getLogger(__name__)

_ENVELOPE_BYTES: Final = 4_096  # room for everything in a payload that is not records
_RECORD_OVERHEAD_BYTES: Final = 16
_RETRY_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherOptions:
    """How a publisher gathers and sends.

    Attributes:
        linger_s: longest time a message waits for company.
        batch_bytes: size at which a batch leaves; never more than NATS takes.
        in_flight_bytes: while so much is not acknowledged, publishing waits.
        ack_timeout_s: an ack later than that makes the batch be sent again.
        delivery_timeout_s: how long to go on trying.
        ack_policy: overrides that of the stream.
    """

    linger_s: float = 0.005
    batch_bytes: int = 512 * 1024
    in_flight_bytes: int = 16 * 1024 * 1024
    ack_timeout_s: float = 5.0
    delivery_timeout_s: float = 60.0
    ack_policy: AckPolicy | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("linger_s", 0, 60),
            ("batch_bytes", 1, 2**26),
            ("in_flight_bytes", 1, 2**32),
            ("ack_timeout_s", 0.01, 3_600),
            ("delivery_timeout_s", 0.01, 86_400),
        ):
            if not low <= getattr(self, name) <= high:
                raise UsageError(f"{name} must be between {low} and {high}, not {getattr(self, name)}")


class PendingAck:
    """The ack of one message, to be awaited; it need not be, since `flush` and `close` tell of every failure."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: _Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[Any, None, Ack]:
        return self._wait().__await__()

    async def _wait(self) -> Ack:
        ack = await asyncio.shield(self._batch.done)
        behind = self._batch.count - 1 - self._index
        return Ack(
            stream=ack.stream,
            offset=ack.offset - behind,
            partition=ack.partition,
            epoch=ack.epoch,
            duplicate=ack.duplicate,
        )


class _Batch:
    """Messages of one subject and partition on their way."""

    __slots__ = (
        "count",
        "done",
        "headers",
        "keys",
        "partition",
        "payload",
        "route",
        "size",
        "timer",
        "values",
    )

    def __init__(self, route: Route, partition: int | None, done: asyncio.Future[Ack]) -> None:
        self.route = route
        self.partition = partition
        self.done = done
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: list[bytes | None] = []
        self.size = 0
        self.count = 0
        self.timer: asyncio.TimerHandle | None = None
        self.payload: dict[str, pa.Array] | None = None

    def columns(self) -> dict[str, pa.Array]:
        """The records; what no message has is left out."""
        if self.payload is not None:
            return self.payload
        columns = {"value": pa.array(self.values, pa.binary())}
        if any(key is not None for key in self.keys):
            columns["key"] = pa.array(self.keys, pa.binary())
        if any(self.headers):
            columns["headers"] = pa.array(self.headers, pa.binary())
        return columns


class Publisher:
    """See the module. Use it in an `async with`, or call `close`.

    Args:
        session: connections and the cluster's metadata.
        inbox: where acks come back.
        options: how to gather and send.
        stream: the stream whose acks count; by default the first that stores the subject.
    """

    def __init__(self, session: Session, inbox: AckInbox, options: PublisherOptions, stream: str | None = None) -> None:
        self._session = session
        self._inbox = inbox
        self._options = options
        self._stream = stream
        self._producer_id = secrets.token_bytes(16)
        self._sequence = 0
        self._routes: dict[str, Route] = {}
        self._gathering: dict[tuple[str, int | None], _Batch] = {}
        self._in_flight: set[asyncio.Task[None]] = set()
        self._in_flight_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._errors: list[LiftError] = []
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._inbox.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def publish(
        self,
        subject: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PendingAck:
        """Publish a message; returns as soon as it is on its way, and waits while too much is in flight.

        Args:
            subject: a literal subject that a stream stores.
            value: payload; None is a tombstone.
            key: of the record.
            headers: NATS headers.

        Raises:
            NoStreamError: no stream stores the subject.
            UsageError: the message is too large, or the publisher closed.
        """
        route = self._routes.get(subject)
        if route is None:
            route = await self._find_route(subject)
        if not self._room.is_set():
            await self._room.wait()
        block = None if headers is None else encode_header_block(headers)
        size = len(value or b"") + len(key or b"") + len(block or b"") + _RECORD_OVERHEAD_BYTES
        place = (subject, route.partition(key))
        batch = self._gathering.get(place)
        limit = self._batch_bytes
        if batch is not None and batch.size + size > limit:
            self._send(batch)
            batch = None
        if batch is None:
            if size > limit:
                self._check_size(size)
            batch = self._begin(route, place)
        index = batch.count
        batch.values.append(value)
        batch.keys.append(key)
        batch.headers.append(block)
        batch.count = index + 1
        batch.size += size
        if batch.size >= limit:
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
        table = _as_table(records)
        acks = []
        for partition, share in _by_partition(route, table):
            for piece in _pieces(share, self._batch_bytes):
                if not self._room.is_set():
                    await self._room.wait()
                waiting = self._gathering.get((subject, partition))
                if waiting is not None:
                    self._send(waiting)
                batch = _Batch(route, partition, asyncio.get_running_loop().create_future())
                batch.payload = {name: piece.column(name).combine_chunks() for name in piece.column_names}
                batch.count, batch.size = piece.num_rows, piece.nbytes
                self._dispatch(batch)
                acks.append(PendingAck(batch, batch.count - 1))
        return acks

    @property
    def _batch_bytes(self) -> int:
        return min(self._options.batch_bytes, self._session.nats.max_payload - _ENVELOPE_BYTES)

    def _check_size(self, size: int) -> None:
        limit = self._session.nats.max_payload - _ENVELOPE_BYTES
        if size > limit:
            raise UsageError(f"a message of {size} bytes is over what the NATS server takes ({limit})")

    async def _find_route(self, subject: str) -> Route:
        if self._closed:
            raise UsageError("the publisher is closed")
        await self._inbox.open()
        route = await find_route(self._session.cluster, subject, self._stream)
        if len(self._routes) >= 100_000:
            self._routes.clear()
        self._routes[subject] = route
        return route

    def _begin(self, route: Route, place: tuple[str, int | None]) -> _Batch:
        loop = asyncio.get_running_loop()
        batch = self._gathering[place] = _Batch(route, place[1], loop.create_future())
        batch.timer = loop.call_later(self._options.linger_s, self._send, batch)
        return batch

    def _send(self, batch: _Batch) -> None:
        """Let a batch leave that was being gathered."""
        if batch.timer is not None:
            batch.timer.cancel()
        self._gathering.pop((batch.route.subject, batch.partition), None)
        self._dispatch(batch)

    def _dispatch(self, batch: _Batch) -> None:
        self._in_flight_bytes += batch.size
        if self._in_flight_bytes >= self._options.in_flight_bytes:
            self._room.clear()
        sequence, self._sequence = self._sequence, self._sequence + 1
        task = asyncio.create_task(self._deliver(batch, sequence))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def _deliver(self, batch: _Batch, sequence: int) -> None:
        try:
            batch.done.set_result(await self._send_until_acked(batch, sequence))
        except LiftError as error:
            self._errors.append(error)
            batch.done.set_exception(error)
            batch.done.exception()  # told by `flush`, whether or not anyone awaits the ack
        except asyncio.CancelledError:
            batch.done.cancel()
            raise
        finally:
            self._in_flight_bytes -= batch.size
            if self._in_flight_bytes < self._options.in_flight_bytes:
                self._room.set()

    async def _send_until_acked(self, batch: _Batch, sequence: int) -> Ack:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.delivery_timeout_s
        columns = batch.columns()
        while True:
            # A refusal uses its inbox up; an ack that is merely late may still come on it.
            inbox, acked = self._inbox.expect(self._stream)
            try:
                payload = self._encode(batch, columns, sequence, inbox)
                return await self._send_until_answered(batch, payload, acked, deadline)
            except PublishRefusedError as error:
                if not _is_retriable(error) or loop.time() >= deadline:
                    raise
                logger.info("sending a batch for %s again: %s", batch.route.subject, error)
            finally:
                self._inbox.forget(inbox)
            await asyncio.sleep(_RETRY_S)

    def _encode(self, batch: _Batch, columns: dict[str, pa.Array], sequence: int, inbox: str) -> bytes:
        return encode_batch(
            columns,
            producer_id=self._producer_id,
            producer_sequence=sequence,
            ack_inbox=inbox,
            ack_policy=self._options.ack_policy,
            partition=batch.partition,
        )

    async def _send_until_answered(
        self, batch: _Batch, payload: bytes, acked: asyncio.Future[Ack], deadline: float
    ) -> Ack:
        loop = asyncio.get_running_loop()
        subject = batch.route.nats_subject(batch.partition)
        while True:
            await self._session.nats.publish(subject, payload)
            try:
                async with asyncio.timeout(self._options.ack_timeout_s):
                    return await asyncio.shield(acked)
            except TimeoutError:
                if loop.time() >= deadline:
                    raise PublishTimeoutError(
                        f"a batch of {batch.count} messages for {subject!r} was not acknowledged within "
                        f"{self._options.delivery_timeout_s:g} s; it may be stored or not"
                    ) from None
            logger.info("sending a batch for %s again: no ack yet", subject)

    async def flush(self) -> None:
        """Send what was gathered, and wait until all of it is acknowledged.

        Raises:
            LiftError: something since the last flush was not acknowledged; the first failure is raised.
        """
        for batch in list(self._gathering.values()):
            self._send(batch)
        while self._in_flight:
            await asyncio.wait(self._in_flight)
        if self._errors:
            errors, self._errors = self._errors, []
            if len(errors) > 1:
                errors[0].add_note(f"and {len(errors) - 1} more batches failed")
            raise errors[0]

    async def close(self) -> None:
        """Flush, and take no more messages.

        Raises:
            LiftError: see `flush`.
        """
        self._closed = True
        self._routes.clear()
        await self.flush()


def _is_retriable(error: PublishRefusedError) -> bool:
    try:
        return AckErrorCode(error.code).retriable
    except ValueError:
        return False


def _as_table(records: pa.RecordBatch | pa.Table | Mapping[str, pa.Array]) -> pa.Table:
    if isinstance(records, pa.RecordBatch):
        table = pa.Table.from_batches([records])
    else:
        table = records if isinstance(records, pa.Table) else pa.table(dict(records))
    unknown = set(table.column_names) - {"value", "key", "headers"}
    if unknown or "value" not in table.column_names:
        raise UsageError(f"records have the columns value and, where wanted, key and headers, not {table.column_names}")
    try:
        return table.cast(pa.schema([pa.field(name, pa.binary()) for name in table.column_names]))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"records must be of binary or string type: {error}") from None


def _by_partition(route: Route, table: pa.Table) -> list[tuple[int | None, pa.Table]]:
    if route.config.partitions == 1 or not table.num_rows:
        return [(None, table)] if table.num_rows else []
    if "key" not in table.column_names:
        return [(route.partition(None), table)]
    rows: dict[int | None, list[int]] = {}
    for row, key in enumerate(table.column("key").to_pylist()):
        rows.setdefault(route.partition(key), []).append(row)
    return [(partition, table.take(indices)) for partition, indices in rows.items()]


def _pieces(table: pa.Table, bytes_max: int) -> list[pa.Table]:
    """Cut a table so that each piece fits a payload.

    Raises:
        UsageError: one record alone does not.
    """
    if table.nbytes <= bytes_max:
        return [table]
    if table.num_rows == 1:
        raise UsageError(f"a record of {table.nbytes} bytes is over what one batch may hold ({bytes_max})")
    half = table.num_rows // 2
    return _pieces(table.slice(0, half), bytes_max) + _pieces(table.slice(half), bytes_max)
