"""A local replica of a partition: its log, how far it is committed, and who waits for that.

A replica that is the only one commits what is durable here. One of several is told by the replication core how far
it may commit, and whether it leads; it is attached with `attach`.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from liftpy_envelope.ack import AckPolicy
from liftpy_envelope.errors import AckErrorCode, ErrorCode
from liftpy_envelope.stream_config import SyncMode
from liftpy_log.errors import PartitionOfflineError, StorageFullError
from liftpy_log.histogram import Histogram
from liftpy_log.ids.ordered import StoredBatch
from liftpy_log.log_time import LogTime, LogTimeState
from liftpy_server.gaps.whole import WholeHistory
from liftpy_server.partition.acks import AckTemplate, PendingAcks
from liftpy_server.repeated_warnings import RepeatedWarnings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.clock import Clock
    from liftpy_log.entries import Appended
    from liftpy_log.ids.dedupe import DedupeId, DedupeWindow, HashedIds, Stored
    from liftpy_log.ids.ordered import OrderedId
    from liftpy_log.log_time import Leap
    from liftpy_log.partition_log import PartitionLog
    from liftpy_server.partition.acks import Owed
    from liftpy_server.partition.outbox import Outbox
    from liftpy_server.partition.stream_state import StreamState

__all__ = ["CommittingLog", "Load", "Replication"]

logger = logging.getLogger(__name__)

_TIMED_MAX: Final = 1_024  # chunks that wait for their commit and are timed


class Load:
    """What the node holds in memory until it is on disk, or on other nodes.

    Attributes:
        unsynced_bytes: Size of the batches that are not on disk, bytes.
        owed_records: Number of records of replicated partitions whose acks wait for other nodes.
        commit_s: How long records took from their append to their commit, by chunk of a leader.
    """

    def __init__(self) -> None:
        self.unsynced_bytes = 0
        self.owed_records = 0
        self.commit_s = Histogram()


class Replication(Protocol):
    """What a partition tells the replication of its log."""

    def appended(self) -> None:
        """The leader's own ingest has appended."""

    def durable(self, end: int) -> None:
        """Records below `end` are as durable here as the stream wants."""

    def start_advanced(self) -> None:
        """The log begins later than before."""

    def log_failed(self) -> None:
        """The log takes nothing more."""

    def is_cut_off(self) -> bool:
        """Whether another node may lead by now, and this one would not know."""

    def is_high_watermark_known(self) -> bool:
        """Whether all that an earlier leader may have committed is known to be committed."""

    def producers_known(self) -> None:
        """The leader knows what ordered producers stored before its log began, and followers can be told."""

    def states(self) -> list[dict[str, Any]]:
        """Of every other replica, as the leader knows it: node, log_end, lag_messages, in_sync."""

    def close(self) -> None:
        """The log is closed."""


