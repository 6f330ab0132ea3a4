"""A partition of a stream on this node: where it leads, it takes messages, and sequences them.

The order is that of the package's docstring: append, make durable and replicate, commit, acknowledge. Nothing here
waits: the ingest appends, `end_pass` asks for durability, and group commit calls `on_synced` when a round is through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from liftpy_envelope.ack import AckPolicy
from liftpy_envelope.batch import NO_PRODUCER, compress_body
from liftpy_envelope.errors import AckErrorCode
from liftpy_envelope.stream_config import AckMode, Compression
from liftpy_log.errors import PartitionOfflineError, StorageFullError
from liftpy_log.ids.dedupe import hash_ids
from liftpy_server.messages.incoming import Refusal, read_message, refusal_of
from liftpy_server.partition.acks import AckItem, ItemAcks, RangeAcks
from liftpy_server.partition.committing import CommittingLog, Load
from liftpy_server.partition.records import RecordBuilder
from liftpy_server.partition.stored_size import stored_size_refusal
from liftpy_server.settings.limits import BATCH_VALUE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from liftpy_envelope.batch import BatchBody
    from liftpy_envelope.errors import ErrorCode
    from liftpy_log.entries import Appended
    from liftpy_log.ids.ordered import StoredBatch
    from liftpy_server.messages.incoming import Incoming
    from liftpy_server.messages.runs import Run
    from liftpy_server.partition.cold_side import ColdSide

__all__ = ["Holder", "Load", "Partition", "PartitionWatcher", "StagedReader"]


class Holder(Protocol):
    """Holds the messages that come while the leadership is handed over."""

    def add(self, run: Run, skip: int) -> bool:
        """Hold a run; False when it is not held."""
        ...

    def add_read(self, messages: list[Incoming]) -> bool:
        """Hold messages whose options were read; False when they are not held."""
        ...

    def break_off(self) -> None:
        """Something that belongs to it is lost: nothing is held any more."""
        ...

    def drop(self) -> None:
        """Forget what is held."""


class StagedReader(Protocol):
    """Reads batches that are staged in the bucket."""

    def take(self, partition: Partition, message: Incoming) -> Refusal | None:
        """Append a message once its batch was read, or refuse it; nothing waits.

        Returns:
            Why it is refused at once; None when it was taken.
        """
        ...


class PartitionWatcher(Protocol):
    """Who is told what happens to partitions; nothing in it waits."""

    def committed(self, partition: Partition) -> None:
        """A leader may have committed more, or have made more durable."""

    def role_changed(self, partition: Partition) -> None:
        """It leads, in whatever epoch, or leads no longer."""

    def closed(self, partition: Partition) -> None:
        """It is not here any more."""


class Partition(CommittingLog):
    """A partition on this node: append, commit, acknowledge. Takes the arguments of `CommittingLog`.

    Attributes:
        cold: History in the bucket, where this node leads the partition and knows it; otherwise None.
        watcher: Who is told what happens; None where nobody wants to know.
        full_text: What publishers are told while the disk is full.
        held: What comes while the leadership is handed over, here or to another node; None at other times.
        staged: Reads staged batches; None where there is no bucket.
        on_refused: Told of each publisher that is told that its message is not stored; None where nobody wants to know.
    """

    held: Holder | None = None
    on_refused: Callable[[AckItem], None] | None = None
    cold: ColdSide | None = None
    watcher: PartitionWatcher | None = None
    staged: StagedReader | None = None
    full_text = "the node's disk is full"

    @property
    def start(self) -> int:
        """The first offset that can be read: from the bucket, where what is there reaches the log."""
        log_start, cold = self.log.log_start, self.cold
        return log_start if cold is None or cold.end < log_start else min(log_start, cold.start)

    @property
    def awaits_producers(self) -> bool:
        """Whether ordered producers are yet to be looked up in the bucket, as nothing here remembers what they stored.

        Until then their batches are refused, and followers are told nothing of them.
        """
        is_lost = self.is_leading and not self.dedupe.ordered.is_whole
        return is_lost and self.cold is None and self.watcher is not None and self.stream.config.tier

    def learn_producers(self, told: Sequence[tuple[bytes, StoredBatch]]) -> None:
        """The bucket has these of ordered producers, ascending by offset: all that there was before the log.

        One that has ceased to lead meanwhile is told by the next leader.

        Raises:
            StorageFullError, PartitionOfflineError: they can not be written down.
        """
        ordered = self.dedupe.ordered
        if ordered.is_whole or not self.is_leading:
            return
        ordered.learn(each for each in told if each[1].offset < self.log.log_end)
        end = max(self.log.log_start, self.ordered_end)
        self.work(lambda: self.log.save_ordered(ordered.encode(end)))
        ordered.saved_end = end
        ordered.is_whole = True
        if self._replication is not None:
            self._replication.producers_known()

    def commit(self, end: int) -> None:
        """See `CommittingLog`."""
        super().commit(end)
        if self.watcher is not None and self.is_leading:
            self.watcher.committed(self)

    def sync_soon(self) -> None:
        """Make what was appended durable soon, although its stream does not ask for that."""
        if self.log.failure is None and self.log.synced_end < self.log.log_end:
            self._request_sync(self.log)

    def lead(self, epoch: int) -> None:
        """See `CommittingLog`."""
        super().lead(epoch)
        if self.watcher is not None:
            self.watcher.role_changed(self)

    def follow(self, epoch: int) -> None:
        """See `CommittingLog`."""
        self.cold = None
        super().follow(epoch)
        if self.watcher is not None:
            self.watcher.role_changed(self)

    def close(self, why: ErrorCode) -> None:
        """See `CommittingLog`."""
        self.let_go()
        super().close(why)
        if self.watcher is not None:
            self.watcher.closed(self)

    def let_go(self) -> None:
        """Hold nothing any more, and forget what was held."""
        held, self.held = self.held, None
        if held is not None:
            held.drop()

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
            return Refusal(AckErrorCode.STORAGE_FULL, self.full_text)
        return None

    def append(self, run: Run, skip: int, now_ns: int) -> None:
        """Take the messages of a run.

        Args:
            run: The messages.
            skip: Size of the subjects' prefix, which is not stored.
            now_ns: When they were read from the socket.
        """
        if self.held is not None and self.held.add(run, skip):
            return
        if not self.is_leading:  # a moment before its leader is another: that one takes them
            return
        refusal = self.refusal()
        config = self.stream.config
        usual = (
            refusal is None
            and self.is_accepting
            and not config.keep_replies
            and run.message_bytes_max <= config.message_bytes_max
        )
        if usual and run.is_plain:
            if run.value_bytes <= BATCH_VALUE_BYTES_MAX:
                self._append_plain(run, skip, now_ns)
            else:
                for part in run.parts(BATCH_VALUE_BYTES_MAX):
                    self._append_plain(part, skip, now_ns)
        elif not (usual and run.value_bytes <= BATCH_VALUE_BYTES_MAX and self._append_with_ids(run, skip, now_ns)):
            self.append_incoming((read_message(message, config, skip) for message in run.messages()), now_ns)

    def _append_plain(self, run: Run, skip: int, now_ns: int) -> None:
        appended = self._append_run(run, run.plain_body(skip), now_ns)
        if appended is not None:
            self.remember(appended)

    def _append_with_ids(self, run: Run, skip: int, now_ns: int) -> bool:
        """Append messages that have an id and no other option; False when they do, or when one may be a duplicate.

        This is what `js.publish` of every NATS client sends, so it does not take the long way.
        """
        identified = run.identified(skip)
        if identified is None:
            return False
        keys, body = identified
        ids = hash_ids(keys)
        if len(set(keys)) < len(keys) or not self.dedupe.are_new(ids, self.age_now_ns()):
            return False
        appended = self._append_run(run, body, now_ns)
        if appended is not None:
            self.remember(appended, ids, range(appended.base_offset, appended.next_offset))
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
                self.refuse(AckItem(message.reply if wanted else b"", -1), refusal)
            return None
        counters = self.stream.counters
        counters.messages += run.count
        counters.bytes += run.value_bytes
        if replies is not None:
            self.owe(config.ack_policy, appended.next_offset, RangeAcks(appended.base_offset, replies))
        return appended

    def append_incoming(self, messages: Iterable[Incoming], now_ns: int) -> None:
        """Take messages whose options were read."""
        if self.held is not None:
            messages = list(messages)
            if self.held.add_read(messages):
                return
        if not self.is_leading:
            return
        refusal = self.refusal()
        builder = RecordBuilder(self, now_ns)
        for message in messages:
            why = message.refusal or refusal or self._too_few(message)
            if why is None and message.batch is not None:
                why = stored_size_refusal(message.batch, message.subject)
            builder.add(message, why)
        builder.flush()

    def read_staged(self, message: Incoming) -> Refusal | None:
        """Read a staged batch, and append it then; see `StagedReader.take`."""
        if self.staged is None:
            return Refusal(AckErrorCode.UNSUPPORTED, "this node has no bucket, and so nothing that is staged there")
        return self.staged.take(self, message)

    def _too_few(self, message: Incoming) -> Refusal | None:
        """Why a message that wants to be safe on all replicas can not be, now; others commit later."""
        if self.is_accepting or not message.destination:
            return None
        if (message.options.ack_policy or self.stream.config.ack_policy) is not AckPolicy.ALL:
            return None
        return Refusal(
            AckErrorCode.NOT_ENOUGH_REPLICAS,
            f"fewer than {self.stream.config.min_isr_effective} replicas of stream {self.stream.name} are in sync",
        )

    def append_body(
        self,
        body: BatchBody,
        now_ns: int,
        producer_id: bytes = NO_PRODUCER,
        producer_sequence: int = -1,
        producer_epoch: int = 0,
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
                timestamp=self.stamp_ns(now_ns),
                producer_id=producer_id,
                producer_sequence=producer_sequence,
                producer_epoch=producer_epoch,
            )
        except PartitionOfflineError as error:
            self.fail(str(error))
            raise
        self.stream.counters.batches += 1
        return appended

    def refuse(self, item: AckItem, refusal: Refusal) -> None:
        """Tell a publisher, where it can be told, that its message is not stored; count it either way.

        What this node refuses another may store that leads by now: while it would not know, it says nothing.
        """
        answered = bool(item.destination)
        reason = refusal.code.name.lower()
        self.stream.counters.refused[reason] += 1
        if not answered:
            self.gaps.count_refused(reason, refusal.description)
        elif not self.is_cut_off:
            if self.on_refused is not None:
                self.on_refused(item)
            self._outbox.add(ItemAcks([item]).encode_error(self._acks, *refusal))
