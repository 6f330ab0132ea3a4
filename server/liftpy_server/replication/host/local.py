"""One replica on this node: carries out what the replication core wants, and reports what became of it.

It stands between the core (`Replica`), the partition's log, the links to leaders, the followers that fetch from here,
and the metadata. Nothing in it waits; all of it runs on the event loop.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from liftpy_envelope.errors import BatchCorruptError, LiftError
from liftpy_log.errors import BatchesRefusedError, PartitionOfflineError, StorageFullError, UnfinishedCutError
from liftpy_log.ids.ordered import OrderedProducers
from liftpy_log.log_time import Leap
from liftpy_log.storage.disk import is_full
from liftpy_server.partition.dedupe_rebuild import note_batches, note_log
from liftpy_server.replication.core import effects as fx
from liftpy_server.replication.core import inputs
from liftpy_server.replication.core.follower import Follower, FollowPhase
from liftpy_server.replication.core.ranges import BatchRange, ranges_up_to
from liftpy_server.replication.core.replica import Replica
from liftpy_server.replication.core.view import LogMarks
from liftpy_server.replication.host.answering import Answering
from liftpy_server.replication.host.log_changes import append_followed, cut_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from liftpy_envelope.follow import FollowFetch, FollowQuestion
    from liftpy_log.ids.ordered import ToldProducers
    from liftpy_log.recent import RecentBatches, RecentTail
    from liftpy_server.partition.partition import Partition
    from liftpy_server.replication.core.effects import Effect
    from liftpy_server.replication.core.inputs import Input
    from liftpy_server.replication.core.view import PartitionView, ReplicationTimes
    from liftpy_server.replication.wire.batches import FollowedBatches

__all__ = ["LocalReplica", "ReplicaOwner"]

logger = logging.getLogger(__name__)


class ReplicaOwner(Protocol):
    """What a replica needs of the node that runs it. Nothing in it waits."""

    @property
    def node_id(self) -> str:
        """This node."""

    @property
    def incarnation(self) -> int:
        """That this node has registered."""

    @property
    def times(self) -> ReplicationTimes:
        """How patient replicas are."""

    @property
    def recent(self) -> RecentBatches:
        """The newest batches of the logs that lead."""

    @property
    def is_cut_off(self) -> bool:
        """Whether another node may have been made the leader of anything, and this one would not know."""

    @property
    def now_s(self) -> Callable[[], float]:
        """The monotonic clock of this process."""

    @property
    def leadership_changed(self) -> Callable[[LocalReplica], None]:
        """Takes a replica that began or ceased to lead."""

    def fetch(self, replica: LocalReplica, leader: str, request: FollowFetch) -> None:
        """Fetch from a leader."""

    def ask(self, replica: LocalReplica, leader: str, question: FollowQuestion) -> None:
        """Ask a leader."""

    def drop(self, replica: LocalReplica) -> None:
        """A replica follows nobody now."""

    def leave(self, replica: LocalReplica) -> None:
        """A replica is closed."""

    def propose(self, replica: LocalReplica, effect: Effect) -> None:
        """Propose a change to the metadata."""

    def committed(self) -> None:
        """A replica committed records."""

    def stepped(self, replica: LocalReplica, *, is_quiet: bool) -> None:
        """A replica took a step; a quiet one needs no ticks."""

    def heard_of(self, nodes: Iterable[str]) -> dict[str, float]:
        """When nodes that follow were heard."""

    def heard_from_leader(self, replica: LocalReplica) -> dict[str, float]:
        """When the leader was heard at which a fetch of the replica waits."""

    def warn(self, replica: LocalReplica, text: str) -> None:
        """Log something about a replica that may happen again and again."""


class LocalReplica(Answering):
    """Carries out what the core of one replica wants, and reports the results. `Answering` answers its followers.

    Args:
        partition: Log of the partition, and who waits for it.
        host: Runs the replicas of the node.

    Attributes:
        key: Which partition it is.
        goes_on_leading: Whether it led until this moment, alone or in the leader epoch before.
    """

    def __init__(self, partition: Partition, host: ReplicaOwner) -> None:
        log = partition.log
        super().__init__(log)
        self.partition = partition
        self.key = partition.key
        self._host = host
        self._waiting: deque[Input] = deque()
        self._is_stepping = False
        self._is_closed = False
        self._view: PartitionView | None = None
        self._resumes_in: int | None = None  # the first leader epoch in which it takes a role again; after giving up
        self.goes_on_leading = partition.is_leading
        self._ended_epoch: int | None = None  # in which it led, until the effect before
        self._core = self._make_core()
        partition.attach(self)
        if log.failure is not None:
            self.log_failed()

    def _make_core(self) -> Replica:
        log, host = self.log, self._host
        marks = LogMarks(
            start=log.log_start,
            end=log.log_end,
            durable_end=min(max(self.partition.durable_end, log.log_start), log.log_end),
            high_watermark=self.partition.high_watermark,
            epochs=log.epochs.entries,
            delete_horizon=log.compaction.delete_horizon,
        )
        return Replica(host.node_id, host.incarnation, self.key, marks, host.times)

    @property
    def core(self) -> Replica:
        """The state machine."""
        return self._core

    @property
    def leaps(self) -> tuple[Leap, ...]:
        """See `Answering`."""
        return self.partition.log_time.leaps

    @property
    def is_in_sync(self) -> bool:
        """Whether it follows, agrees with its leader on what is before, and is one that consumers may read."""
        view = self._core.view
        return self.is_agreed and view is not None and self._core.node_id in {*view.isr, *view.observers}

    @property
    def is_agreed(self) -> bool:
        """Whether it follows, and its log is known to be the beginning of its leader's."""
        role = self._core.role
        return isinstance(role, Follower) and role.phase in {FollowPhase.FETCHING, FollowPhase.APPENDING}

    def told_producers(self, fetch: FollowFetch, end: int) -> bytes:
        """See `FollowedPartition`. Only key compaction merges batches, and never those of the newest segment."""
        if fetch.knows and fetch.offset >= self.log.active.base_offset:
            return b""
        ordered, end = self.partition.dedupe.ordered, min(end, self.partition.high_watermark)
        if not fetch.knows:
            return ordered.encode(end)
        return ordered.encode(end, fetch.offset) if ordered.known(end, fetch.offset) else b""

    def whole_end(self, asked_s: float) -> int | None:
        """See `FollowedPartition`."""
        partition = self.partition
        is_certain = partition.is_leading and partition.heard_s == asked_s and partition.gaps.are_recorded
        return self.log.log_end if is_certain else None

    def reset_role(self) -> None:
        """Whatever role it had is over: the node has registered again, or this replica had given up.

        After an error that nobody expected it has none, and tries again when it is ticked, or hears of the metadata.
        """
        resumes_in, self._resumes_in = self._resumes_in, None
        try:
            self._take_up_log()
        except Exception:
            name, number = self.partition.stream.name, self.key.partition
            logger.exception("stream %s partition %d: the replica can not begin anew; it tries again", name, number)
            self._resumes_in = resumes_in or 0
            self._core.step(inputs.GaveUp(), self._host.now_s())

    def _take_up_log(self) -> None:
        """Make another core, which knows what is in the log and nothing else."""
        self._keep_recent(None)
        if self.partition.is_leading:
            self.partition.follow(self.partition.epoch)
            self._host.leadership_changed(self)
        self._host.drop(self)
        self.partition.was_cut(self.log.log_end)  # which nobody said if an error came in between
        self._know_ids()
        self._core = self._make_core()
        if self.log.failure is not None:
            self.log_failed()
        self.wake_followers(is_urgent=True)  # which are answered by the new core

    # -- what happens

    def viewed(self, view: PartitionView) -> None:
        """The metadata says something about the partition."""
        if self._view is not None and view.leader_epoch != self._view.leader_epoch:
            self.partition.whole.cut(self.log.log_end)  # what another leader sends may be something else
        self._view = view
        if self._resumes_in is not None:
            if view.leader_epoch < self._resumes_in:
                return
            self.reset_role()
        self.step(inputs.ViewChanged(view=view))

    def tick(self, paused_s: float) -> None:
        """Time has passed."""
        if self._resumes_in is not None and self._view is not None:
            self.viewed(self._view)
        self.step(inputs.Tick(paused_s=paused_s, heard_s=self._heard()))

    def _heard(self) -> dict[str, float]:
        leader = self._core.leader
        if leader is not None:
            return self._host.heard_of(self.parked_nodes)
        return self._host.heard_from_leader(self)

    def appended(self) -> None:
        """See `Replication`."""
        marks, end = self._core.log, self.log.log_end
        if end > marks.end:
            self.step(inputs.LogAppended(ranges=(BatchRange(epoch=self.partition.epoch, base=marks.end, end=end),)))
            self.wake_followers(is_urgent=True)

    def durable(self, end: int) -> None:
        """See `Replication`."""
        if end > self._core.log.durable_end:
            self.step(inputs.Durable(end=end))

    def start_advanced(self) -> None:
        """See `Replication`."""
        if self.log.log_start > self._core.log.start:
            self.step(inputs.StartAdvanced(start=self.log.log_start))

    def log_failed(self) -> None:
        """See `Replication`."""
        self._resumes_in = None
        self._keep_recent(None)
        self.step(inputs.LogFailed())
        self._host.drop(self)
        self.wake_followers(is_urgent=True)

    def is_cut_off(self) -> bool:
        """See `Replication`."""
        view = self._core.view
        return self._host.is_cut_off and (view is None or len(view.replicas) > len(view.observers) + 1)

    def is_high_watermark_known(self) -> bool:
        """See `Replication`."""
        leader = self._core.leader
        return leader is not None and leader.is_caught_up

    def producers_known(self) -> None:
        """See `Replication`."""
        self.wake_followers(is_urgent=True)

    @property
    def awaits_producers(self) -> bool:
        """See `FollowedPartition`."""
        return self.partition.awaits_producers

    def states(self) -> list[dict[str, Any]]:
        """See `Replication`."""
        leader, end = self._core.leader, self.log.log_end
        if leader is None:
            return []
        return [
            {
                "node": node,
                "log_end": log_end,
                "lag_messages": None if log_end is None else max(0, end - log_end),
                "in_sync": node in leader.view.isr and keeps_up,
            }
            for node, log_end, keeps_up in leader.states(self._host.now_s())
        ]

    def close(self) -> None:
        """See `Replication`."""
        self._is_closed = True
        self._keep_recent(None)
        self._host.leave(self)
        self.wake_followers(is_urgent=True)

    def step(self, given: Input) -> None:
        """Give the core an input, and do what it wants. One that comes while another is worked on waits its turn."""
        if self._is_closed:
            return
        self._waiting.append(given)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._waiting and not self._is_closed:
                for effect in self._core.step(self._waiting.popleft(), self._host.now_s()):
                    self._carry_out(effect)
                self._ended_epoch = None
        except Exception:
            logger.exception(
                "stream %s partition %d: the replica gives up", self.partition.stream.name, self.key.partition
            )
            self._give_up()
        finally:
            self._is_stepping = False
            self._ended_epoch = None
            self._waiting.clear()
        if not self._is_closed:
            self._host.stepped(self, is_quiet=self._core.is_quiet or self._resumes_in is not None)

    def _give_up(self) -> None:
        """An error that nobody expected: nobody knows what was carried out, so this replica leads and follows no more.

        A follower begins anew when it is ticked. A leader may have proposed members for the ISR whom another leader of
        the same epoch would not count, so it waits for the next epoch.
        """
        view = self._view
        self._resumes_in = view.leader_epoch + 1 if view is not None and view.leader == self._host.node_id else 0
        self._core.step(inputs.GaveUp(), self._host.now_s())
        self._host.drop(self)
        self._keep_recent(None)
        if self.partition.is_leading:
            self.partition.follow(self.partition.epoch)
            self._host.leadership_changed(self)
        self.wake_followers(is_urgent=True)

    def fail(self, reason: str) -> None:
        """The log is damaged."""
        self.partition.fail(reason)

    # -- what is to be done

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case fx.AdvanceHighWatermark():
                self.partition.commit(effect.offset)
                self._host.committed()
                if self.log.recent is not None:  # all that count have fetched these; others read them from the disk
                    self.log.recent.drop_before(effect.offset)
                self.wake_followers(is_urgent=False)
            case fx.AnswerFetch() | fx.AnswerEpochEnd():
                self.answer = effect.answer
            case fx.Fetch():
                self._host.fetch(self, effect.leader, self._as_it_counts(effect.request))
            case fx.AskEpochEnd():
                self._host.ask(self, effect.leader, effect.question)
            case fx.Append() | fx.Truncate() | fx.Rebuild() | fx.KeepCommitted():
                self._follow_log(effect)
            case fx.LeadershipBegan() | fx.LeadershipEnded():
                self._change_role(effect)
            case fx.AcceptingChanged():
                self._accept(effect)
            case _:
                self._host.propose(self, effect)

    def _as_it_counts(self, request: FollowFetch) -> FollowFetch:
        """Until its leader told it of ordered producers before its log, a replica counts as having nothing."""
        return request if self.partition.dedupe.ordered.is_whole else request._replace(knows=0, durable_end=0)

    def _follow_log(self, effect: fx.Append | fx.Truncate | fx.Rebuild | fx.KeepCommitted) -> None:
        """Do to the log, or leave undone, what makes it the leader's."""
        if isinstance(effect, fx.Append):
            self._append(effect.fetched)
        elif isinstance(effect, fx.KeepCommitted):
            self._keep_committed(effect)
        else:
            self._cut(effect)

    def _append(self, fetched: inputs.FetchAnswered) -> None:
        records: FollowedBatches = fetched.records
        answer = fetched.result
        after_ns = self.log.last_timestamp
        try:
            if self.partition.storage_full:
                raise StorageFullError("the node's disk is full")
            self._learn_producers(records.told)
            if not records.headers:
                self._waiting.append(inputs.LogAppended(ranges=(), durable_end=self.partition.durable_end))
                return
            appended, records = append_followed(self.log, records, answer.high_watermark, answer.delete_horizon)
        except (StorageFullError, BatchesRefusedError) as error:
            self._host.warn(self, f"can not follow: {error}")
            self._waiting.append(inputs.AppendFailed())
            return
        except (PartitionOfflineError, BatchCorruptError) as error:
            self.partition.fail(str(error))
            return
        finally:
            self.partition.dedupe.ordered.truncate(self.log.log_end)
        stored = [header for header in records.headers if header.next_offset <= appended.next_offset]
        self.partition.copied(after_ns, appended.timestamp, [Leap(*leap) for leap in answer.leaps])
        try:
            partition = self.partition
            note_batches(partition.dedupe, stored, records.data, partition.log_time, partition.high_watermark)
        except BatchCorruptError as error:  # a restart would find it in the log, and say the same
            self.partition.fail(str(error))
            return
        self.partition.replicated()
        ranges = ranges_up_to(fetched.ranges, appended.next_offset)
        self._waiting.append(inputs.LogAppended(ranges=ranges, durable_end=self.partition.durable_end))

    def _learn_producers(self, told: ToldProducers | None) -> None:
        """Know what a leader says of ordered producers, durably, before there are records of which nothing else tells.

        Raises:
            StorageFullError: there is no room.
            BatchesRefusedError: the leader answers a fetch from before this log began anew.
            PartitionOfflineError: an I/O error.
        """
        ordered = self.partition.dedupe.ordered
        if told is None:
            if not ordered.is_whole:
                raise BatchesRefusedError(self.log.directory, "nothing came of what was stored before them")
            return
        ordered.learn(told.batches)
        ordered.told_end = max(ordered.told_end, told.end)
        if told.batches or not ordered.is_whole:
            end = max(told.end, self.partition.ordered_end)
            self.log.save_ordered(ordered.encode(end))
            ordered.saved_end = end
            ordered.is_whole = True

    def _know_ids(self) -> None:
        """Let the partition know the ids of what is in the log, and of nothing else; an error may have come between."""
        if self.log.failure is not None:
            return
        try:
            partition = self.partition
            note_log(partition.dedupe, self.log, partition.log_time, partition.high_watermark)
        except (LiftError, OSError) as error:
            is_lasting = not (isinstance(error, OSError) and is_full(error))
            self.partition.fail(f"its message ids can not be read: {error}", is_lasting=is_lasting)

    def _cut(self, effect: fx.Truncate | fx.Rebuild) -> None:
        """Drop records; it is durable when it returns."""
        name, number = self.partition.stream.name, self.partition.number
        to = effect.end if isinstance(effect, fx.Truncate) else effect.start
        if effect.loses_committed:
            self.partition.stream.counters.committed_lost += 1
            self.partition.fail(
                f"records from {to} on, which may have been acknowledged, are gone after an unclean election: nothing "
                "of this log is dropped, it goes to quarantine as it is, and a new copy is made from the leader"
            )
            return
        logger.info("stream %s partition %d: cut from %d to %d", name, number, self.log.log_end, to)
        try:
            if isinstance(effect, fx.Truncate):
                to = cut_back(self.log, to)
                self._waiting.append(inputs.Truncated(end=to))
                # The cut has synced what it left, and the next round of group commit finds nothing to tell of.
                self._waiting.append(inputs.Durable(end=self.partition.durable_end))
                self.partition.dedupe.truncate(to)
            else:
                self._forget_ordered()
                self.log.rebuild(to)
                self.partition.dedupe.clear(to)
                self._waiting.append(inputs.Rebuilt(start=to))
        except StorageFullError as error:
            self._host.warn(self, f"can not be cut back to what its leader has: {error}")
            self._waiting.append(inputs.CutFailed())
            return
        except UnfinishedCutError as error:
            self.partition.was_cut(to)  # so it ends when it is opened again
            self.partition.fail(str(error), is_lasting=False)
            return
        except (PartitionOfflineError, OSError) as error:
            self.partition.fail(str(error))
            return
        self.partition.was_cut(to)

    def _forget_ordered(self) -> None:
        """What the file says of ordered producers is not so of the log that begins anew; nor is that there are none."""
        self.log.save_ordered(OrderedProducers().encode(0))
        self.partition.dedupe.ordered.saved_end = -1

    def _keep_committed(self, effect: fx.KeepCommitted) -> None:
        self._host.warn(
            self,
            f"can not follow node {effect.leader}, which lacks records that were committed: those from {effect.end} "
            f"to {effect.high_watermark} are kept here, and an operator must decide",
        )

    def _keep_recent(self, tail: RecentTail | None) -> None:
        """While the log leads, its newest batches stay in memory for followers; only then it is never cut."""
        before, self.log.recent = self.log.recent, tail
        if before is not None:
            before.clear()

    def _change_role(self, effect: fx.LeadershipBegan | fx.LeadershipEnded) -> None:
        self._keep_recent(None)
        self.wake_followers(is_urgent=True)
        if isinstance(effect, fx.LeadershipBegan):
            self._keep_recent(self._host.recent.tail())
            self._host.drop(self)
            self._know_ids()
            self.goes_on_leading |= self._ended_epoch == effect.leader_epoch - 1
            self.partition.lead(effect.leader_epoch)
            self.partition.is_accepting = False  # until the core says otherwise; it does so next if enough are in sync
            if self._view is not None and self._view.unclean_epoch == effect.leader_epoch:
                logger.warning(
                    "stream %s partition %d: this node leads by an unclean election and goes on at offset %d: "
                    "acknowledged records may be lost",
                    *(self.partition.stream.name, self.key.partition, self.log.log_end),
                )
        else:
            self._ended_epoch = effect.leader_epoch
            self.partition.follow(effect.leader_epoch)
        self._host.leadership_changed(self)
        self.goes_on_leading = False

    def _accept(self, effect: fx.AcceptingChanged) -> None:
        if not effect.accepting:
            self._host.warn(self, "fewer replicas than min_isr are in sync: messages that want to be safe are refused")
        self.partition.accept(accepting=effect.accepting)