class CommittingLog:
    """See the module.

    Args:
        key: Stream uuid and number.
        stream: What the node remembers of its stream.
        log: Log of the partition.
        dedupe: Ids stored lately.
        epoch: Epoch of the leader.
        outbox: Takes acks.
        load: Counts what waits for the disk.
        request_sync: Asks group commit for a round.
        clock: Clock of the node.
        log_time: What time it is for the log; by default that of its newest record.

    Attributes:
        high_watermark: Records below it are committed, and may be shown.
        storage_full: Set by the node while the disk has no room to spare.
        gone: Why readers must look elsewhere: deleted, or led by another node; None while it is here.
        is_leading: This replica sequences and acknowledges.
        is_accepting: Enough replicas are in sync to commit what is appended now.
        gaps: Times of which messages may be missing.
        whole: Time up to which the log is known to hold all that was published.
        heard_s: Everything that was published before has come, where it leads; by elapsed time. None when unknown.
        note_failure: Writes down, for after a restart, why the log has failed.
        note_lack: Has the log opened again later, which failed for lack of room, memory or files.
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
        clock: Clock,
        log_time: LogTime | None = None,
    ) -> None:
        self.key = key
        self.stream = stream
        self.log = log
        self.gaps = stream.gaps_of(key.partition)
        self.whole = WholeHistory()
        self.heard_s: float | None = None
        self.dedupe = dedupe
        self.log_time = log_time or LogTime(log.last_timestamp, clock.elapsed())
        self._clock = clock
        self._acks = AckTemplate(stream.name, key.partition, epoch)
        self.high_watermark = log.log_end
        self.storage_full = False
        self.gone: ErrorCode | None = None
        self.is_leading = True
        self.is_accepting = True
        self.note_failure: Callable[[str], None] | None = None
        self.note_lack: Callable[[str], None] | None = None
        self._replication: Replication | None = None
        self._has_failed = False
        self._outbox = outbox
        self._load = load
        self._counted_bytes = 0
        self._counted_owed = 0
        self._request_sync = request_sync
        self._owed_by_leader = PendingAcks()
        self._owed_by_all = PendingAcks()
        self._commit_callbacks: deque[tuple[int, Callable[[str | None], None]]] = deque()
        self._appended: deque[tuple[int, float]] = deque()  # ends of chunks, and when they were appended
        self._waiters: set[Callable[[], None]] = set()
        self._warnings: RepeatedWarnings | None = None

    @property
    def number(self) -> int:
        """Its number in the stream."""
        return self.key.partition

    @property
    def epoch(self) -> int:
        """The leader epoch, as far as this replica knows."""
        return self._acks.epoch

    def now_ns(self) -> int:
        """The log's time; see `LogTime`."""
        now_s = self._clock.elapsed()
        return self.log_time.now(self._clock.now_ns(), now_s)

    def stamp_ns(self, read_ns: int) -> int:
        """The time of records that are appended now, and were read from the socket at `read_ns` by the wall clock.

        Both clocks are read anew, the wall clock last: what passes between two readings must not put the log behind,
        as it catches up slowly.
        """
        now_s = self._clock.elapsed()
        return self.log_time.stamp(max(read_ns, self._clock.now_ns()), now_s)

    def age_now_ns(self) -> int:
        """The log's time on the scale on which ages are measured: that of message ids."""
        return self.log_time.age_time(self.now_ns())

    def too_old_before(self, age_s: float) -> int:
        """As `older_than_before`, for a limit of which 0 is none: then 0, as no record is so old."""
        return self.older_than_before(age_s) if age_s else 0

    def older_than_before(self, age_s: float) -> int:
        """Records with an earlier time are older than `age_s`, by the log's time and by the wall clock."""
        now_ns = min(self.now_ns(), self._clock.now_ns())
        return self.log_time.before(now_ns, int(age_s * 1e9))

    def clock_ahead_s(self) -> float:
        """How far this node's clock is ahead of the log's time, or behind it; 0 while that is within a minute."""
        return round(self.log_time.clock_off_ns(self._clock.now_ns()) / 1e9, 1) if self.now_ns() else 0.0

    def copied(self, after_ns: int, timestamp: int, leaps: Iterable[Leap]) -> None:
        """Batches of a leader were appended; see `LogTime.copied`."""
        self.log_time.copied(after_ns, timestamp, self._clock.elapsed(), leaps)

    def by_wall_ns(self, age_s: float) -> int:
        """By how much the wall clock is ahead of records that are `age_s` old: what it takes for that age."""
        return self._clock.now_ns() - self.older_than_before(age_s)

    def kept_time(self) -> LogTimeState:
        """The log's time, as it is kept over a restart."""
        self.now_ns()
        return self.log_time.state()

    @property
    def durable_end(self) -> int:
        """The offset after the last record that is as durable here as the stream wants."""
        return self.log.synced_end if self.stream.config.sync is SyncMode.ALWAYS else self.log.log_end

    @property
    def sure_end(self) -> int:
        """What is committed and on this disk: a follower may know of more commits than it has synced."""
        return min(self.high_watermark, self.log.synced_end)

    @property
    def sure_mark(self) -> int:
        """What is committed, and as durable here as the stream wants."""
        return self.sure_end if self.stream.config.sync is SyncMode.ALWAYS else self.high_watermark

    @property
    def is_high_watermark_known(self) -> bool:
        """Whether the high watermark covers all that an earlier leader may have committed."""
        return self._replication is None or self._replication.is_high_watermark_known()

    @property
    def is_cut_off(self) -> bool:
        """Whether another node may lead by now, and this one would not know: it refuses nothing then."""
        return self._replication is not None and self._replication.is_cut_off()

    def replica_states(self) -> list[dict[str, Any]]:
        """See `Replication.states`; empty where there is no other replica, or another node leads."""
        return [] if self._replication is None else self._replication.states()

    def attach(self, replication: Replication) -> None:
        """This replica is one of several from now on, and leads when it is told to."""
        self._replication = replication
        self.is_leading = False
        self.gone = ErrorCode.NOT_LEADER

    def lead(self, epoch: int) -> None:
        """Lead, or go on leading in another epoch."""
        self._acks = AckTemplate(self.stream.name, self.number, epoch)
        self.is_leading = True
        self.gone = None
        self._wake()

    def follow(self, epoch: int) -> None:
        """Lead no longer: nobody here knows what becomes of the messages that are not committed yet."""
        self.note_whole()
        self.heard_s = None
        self.gaps.leave(was_leading=self.is_leading)
        self.is_leading = False
        self._appended.clear()
        self.gone = ErrorCode.NOT_LEADER
        self._give_up("outcome unknown: another node leads the partition now")
        self._acks = AckTemplate(self.stream.name, self.number, epoch)
        self._wake()

    def note_whole(self) -> None:
        """Where it leads: the log holds what was published before the last question that NATS answered."""
        if self.is_leading and self.heard_s is not None and self.gaps.are_recorded:
            self.whole.note(self.heard_s, self.log.log_end, self.sure_end)

    def accept(self, *, accepting: bool) -> None:
        """Whether enough replicas are in sync; if not, whoever waits for all of them is told so."""
        self.is_accepting = accepting
        if accepting:
            return
        description = "outcome unknown: fewer replicas than min_isr are in sync"
        self._send_errors(self._owed_by_all.take_all(), description)
        self._give_up_callbacks(description)
        self._count_owed()
        self._outbox.flush()

    def remember(
        self, appended: Appended, ids: HashedIds | None = None, offsets: Sequence[int] = (), *, records: int = 1
    ) -> None:
        """What was appended has these ids, or none; see `DedupeWindow.add`."""
        if ids is not None:
            self.dedupe.add(self.log_time.age_time(appended.timestamp), ids, offsets, records=records)
        self.dedupe.end_offset = self.dedupe.ordered.end_offset = appended.next_offset

    def remember_ordered(self, appended: Appended, key: OrderedId) -> None:
        """What was appended is a batch of an ordered producer."""
        base_offset, next_offset, timestamp = appended
        batch = StoredBatch(key.epoch, key.sequence, next_offset - 1, next_offset - base_offset, timestamp)
        self.dedupe.ordered.add(key.producer, batch, self.high_watermark)
        self.remember(appended)

    def has_room_for(self, producer: bytes) -> bool:
        """Whether a batch of this ordered producer can be remembered."""
        return self.dedupe.ordered.has_room(producer, self.log.last_timestamp)

    def save_ordered(self) -> None:
        """Write down what is known of ordered producers, if the file lacks something of it.

        Raises:
            StorageFullError, PartitionOfflineError: from the log.
        """
        ordered = self.dedupe.ordered
        if self.has_unsaved_ordered:
            end = self.ordered_end
            self.work(lambda: self.log.save_ordered(ordered.encode(end)))
            ordered.saved_end = end

    def _save_ordered_before(self, offset: int) -> None:
        """Records below `offset` are about to go, and with them what they say of ordered producers.

        They also go from a full disk, which needs that, if the rest of the log or the file say the same.
        """
        try:
            self.save_ordered()
        except StorageFullError:
            if self.dedupe.ordered.lacks_below(offset, self.sure_end):
                raise

    @property
    def has_unsaved_ordered(self) -> bool:
        """Whether the file of the ordered producers lacks something, and no leader is to tell more of them."""
        ordered = self.dedupe.ordered
        return ordered.is_unsaved() and (ordered.is_whole or self.is_leading) and self.log.failure is None

    @property
    def ordered_end(self) -> int:
        """Up to where the file of the ordered producers may speak of the log."""
        ordered = self.dedupe.ordered
        return min(max(self.sure_end, ordered.told_end), ordered.end_offset)

    def stored(self, key: DedupeId | OrderedId) -> Stored | None:
        """Where the message with this id is; None when no such message is remembered.

        An id that is remembered of a record behind the end of the log was never stored: it is no duplicate. One below
        its start was, and was dropped or purged since.
        """
        found, end = self.dedupe.find(key), self.log.log_end
        if found is None or found.offset < end:
            return found
        logger.error(
            "stream %s partition %d: a message id was remembered of offset %d, but the log ends at %d; the message is "
            "stored now; please report this",
            *(self.stream.name, self.number, found.offset, end),
        )
        self.dedupe.truncate(end)
        return None

    def owe(self, policy: AckPolicy, next_offset: int, owed: Owed) -> None:
        """Send acks when records below `next_offset` are as safe as `policy` wants them."""
        queue = self._owed_by_leader if policy is AckPolicy.LEADER else self._owed_by_all
        queue.add(next_offset, owed)

    def on_committed(self, offset: int, callback: Callable[[str | None], None]) -> None:
        """Call `callback` once, when records below `offset` are committed, or when nobody here knows whether they are.

        Args:
            offset: Not below that of an earlier call.
            callback: Takes None after the commit, else the reason why its outcome is unknown.
        """
        self._commit_callbacks.append((offset, callback))

    def end_pass(self) -> None:
        """After a pass over a chunk: see to it that what was appended becomes durable, and send what is due."""
        self._request_durability()
        self._note_append_time(self.log.log_end)
        if self._replication is not None:
            self._replication.appended()
        self._commit(self.durable_end)

    def replicated(self) -> None:
        """What a leader sent was appended: see to it that it becomes durable."""
        self._request_durability()

    def _request_durability(self) -> None:
        log = self.log
        if self.stream.config.sync is SyncMode.ALWAYS and log.synced_end < log.log_end:
            self.count_unsynced()
            self._request_sync(log)

    def was_cut(self, end: int) -> None:
        """Records from `end` on are gone, to be replaced by the leader's."""
        self.high_watermark = min(max(self.high_watermark, self.log.log_start), end)
        self.whole.cut(end)
        self.count_unsynced()
        self._wake()

    def on_synced(self, next_offset: int) -> None:
        """A group commit round made records below `next_offset` durable."""
        self.log.durability.mark_synced(next_offset)
        self.count_unsynced()
        self._commit(self.durable_end)

    def count_unsynced(self) -> None:
        """Bring the node's count of what waits for the disk up to date."""
        unsynced = 0 if self.log.failure is not None else self.log.durability.unsynced_bytes
        self._load.unsynced_bytes += unsynced - self._counted_bytes
        self._counted_bytes = unsynced

    def _commit(self, durable_end: int) -> None:
        """Records below `durable_end` are as durable here as the stream wants."""
        if self._replication is not None:
            self._replication.durable(durable_end)
            self.commit(self.high_watermark)  # also what was found to be committed before, as duplicates are
        else:
            self.commit(durable_end)
        if self._owed_by_leader:
            due = self._owed_by_leader.take(durable_end)
            if not self.is_cut_off:
                self._send(due)

    def _count_owed(self) -> None:
        owed = max(0, self._owed_by_all.end - self.high_watermark)
        self._load.owed_records += owed - self._counted_owed
        self._counted_owed = owed

    def commit(self, end: int) -> None:
        """Records below `end` are committed: show them, and acknowledge them."""
        moved = end > self.high_watermark
        if moved:
            self.high_watermark = end
            self._note_commit_times(end)
        if self._owed_by_all:
            self._send(self._owed_by_all.take(self.high_watermark))
        while self._commit_callbacks and self._commit_callbacks[0][0] <= self.high_watermark:
            self._call_back(self._commit_callbacks.popleft()[1], None)
        if self._replication is not None:
            self._count_owed()
        if moved and self._waiters:
            self._wake()

    def _note_append_time(self, end: int) -> None:
        appended = self._appended
        if end > self.high_watermark and len(appended) < _TIMED_MAX and (not appended or appended[-1][0] < end):
            appended.append((end, self._clock.elapsed()))

    def _note_commit_times(self, end: int) -> None:
        appended = self._appended
        if appended and appended[0][0] <= end:
            now_s = self._clock.elapsed()
            while appended and appended[0][0] <= end:
                self._load.commit_s.observe(now_s - appended.popleft()[1])

    def _send(self, due: Sequence[Owed]) -> None:
        for owed in due:
            self._outbox.add(owed.encode(self._acks))

    def _send_errors(self, due: Sequence[Owed], description: str) -> None:
        if self.is_cut_off:  # nor is it for this node to say what became of them
            return
        for owed in due:
            self._outbox.add(owed.encode_error(self._acks, AckErrorCode.OUTCOME_UNKNOWN, description))

    def _give_up(self, description: str) -> None:
        """Tell all who wait for an ack that nobody here knows what became of their messages."""
        self._send_errors(self._owed_by_leader.take_all() + self._owed_by_all.take_all(), description)
        self._give_up_callbacks(description)
        self._count_owed()
        self._outbox.flush()

    def _give_up_callbacks(self, why: str) -> None:
        callbacks, self._commit_callbacks = self._commit_callbacks, deque()
        for _, callback in callbacks:
            self._call_back(callback, why)

    def _call_back(self, callback: Callable[[str | None], None], why: str | None) -> None:
        """An error in one callback is no reason not to call the others."""
        try:
            callback(why)
        except Exception as error:  # noqa: BLE001 - logged with its traceback
            text = f"stream {self.stream.name} partition {self.number}: an error after a commit; please report this"
            self._warnings = self._warnings or RepeatedWarnings(logger)
            self._warnings.tell("callback", text, self._clock.elapsed(), error=error)

    def roll(self) -> None:
        """Close the log's newest segment, which makes everything durable.

        Raises:
            StorageFullError, PartitionOfflineError: from the log.
        """
        self.work(self.log.roll)

    def purge(self, offset: int) -> None:
        """Make `offset` the start of the log, as far as it is committed.

        Raises:
            StorageFullError, PartitionOfflineError: from the log.
        """
        self._save_ordered_before(offset)
        if offset > self.high_watermark:
            self.roll()  # what that makes durable may be committed by it
        self.work(lambda: self.log.purge(min(offset, self.high_watermark)))
        self.start_advanced()

    def drop_before(self, offset: int) -> None:
        """Delete whole segments that lie below `offset` and are committed.

        Raises:
            StorageFullError, PartitionOfflineError: from the log.
        """
        self._save_ordered_before(offset)
        if self.log.drop_before(min(offset, self.high_watermark)):
            self.start_advanced()

    def start_advanced(self) -> None:
        """Records at the log's start are gone."""
        if self._replication is not None:
            self._replication.start_advanced()

    def work(self, work: Callable[[], object]) -> None:
        """Have the log do what may make records durable: no round of group commit will find them left to do.

        Raises:
            StorageFullError, PartitionOfflineError: from the log.
        """
        synced_before = self.log.synced_end
        try:
            work()
        except PartitionOfflineError as error:
            self.fail(str(error))
            raise
        else:
            self.count_unsynced()
            if self.log.synced_end > synced_before:
                self._commit(self.durable_end)
        finally:
            self._outbox.flush()

    def fail(self, reason: str, *, is_lasting: bool = True) -> None:
        """An I/O error: take no more messages, and tell those who wait that nobody knows what became of theirs.

        Args:
            reason: Reason, for people.
            is_lasting: Whether it says something of what is on disk; otherwise the log is opened again later.
        """
        if not self._has_failed:
            self._has_failed = True
            logger.error("stream %s partition %d is offline: %s", self.stream.name, self.number, reason)
            note = self.note_failure if is_lasting else self.note_lack
            if note is not None:
                note(reason)
        self.log.durability.fail(reason)
        self.count_unsynced()
        self._give_up("outcome unknown: the partition went offline")
        if self._replication is not None:
            self._replication.log_failed()
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
            StorageFullError: what is known of ordered producers has no room on the disk.
            PartitionOfflineError: an I/O error.
        """
        self.gone = why
        try:
            self.work(self.log.close)
            self.save_ordered()
        finally:
            self._give_up("outcome unknown: the node is stopping")
            if self._replication is not None:
                self._replication.close()
            self.dedupe.clear(0)
            self._wake()
