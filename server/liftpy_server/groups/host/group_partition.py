"""One partition of the stream of the groups where this node leads it: what is asked of its groups becomes records.

All that arrives in one pass of the event loop goes into one batch. What came of a step, an answer or news for a parked
heartbeat, is acted on when its batch and all earlier ones are committed. If nobody knows what became of a batch, all
that was made of the log is thrown away and made anew, because the coordinators' state runs ahead of the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from liftpy_envelope.errors import LiftError
from liftpy_envelope.group_offsets import CommitRequest
from liftpy_envelope.groups import GroupError, HeartbeatRequest, JoinRequest, MembershipResult
from liftpy_log.errors import PartitionOfflineError, StorageFullError
from liftpy_server.groups.core.inputs import Effects, Now
from liftpy_server.groups.core.records import encode_records
from liftpy_server.groups.host import limits
from liftpy_server.groups.host.append_scheduler import AppendScheduler
from liftpy_server.groups.host.tick_timer import TickTimer
from liftpy_server.groups.host.waiting import WaitingHeartbeats

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from liftpy_log.clock import Clock
    from liftpy_server.groups.core.inputs import StreamsChanged
    from liftpy_server.groups.core.records import GroupRecord
    from liftpy_server.groups.host.coordinators import Coordinators
    from liftpy_server.groups.host.pending import PendingRequest
    from liftpy_server.partition.partition import Partition

__all__ = ["GroupPartition"]

logger = logging.getLogger(__name__)

_UNSURE = "whether the request was carried out is not known; ask again"


class _Outcome(NamedTuple):
    """What came of a step; nobody asked for ticks and the like."""

    group: str
    pending: PendingRequest | None
    effects: Effects


class GroupPartition:
    """One partition of `__consumer_offsets` that this node leads. It answers requests once their records are committed.

    Args:
        partition: Led by this node.
        replayed: Makes the coordinators of what is committed in the log; called when that is known.
        clock: Clock of the node.
        scheduler: Makes the batches of all partitions durable together; by default it has one of its own.
    """

    def __init__(
        self,
        partition: Partition,
        replayed: Callable[[], Awaitable[Coordinators]],
        clock: Clock,
        scheduler: AppendScheduler | None = None,
    ) -> None:
        self.partition = partition
        self.epoch = partition.epoch
        self._replayed = replayed
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._coordinators: Coordinators | None = None
        self._why = "the coordinator reads what is committed; ask again"
        self._end = 0
        self._inbox: deque[PendingRequest] = deque()
        self._taken: list[PendingRequest] = []  # in this pass
        self._queued = 0
        self._scheduler = scheduler or AppendScheduler()
        self._records: list[GroupRecord] = []
        self._outcomes: list[_Outcome] = []
        self._waiting: deque[tuple[int, float, list[_Outcome]]] = deque()
        self._heartbeats = WaitingHeartbeats(self._ask_again)
        self._tick_timer = TickTimer(clock.monotonic, self._tick)
        self._has_ended = False
        self._task: asyncio.Task[None] | None = None

    @property
    def coordinators(self) -> Coordinators | None:
        """Coordinators of the groups, ahead of what is committed; None while they are being made."""
        return self._coordinators

    @property
    def is_leading(self) -> bool:
        """Whether this is the leader still that it was when it began."""
        partition = self.partition
        return partition.is_leading and partition.gone is None and partition.epoch == self.epoch

    def start(self, delay_s: float = 0.0) -> None:
        """Make the coordinators."""
        self._task = self._loop.create_task(self._begin(delay_s), name="replay consumer groups")

    def end(self, error: GroupError, message: str) -> asyncio.Task[None] | None:
        """Coordinate nothing any more. Returns what may be left to wait for."""
        self._has_ended = True
        self._drop(error, message)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        return task

    # -- the beginning

    async def _begin(self, delay_s: float) -> None:
        while True:
            await asyncio.sleep(delay_s)
            delay_s = limits.RETRY_S
            try:
                await _wait_high_watermark(self.partition, lambda: self.is_leading)
                end = self.partition.high_watermark
                coordinators = await self._replayed()
            except (LiftError, OSError) as error:
                self._why = f"the coordinator can not be made: {error}; ask again"
                logger.warning("consumer groups of partition %d: %s", self.partition.number, error)
            except Exception:
                logger.exception("consumer groups of partition %d can not be read", self.partition.number)
            else:
                if self.is_leading and end == self.partition.log.log_end:
                    self._enter(coordinators, end)
                    return

    def _enter(self, coordinators: Coordinators, end: int) -> None:
        self._coordinators, self._end, self._task = coordinators, end, None
        self._schedule()

    # -- what is asked

    def ask(self, pending: PendingRequest) -> None:
        """Take a request, or a question."""
        if self._coordinators is None:
            pending.refuse(GroupError.NOT_AVAILABLE, self._why)
        elif self._queued >= limits.QUEUED_MAX:
            pending.refuse(GroupError.NOT_AVAILABLE, "the coordinator has too much to do; ask again")
        else:
            self._queued += 1
            self._inbox.append(pending)
            self._schedule()

    def show(self, pending: PendingRequest, shown: Any) -> None:
        """Answer with this when all is committed that was known when it was made."""
        if self._coordinators is None:
            pending.refuse(GroupError.NOT_AVAILABLE, self._why)
            return
        self._queued += 1
        self._outcomes.append(_Outcome(pending.group, pending, Effects(answer=shown)))
        self._append()

    def streams_changed(self, streams: StreamsChanged) -> None:
        """There are other streams now."""
        if self._coordinators is not None:
            self._coordinators.streams_changed(streams)
            self._schedule()

    def forget_streams(self, group: str, uuids: set[bytes]) -> None:
        """Forget what a group has committed for streams that are no more."""
        if self._coordinators is not None:
            self._records += self._coordinators.forget_streams(group, uuids)
            self._append()

    def _ask_again(self, pending: PendingRequest) -> None:
        """A parked heartbeat is to get the news."""
        self._queued += 1
        self._inbox.append(pending)
        self._schedule()

    def append_pending(self) -> None:
        """Take everything that came in since the last pass."""
        if self._coordinators is None:
            return
        with self._restarting():
            self._take(self._coordinators)

    def end_pass(self) -> None:
        """Have what was appended made durable, and replicated."""
        with self._restarting():
            self.partition.end_pass()

    def _schedule(self) -> None:
        self._scheduler.schedule(self)

    def _take(self, coordinators: Coordinators) -> None:
        if not self._may_go_on():
            return
        now = self._now()
        self._add_all(coordinators.tell(now, limits.SLICE_GROUPS))
        end = self._end
        while self._inbox and len(self._taken) < limits.SLICE_REQUESTS and self._end == end:
            pending = self._inbox.popleft()
            self._taken.append(pending)
            self._step(coordinators, pending, now)
        self._append()
        self._taken.clear()
        if self._coordinators is not None and (self._inbox or coordinators.is_untold):
            self._schedule()

    def _step(self, coordinators: Coordinators, pending: PendingRequest, now: Now) -> None:
        given = pending.given
        assert given is not None, "a question is not put in line"
        if pending.answered.done():
            self._queued -= 1
        elif self.partition.storage_full and isinstance(given, (CommitRequest, JoinRequest)):
            self._queued -= 1
            pending.refuse(GroupError.NOT_AVAILABLE, "the disk of the coordinator's node is full; ask again")
        else:
            self._add(pending.group, pending, coordinators.step(pending.group, given, now, pending.client))

    def _may_go_on(self) -> bool:
        if not self.is_leading:
            self._restart(GroupError.NOT_LEADER, "another node coordinates the group now; look it up again")
        elif not self.partition.is_accepting:
            self._restart(GroupError.NOT_AVAILABLE, "too few replicas of the groups' offsets are in sync; ask again")
        else:
            return True
        return False

    def _tick(self, paused_s: float) -> None:
        if self._coordinators is None or not self._may_go_on():
            return
        now = self._now()
        if self._waiting and now.s - self._waiting[0][1] > limits.COMMIT_WAIT_S_MAX:
            self._restart(GroupError.NOT_AVAILABLE, _UNSURE)
            return
        with self._restarting():
            self._add_all(self._coordinators.tick(now, paused_s))
            self._append()

    def _now(self) -> Now:
        return Now(self._clock.monotonic(), self.partition.now_ns())

    # -- what comes of it

    def _add_all(self, effects: Iterable[tuple[str, Effects]]) -> None:
        for group, each in effects:
            self._add(group, None, each)

    def _add(self, group: str, pending: PendingRequest | None, effects: Effects) -> None:
        self._records += effects.records
        self._outcomes.append(_Outcome(group, pending, effects))
        if len(self._records) >= limits.BATCH_RECORDS_MAX:
            self._append()

    def _append(self) -> None:
        """Append what was gathered; what came of it waits for the commit."""
        records, self._records = self._records, []
        outcomes, self._outcomes = self._outcomes, []
        coordinators, partition = self._coordinators, self.partition
        if coordinators is None:  # an earlier batch of this pass failed: these steps built on it
            _refuse(outcomes, GroupError.NOT_AVAILABLE, _UNSURE)
            return
        now_s = self._clock.monotonic()
        if outcomes:
            self._waiting.append((self._end, now_s, outcomes))
        if records:
            try:
                appended = partition.append_body(encode_records(records), self._clock.now_ns())
            except (StorageFullError, PartitionOfflineError) as error:
                self._restart(GroupError.NOT_AVAILABLE, f"the coordinator can not store it: {error}")
                return
            self._end = appended.next_offset
            if outcomes:
                self._waiting[-1] = (self._end, now_s, outcomes)
            partition.on_committed(self._end, self._outcome_known)
            self._scheduler.appended(self)
        self._finish_committed()
        if coordinators is self._coordinators:
            self._tick_timer.expect(coordinators.next_s, is_needed=bool(self._waiting))

    def _finish_committed(self) -> None:
        waiting, committed = self._waiting, self.partition.high_watermark
        while waiting and waiting[0][0] <= committed:
            for outcome in waiting.popleft()[2]:
                self._finish(outcome)

    def _finish(self, outcome: _Outcome) -> None:
        group, pending, effects = outcome
        for member_id in effects.told:
            self._heartbeats.tell(group, member_id)
        if pending is None:
            return
        self._queued -= 1
        given, answer = pending.given, effects.answer
        if isinstance(given, HeartbeatRequest) and isinstance(answer, MembershipResult):
            is_news = bool(answer.error) or answer.assignment is not None
            if pending.may_wait and given.wait_ms_max > 0 and not is_news:
                wait_s = min(given.wait_ms_max / 1000, self._session_s(given) / 3)
                self._heartbeats.wait(pending, given, answer, wait_s)
                return
        pending.reply(answer)

    def _session_s(self, given: HeartbeatRequest) -> float:
        """The session of a member; its next heartbeat must not wait until that is nearly over."""
        coordinator = None if self._coordinators is None else self._coordinators.find(given.group)
        member = None if coordinator is None else coordinator.members.get(given.member_id)
        return 0.0 if member is None else member.session_timeout_ms / 1000

    def _outcome_known(self, why_unknown: str | None) -> None:
        """A batch is committed, or nobody here knows what became of it."""
        if why_unknown is None:
            self._finish_committed()
        else:
            self._restart(GroupError.NOT_AVAILABLE, f"{why_unknown}; {_UNSURE}")

    # -- the end

    @contextmanager
    def _restarting(self) -> Iterator[None]:
        """Begin anew after an error that nobody foresaw."""
        try:
            yield
        except Exception:
            logger.exception("consumer groups of partition %d are read anew", self.partition.number)
            self._restart(GroupError.INTERNAL, "the node met an error; its log has the details")

    def _restart(self, error: GroupError, message: str) -> None:
        self._drop(error, message)
        if self._task is None and not self._has_ended:
            logger.info("consumer groups of partition %d are read anew: %s", self.partition.number, message)
            self.start(limits.RETRY_S if error is GroupError.INTERNAL else limits.LOOK_S)

    def _drop(self, error: GroupError, message: str) -> None:
        """Forget everything that runs ahead of the log, and say so to everybody who waits."""
        if self._coordinators is not None:
            self._coordinators.close()
        self._coordinators = None
        self._why = "the coordinator reads what is committed; ask again"
        self._tick_timer.end()
        waiting = [*self._outcomes, *(outcome for entry in self._waiting for outcome in entry[2])]
        asking = [*self._taken, *self._inbox, *self._heartbeats.take_all()]
        self._taken.clear()
        self._inbox.clear()
        self._records, self._outcomes, self._queued = [], [], 0
        self._waiting.clear()
        _refuse(waiting, error, message)
        for pending in asking:
            pending.refuse(error, message)


def _refuse(outcomes: Iterable[_Outcome], error: GroupError, message: str) -> None:
    for outcome in outcomes:
        if outcome.pending is not None:
            outcome.pending.refuse(error, message)


async def _wait_high_watermark(partition: Partition, is_leading: Callable[[], bool]) -> None:
    """Wait until everything in a log is committed, and what is appended next can be.

    Args:
        partition: Partition whose log it is.
        is_leading: Whether this node leads it; nobody else may append then.
    """
    wake = asyncio.Event()
    while not (
        is_leading()
        and partition.is_high_watermark_known
        and partition.is_accepting
        and partition.log.failure is None
        and partition.high_watermark == partition.log.log_end
    ):
        wake.clear()
        partition.wait(wake.set)
        try:
            async with asyncio.timeout(limits.LOOK_S):
                await wake.wait()
        except TimeoutError:
            continue
        finally:
            partition.stop_waiting(wake.set)
