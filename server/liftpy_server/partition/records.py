"""Messages with options, gathered into record batches in the order in which they came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from liftpy_envelope.batch import NO_PRODUCER, encode_body
from liftpy_envelope.columns import Column
from liftpy_envelope.errors import AckErrorCode
from liftpy_envelope.ipc import column_buffers, nullable_column, repeated_column, values_column
from liftpy_log.errors import PartitionOfflineError, StorageFullError
from liftpy_log.ids.dedupe import hash_id, hash_ids
from liftpy_log.ids.ordered import NODE_PRODUCERS_MAX, PRODUCERS_MAX, OrderedId
from liftpy_server.messages.incoming import Refusal, refusal_of
from liftpy_server.partition.acks import AckItem, ItemAcks
from liftpy_server.settings.limits import BATCH_VALUE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_envelope.ack import AckPolicy
    from liftpy_envelope.batch import BatchBody
    from liftpy_envelope.envelope import BatchEnvelope
    from liftpy_envelope.ipc import ColumnBuffers
    from liftpy_log.entries import Appended
    from liftpy_log.ids.dedupe import DedupeId, DedupeWindow, HashedIds, Stored
    from liftpy_log.partition_log import PartitionLog
    from liftpy_server.messages.incoming import Incoming
    from liftpy_server.partition.acks import Owed
    from liftpy_server.partition.stream_state import StreamState

__all__ = ["RecordBuilder"]


class Appender(Protocol):
    """The partition that records are built for.

    Attributes:
        stream: Settings and counts of the stream.
        dedupe: The ids that it remembers.
        log: Where the records go.
    """

    stream: StreamState
    dedupe: DedupeWindow
    log: PartitionLog

    def age_now_ns(self) -> int:
        """The time by which ids grow old."""
        ...

    def stored(self, key: DedupeId | OrderedId) -> Stored | None:
        """Where the message with this id is; None when no such message is remembered."""
        ...

    @property
    def awaits_producers(self) -> bool:
        """Whether it is not known yet what ordered producers have stored."""
        ...

    def has_room_for(self, producer: bytes) -> bool:
        """Whether a batch of this ordered producer can be remembered."""
        ...

    def remember_ordered(self, appended: Appended, key: OrderedId) -> None:
        """What was appended is a batch of an ordered producer."""

    def append_body(
        self,
        body: BatchBody,
        now_ns: int,
        producer_id: bytes = NO_PRODUCER,
        producer_sequence: int = -1,
        producer_epoch: int = 0,
    ) -> Appended:
        """Append one batch."""
        ...

    def remember(
        self, appended: Appended, ids: HashedIds | None = None, offsets: Sequence[int] = (), *, records: int = 1
    ) -> None:
        """What was appended has these ids, or none."""

    def owe(self, policy: AckPolicy, next_offset: int, owed: Owed) -> None:
        """Send acks when records below `next_offset` are as safe as `policy` wants them."""

    def refuse(self, item: AckItem, refusal: Refusal) -> None:
        """Tell a publisher that its message is not stored."""

    def read_staged(self, message: Incoming) -> Refusal | None:
        """Append a message once its batch was read; why it is refused at once, if so."""
        ...


class RecordBuilder:
    """Gathers the messages of one pass for one partition.

    Args:
        partition: Takes the batches.
        now_ns: Time of the pass.
    """

    def __init__(self, partition: Appender, now_ns: int) -> None:
        self._partition = partition
        self._now_ns = now_ns
        self._rows: list[Incoming] = []
        self._ids: dict[bytes, int] = {}
        self._value_bytes = 0
        partition.dedupe.expire(partition.age_now_ns())

    def add(self, message: Incoming, refusal: Refusal | None) -> None:
        """Take a message, or refuse it."""
        refusal = refusal or self._expectation(message)
        if refusal is None:
            stored = self._find(message)
            if stored is not None:
                self._owe_duplicate(message, stored)
                return
            refusal = self._wrong_offset(message) or self._of_producer(message)
            if refusal is None and message.staged is not None:
                refusal = self._partition.read_staged(message)
                if refusal is None:
                    return
        if refusal is not None:
            item = AckItem(message.destination, -1, correlation_id=message.options.correlation_id)
            self._partition.refuse(item, refusal)
        elif message.batch is not None:
            self.flush()
            self._append_batch(message, message.batch)
        else:
            self._take(message)

    def _take(self, message: Incoming) -> None:
        key = message.options.message_id
        if key is not None and self._partition.dedupe.ids_max:
            self._ids[key] = self._next_offset
        self._rows.append(message)
        self._value_bytes += len(message.value or b"") + len(message.headers or b"")
        counters = self._partition.stream.counters
        counters.lookalikes += message.is_lookalike
        counters.unsupported_stored += message.options.unsupported is not None
        if self._value_bytes >= BATCH_VALUE_BYTES_MAX:
            self.flush()

    @property
    def _next_offset(self) -> int:
        return self._partition.log.log_end + len(self._rows)

    def _expectation(self, message: Incoming) -> Refusal | None:
        size = sum(array.nbytes for array in message.batch.arrays) if message.batch is not None else 0
        limit = self._partition.stream.config.message_bytes_max
        if size <= limit:
            return None
        return Refusal(AckErrorCode.TOO_LARGE, f"batch of {size} bytes is over the stream's limit of {limit}")

    def _find(self, message: Incoming) -> Stored | None:
        key = _dedupe_id(message)
        if key is None:
            return None
        if key in self._ids:
            self.flush()
        return self._partition.stored(key)

    def _wrong_offset(self, message: Incoming) -> Refusal | None:
        expected = message.options.expected_offset
        if expected is None or expected == self._next_offset:
            return None
        return Refusal(
            AckErrorCode.WRONG_EXPECTED_OFFSET,
            f"wrong last sequence: {self._next_offset} (the next offset is {self._next_offset}, expected {expected})",
        )

    def _of_producer(self, message: Incoming) -> Refusal | None:
        """Why a batch of an ordered producer can not be stored."""
        batch = message.batch
        if batch is None or batch.producer_id is None or not batch.producer_epoch:
            return None
        if self._partition.awaits_producers:
            return Refusal(
                AckErrorCode.PARTITION_OFFLINE,
                "what was stored of this ordered producer before the partition was restored is not read from the "
                "bucket yet; publish it again",
            )
        if self._partition.has_room_for(batch.producer_id):
            return None
        return Refusal(
            AckErrorCode.TOO_MANY_PRODUCERS,
            f"no other ordered producer (pair of a group and a source partition) can be remembered: the partition has "
            f"{len(self._partition.dedupe.ordered)} of at most {PRODUCERS_MAX}, all of its node at most "
            f"{NODE_PRODUCERS_MAX}, and those of the last 7 days stay; use fewer groups or source partitions",
        )

    def _owe_duplicate(self, message: Incoming, stored: Stored) -> None:
        partition = self._partition
        partition.stream.counters.duplicates += 1
        if message.destination:
            item = AckItem(
                message.destination,
                stored.offset,
                stored.records,
                duplicate=True,
                correlation_id=message.options.correlation_id,
            )
            # The original may be on its way to the disk still; its ack must not come from here before it is there.
            partition.owe(self._policy(message), stored.offset + 1, ItemAcks([item]))

    def _policy(self, message: Incoming) -> AckPolicy:
        return message.options.ack_policy or self._partition.stream.config.ack_policy

    def flush(self) -> None:
        """Append what was gathered."""
        rows, self._rows = self._rows, []
        ids, self._ids = self._ids, {}
        self._value_bytes = 0
        if not rows:
            return
        partition = self._partition
        try:
            appended = partition.append_body(encode_body(len(rows), *self._columns(rows)), self._now_ns)
        except (StorageFullError, PartitionOfflineError) as error:
            for row in rows:
                self._refuse_unstored(row, error)
            return
        partition.remember(appended, hash_ids(list(ids)) if ids else None, list(ids.values()))
        counters = partition.stream.counters
        counters.messages += len(rows)
        counters.bytes += sum(len(row.value or b"") for row in rows)
        by_policy: dict[AckPolicy, list[AckItem]] = {}
        for offset, row in enumerate(rows, appended.base_offset):
            if row.destination:
                item = AckItem(row.destination, offset, correlation_id=row.options.correlation_id)
                by_policy.setdefault(self._policy(row), []).append(item)
        for policy, items in by_policy.items():
            partition.owe(policy, appended.next_offset, ItemAcks(items))

    def _refuse_unstored(self, message: Incoming, error: StorageFullError | PartitionOfflineError) -> None:
        item = AckItem(message.destination, -1, correlation_id=message.options.correlation_id)
        self._partition.refuse(item, refusal_of(error))

    def _columns(self, rows: list[Incoming]) -> tuple[int, list[ColumnBuffers]]:
        bitmap, columns = Column.SUBJECT, [values_column([row.subject for row in rows])]
        optional: list[tuple[int, list[bytes | None]]] = [
            (Column.KEY, [row.options.key for row in rows]),
            (Column.HEADERS, [row.headers for row in rows]),
            (Column.VALUE, [row.value for row in rows]),
            (Column.MESSAGE_ID, [row.options.message_id for row in rows]),
        ]
        if self._partition.stream.config.keep_replies:
            optional.append((Column.REPLY, [row.reply or None for row in rows]))
        for column, values in optional:
            if column == Column.VALUE or any(value is not None for value in values):
                bitmap |= column
                columns.append(nullable_column(values))
        return bitmap, columns

    def _append_batch(self, message: Incoming, batch: BatchEnvelope) -> None:
        partition = self._partition
        columns = [repeated_column(message.subject, batch.count), *map(column_buffers, batch.arrays)]
        body = encode_body(batch.count, Column.SUBJECT | batch.columns, columns)
        try:
            appended = partition.append_body(
                *(body, self._now_ns, batch.producer_id or NO_PRODUCER),
                *(batch.producer_sequence, batch.producer_epoch),
            )
        except (StorageFullError, PartitionOfflineError) as error:
            self._refuse_unstored(message, error)
            return
        last = appended.next_offset - 1
        key = _dedupe_id(message)
        if isinstance(key, OrderedId):
            partition.remember_ordered(appended, key)
        elif key is not None:
            partition.remember(appended, hash_id(key), [last], records=batch.count)
        else:
            partition.remember(appended)
        counters = partition.stream.counters
        counters.messages += batch.count
        counters.bytes += sum(array.nbytes for array in batch.arrays)
        if message.destination:
            item = AckItem(message.destination, last, batch.count, correlation_id=message.options.correlation_id)
            partition.owe(self._policy(message), appended.next_offset, ItemAcks([item]))


def _dedupe_id(message: Incoming) -> DedupeId | OrderedId | None:
    batch, staged = message.batch, message.staged
    if staged is not None:
        return staged.producer_id, staged.producer_sequence
    if batch is None:
        return message.options.message_id
    if batch.producer_id is None:
        return None
    if batch.producer_epoch:
        return OrderedId(batch.producer_id, batch.producer_epoch, batch.producer_sequence)
    return batch.producer_id, batch.producer_sequence
