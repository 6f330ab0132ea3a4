"""A partition that this node leads: it sequences messages, makes them durable, commits and acknowledges them.

The order is that of the package's docstring: append, make durable, commit, acknowledge. Nothing here waits: the
ingest appends, `settle` asks for durability, and group commit calls `on_synced` when a round is through. Until there
are several replicas, what is durable here is committed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from liftpy_envelope.ack import AckPolicy
from liftpy_envelope.batch import NO_PRODUCER, compress_body
from liftpy_envelope.errors import AckErrorCode
from liftpy_envelope.stream_config import AckMode, Compression, SyncMode
from liftpy_log.errors import PartitionOfflineError, StorageFullError
from liftpy_server.acks import AckItem, AckTemplate, ItemAcks, PendingAcks, RangeAcks
from liftpy_server.ingest.incoming import Refusal, read_message, refusal_of
from liftpy_server.ingest.records import RecordBuilder
from liftpy_server.limits import BATCH_VALUE_BYTES_MAX
from liftpy_server.stored_size import stored_size_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from liftpy_envelope.batch import BatchBody
    from liftpy_envelope.errors import ErrorCode
    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.dedupe import DedupeWindow
    from liftpy_log.entries import Appended
    from liftpy_log.partition_log import PartitionLog
    from liftpy_server.acks import Owed
    from liftpy_server.ingest.incoming import Incoming
    from liftpy_server.ingest.runs import Run
    from liftpy_server.outbox import Outbox
    from liftpy_server.stream_state import StreamState

__all__ = ["Load", "Partition"]

logger = logging.getLogger(__name__)


class Load:
    """What the node holds in memory until it is on disk."""

    unsynced_bytes = 0


class Partition:
    """See the module.

    Args:
        key: stream uuid and number.
        stream: what the node remembers of its stream.
        log: its records.
        dedupe: ids stored lately.
        epoch: this node's leader epoch.
        outbox: takes acks.
        load: counts what waits for the disk.
        request_sync: asks group commit for a round.

    Attributes:
        high_watermark: records below it are committed, and may be shown.
        storage_full: set by the node while the disk has no room to spare.
        gone: why readers must look elsewhere: deleted, or led by another node; None while it is here.
    """

    def __init__(
        self,
        key: PartitionKey,
        stream: StreamState,
        log: PartitionLog,
        dedupe: DedupeWindow,
        epoch: int,
        outbox: Outbox,
        load: Load,
        request_sync: Callable[[PartitionLog], None],
    ) -> None:
        self.key = key
        self.stream = stream
        self.log = log
        self.dedupe = dedupe
        self._acks = AckTemplate(stream.name, key.partition, epoch)
        self.high_watermark = log.log_end
        self.storage_full = False
        self.gone: ErrorCode | None = None
        self._has_failed = False
        self._outbox = outbox
        self._load = load
        self._counted_bytes = 0
        self._request_sync = request_sync
        self._owed_by_leader = PendingAcks()
        self._owed_by_all = PendingAcks()
        self._waiters: set[Callable[[], None]] = set()

    @property
    def number(self) -> int:
        """Its number in the stream."""
        return self.key.partition

    @property
    def epoch(self) -> int:
        """This node's leader epoch."""
        return self._acks.epoch

    def lead(self, epoch: int) -> None:
        """Lead in another epoch from now on."""
        self._acks = AckTemplate(self.stream.name, self.number, epoch)

    def refusal(self) -> Refusal | None:
        """Why no message at all is taken now, if so."""
        stream = self.stream
        if self.log.failure is not None:
            return Refusal(AckErrorCode.PARTITION_OFFLINE, "the partition is offline; the node's log says why")
        if stream.paused:
            return Refusal(AckErrorCode.PAUSED, f"stream {stream.name} is paused")
        if stream.read_only:
            return Refusal(AckErrorCode.READ_ONLY, f"stream {stream.name} is read-only")
        if self.storage_full:
            return Refusal(AckErrorCode.STORAGE_FULL, "the node's disk is full")
        return None

    def append(self, run: Run, skip: int, now_ns: int) -> None:
        """Take the messages of a run.

        Args:
            run: the messages.
            skip: size of the subjects' prefix, which is not stored.
            now_ns: when they were read from the socket.
        """
        refusal = self.refusal()
        config = self.stream.config
        usual = refusal is None and not config.keep_replies and run.value_bytes_max <= config.message_bytes_max
        if usual and run.is_plain:
            if run.value_bytes <= BATCH_VALUE_BYTES_MAX:
                self._append_plain(run, skip, now_ns)
            else:
                for part in run.parts(BATCH_VALUE_BYTES_MAX):
                    self._append_plain(part, skip, now_ns)
        elif not (usual and run.value_bytes <= BATCH_VALUE_BYTES_MAX and self._append_with_ids(run, skip, now_ns)):
            self.append_incoming((read_message(message, config, skip) for message in run.messages()), now_ns)

    def _append_plain(self, run: Run, skip: int, now_ns: int) -> None:
        self._append_run(run, run.plain_body(skip), now_ns)

    def _append_with_ids(self, run: Run, skip: int, now_ns: int) -> bool:
        """Append messages that have an id and no other option; False when they do, or when one may be a duplicate.

        This is what `js.publish` of every NATS client sends, so it does not take the long way.
        """
        identified = run.identified(skip)
        if identified is None:
            return False
        ids, body = identified
        if not self.dedupe.are_new(ids, now_ns):
            return False
        appended = self._append_run(run, body, now_ns)
        if appended is not None:
            self.dedupe.add(
                appended.timestamp, list(zip(ids, range(appended.base_offset, appended.next_offset), strict=True))
            )
        return True

    def _append_run(self, run: Run, body: BatchBody, now_ns: int) -> Appended | None:
        """Append a run as one batch, or refuse all of it."""
        config = self.stream.config
        wanted = config.acks is AckMode.REPLY and config.ack_policy is not AckPolicy.NONE
        replies = run.replies() if wanted else None
        try:
            appended = self.append_body(body, now_ns)
        except (StorageFullError, PartitionOfflineError) as error:
            refusal = refusal_of(error)
            for message in run.messages():
                self.refuse(AckItem(message.reply if wanted else b"", -1), refusal, now_ns)
            return None
        counters = self.stream.counters
        counters.messages += run.count
        counters.bytes += run.value_bytes
        if replies is not None:
            self.owe(config.ack_policy, appended.next_offset, RangeAcks(appended.base_offset, replies))
        return appended

    def append_incoming(self, messages: Iterable[Incoming], now_ns: int) -> None:
        """Take messages whose options were read."""
        refusal = self.refusal()
        builder = RecordBuilder(self, now_ns)
        for message in messages:
            why = message.refusal or refusal
            if why is None and message.batch is not None:
                why = stored_size_refusal(message.batch, message.subject)
            builder.add(message, why)
        builder.flush()

    def append_body(
        self, body: BatchBody, now_ns: int, producer_id: bytes = NO_PRODUCER, producer_sequence: int = -1
    ) -> Appended:
        """Append one batch.

        Raises:
            StorageFullError, PartitionOfflineError: it is not stored.
        """
        compression = self.stream.config.compression
        if compression is not Compression.NONE:
            body = compress_body(body, compression.value)
        try:
            appended = self.log.append(
                body,
                leader_epoch=self._acks.epoch,
                timestamp=now_ns,
                producer_id=producer_id,
                producer_sequence=producer_sequence,
            )
        except PartitionOfflineError as error:
            self.fail(str(error))
            raise
        self.stream.counters.batches += 1
        return appended

    def refuse(self, item: AckItem, refusal: Refusal, now_ns: int) -> None:
        """Tell a publisher, where it can be told, that its message is not stored; count it either way."""
        answered = bool(item.destination)
        self.stream.count_refused(refusal.code, refusal.description, answered=answered, now_ns=now_ns)
        if answered:
            self._outbox.add(ItemAcks([item]).encode_error(self._acks, *refusal))

    def owe(self, policy: AckPolicy, next_offset: int, owed: Owed) -> None:
        """Send acks when records below `next_offset` are as safe as `policy` wants them."""
        queue = self._owed_by_leader if policy is AckPolicy.LEADER else self._owed_by_all
        queue.add(next_offset, owed)

    def settle(self) -> None:
        """After a pass over a chunk: see to it that what was appended becomes durable, and send what is due."""
        log = self.log
        if self.stream.config.sync is SyncMode.ALWAYS and log.synced_end < log.log_end:
            self._count_unsynced()
            self._request_sync(log)
            self._commit(log.synced_end)
        else:
            self._commit(log.log_end)

    def on_synced(self, next_offset: int) -> None:
        """A group commit round made records below `next_offset` durable."""
        self.log.mark_synced(next_offset)
        self._count_unsynced()
        self._commit(next_offset)

    def _count_unsynced(self) -> None:
        unsynced = 0 if self.log.failure is not None else self.log.unsynced_bytes
        self._load.unsynced_bytes += unsynced - self._counted_bytes
        self._counted_bytes = unsynced

    def _commit(self, durable_end: int) -> None:
        """Records below `durable_end` are as durable as the stream wants: commit and acknowledge them."""
        moved = durable_end > self.high_watermark
        if moved:
            self.high_watermark = durable_end
        if self._owed_by_all:
            self._send(self._owed_by_all.take(self.high_watermark))
        if self._owed_by_leader:
            self._send(self._owed_by_leader.take(durable_end))
        if moved and self._waiters:
            self._wake()

    def _send(self, due: Sequence[Owed]) -> None:
        for owed in due:
            self._outbox.add(owed.encode(self._acks))

    def roll(self) -> None:
        """Close the log's newest segment, which makes everything durable.

        Raises:
            StorageFullError, PartitionOfflineError: from the log.
        """
        self._work(self.log.roll)

    def purge(self, offset: int) -> None:
        """Make `offset` the start of the log.

        Raises:
            StorageFullError, PartitionOfflineError: from the log.
        """
        self._work(lambda: self.log.purge(offset))

    def _work(self, work: Callable[[], None]) -> None:
        """Have the log do what may make records durable: no round of group commit will find them left to do."""
        synced_before = self.log.synced_end
        try:
            work()
        except PartitionOfflineError as error:
            self.fail(str(error))
            raise
        else:
            self._count_unsynced()
            if self.log.synced_end > synced_before:
                self._commit(self.log.synced_end)
        finally:
            self._outbox.flush()

    def fail(self, reason: str) -> None:
        """An I/O error: take no more messages, and tell those who wait that nobody knows what became of theirs."""
        if not self._has_failed:
            self._has_failed = True
            logger.error("stream %s partition %d is offline: %s", self.stream.name, self.number, reason)
        self.log.fail(reason)
        self._count_unsynced()
        description = "outcome unknown: the partition went offline"
        for owed in self._owed_by_leader.take_all() + self._owed_by_all.take_all():
            self._outbox.add(owed.encode_error(self._acks, AckErrorCode.OUTCOME_UNKNOWN, description))
        self._wake()

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, at the next change that a reader may wait for."""
        self._waiters.add(wake)

    def stop_waiting(self, wake: Callable[[], None]) -> None:
        """Take back a `wait`."""
        self._waiters.discard(wake)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for wake in waiters:
            wake()

    def close(self, why: ErrorCode) -> None:
        """Make everything durable, acknowledge it, give the files back, and send readers away.

        Raises:
            PartitionOfflineError: an I/O error.
        """
        self.gone = why
        try:
            self._work(self.log.close)
        finally:
            self._wake()
