"""One replica of a partition: takes the role that the metadata gives it, and keeps the marks of its log.

A view counts only if it has this node in this incarnation: a process that was replaced by a later one of the same
node, or that the metadata does not know yet, has no role.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_server.replication.effects import AnswerEpochEnd, AnswerFetch, Append, Rebuild, ReportLog, Truncate
from liftpy_server.replication.follower import Follower
from liftpy_server.replication.inputs import (
    Appended,
    AppendFailed,
    Durable,
    IsrRefused,
    Rebuilt,
    StartAdvanced,
    Tick,
    Truncated,
    ViewChanged,
)
from liftpy_server.replication.leader import Leader
from liftpy_server.replication.messages import (
    EpochEndAnswer,
    EpochEndQuestion,
    FetchAnswer,
    FetchRequest,
    Refusal,
)

if TYPE_CHECKING:
    from liftpy_server.replication.effects import Effect
    from liftpy_server.replication.inputs import Input
    from liftpy_server.replication.view import LogMarks, PartitionView, ReplicationTimes

__all__ = ["Replica"]


class Replica:
    """See the module. `step` is everything.

    Args:
        node_id: this node.
        incarnation: that the metadata gave it when it registered.
        uuid: of the stream; views of another stream with the same name are ignored.
        log: the marks of the log as it was opened; the replica keeps them from then on.
        times: how patient it is.
    """

    def __init__(self, node_id: str, incarnation: int, uuid: str, log: LogMarks, times: ReplicationTimes) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self.log = log
        self.role: Leader | Follower | None = None
        self._uuid = uuid
        self._times = times
        self._view: PartitionView | None = None
        self._waiting_view: PartitionView | None = None
        self._is_log_busy = False
        self._stepped_s: float | None = None
        self._reported_s = float("-inf")

    @property
    def leader(self) -> Leader | None:
        """The role, if this replica leads."""
        return self.role if isinstance(self.role, Leader) else None

    def step(self, given: Input, now_s: float) -> list[Effect]:
        """Take one input.

        Args:
            given: what happened.
            now_s: this process's monotonic clock.

        Returns:
            What is to be done, in this order.
        """
        self._forgive_pause(now_s)
        effects = self._dispatch(given, now_s)
        if any(isinstance(effect, (Append, Truncate, Rebuild)) for effect in effects):
            self._is_log_busy = True
        return effects

    def _forgive_pause(self, now_s: float) -> None:
        """Ticks come several times per timeout; without any input for half of one, this process stood still."""
        if self._stepped_s is not None and self.role is not None:
            pause_s = now_s - self._stepped_s - self._times.leader_timeout_s / 2
            if pause_s > 0:
                self.role.forgive(pause_s)
        self._stepped_s = now_s

    def _dispatch(self, given: Input, now_s: float) -> list[Effect]:
        match given:
            case ViewChanged():
                return self._viewed(given.view, now_s)
            case Tick():
                return self._tick(now_s)
            case StartAdvanced():
                self.log.advance_start(given.start)
                return []
            case Durable():
                return self._durable(given, now_s)
            case Appended() | AppendFailed() | Truncated() | Rebuilt():
                return self._log_changed(given, now_s)
            case FetchAnswer() | EpochEndAnswer():
                return self._answered(given, now_s)
            case _:
                return self._asked(given, now_s)

    def _asked(self, given: FetchRequest | EpochEndQuestion | IsrRefused, now_s: float) -> list[Effect]:
        match given:
            case FetchRequest():
                return self.role.fetched(given, now_s) if isinstance(self.role, Leader) else [_no_fetch(given)]
            case EpochEndQuestion():
                return self.role.asked(given) if isinstance(self.role, Leader) else [_no_epoch_end(given)]
            case _:
                return self.role.isr_refused(given.version) if isinstance(self.role, Leader) else []

    def _answered(self, answer: FetchAnswer | EpochEndAnswer, now_s: float) -> list[Effect]:
        if not isinstance(self.role, Follower):
            return []
        if isinstance(answer, FetchAnswer):
            return self.role.answered(answer, now_s)
        return self.role.epoch_end(answer, now_s)

    def _durable(self, given: Durable, now_s: float) -> list[Effect]:
        before = self.log.durable_end
        self.log.sync(given.end)
        if self.log.durable_end == before or self.role is None:
            return []
        return self.role.durable(now_s) if isinstance(self.role, Follower) else self.role.advanced()

    def _log_changed(self, given: Appended | AppendFailed | Truncated | Rebuilt, now_s: float) -> list[Effect]:
        """Marks first; then the role goes on; then what the metadata said meanwhile."""
        self._mark(given)
        self._is_log_busy = False
        effects: list[Effect] = []
        if isinstance(self.role, Leader):
            self.role.appended(now_s)
        elif self.role is not None:
            effects += self._followed(self.role, given, now_s)
        if self._waiting_view is not None:
            view, self._waiting_view = self._waiting_view, None
            effects += self._viewed(view, now_s)
        return effects

    def _mark(self, given: Appended | AppendFailed | Truncated | Rebuilt) -> None:
        if isinstance(given, Appended):
            for part in given.ranges:
                self.log.append(part.epoch, part.base, part.end)
        elif isinstance(given, Truncated):
            self.log.truncate(given.end)
        elif isinstance(given, Rebuilt):
            self.log.rebuild(given.start)

    @staticmethod
    def _followed(
        follower: Follower, given: Appended | AppendFailed | Truncated | Rebuilt, now_s: float
    ) -> list[Effect]:
        if isinstance(given, Appended):
            return follower.appended(now_s)
        if isinstance(given, AppendFailed):
            follower.append_failed(now_s)
            return []
        return follower.cut(now_s)

    def _viewed(self, view: PartitionView, now_s: float) -> list[Effect]:
        if view.uuid != self._uuid or (self._view is not None and view.revision <= self._view.revision):
            return []
        if self._is_log_busy:
            if self._waiting_view is None or view.revision > self._waiting_view.revision:
                self._waiting_view = view
            return []
        before, self._view = self._view, view
        is_same = self.role is not None and before is not None and _same_term(before, view)
        if is_same and self._has_role(view):
            return self._same_role(view, now_s)
        effects = self.role.end() if isinstance(self.role, Leader) else []
        self.role = None
        return [*effects, *self._new_role(view, now_s)]

    def _has_role(self, view: PartitionView) -> bool:
        is_me = view.incarnations.get(self.node_id) == self.incarnation
        return is_me and view.leader is not None and self.node_id in view.replicas

    def _same_role(self, view: PartitionView, now_s: float) -> list[Effect]:
        if isinstance(self.role, Leader):
            return self.role.view_changed(view, now_s)
        if self.role is not None:
            self.role.view_changed(view)
        return []

    def _new_role(self, view: PartitionView, now_s: float) -> list[Effect]:
        if not self._has_role(view):
            return self._reported(now_s)
        if view.leader == self.node_id:
            self.role = Leader(self.node_id, view, self.log, self._times, now_s)
        else:
            self.role = Follower(self.node_id, self.incarnation, view, self.log, self._times, now_s)
        return self.role.begin(now_s)

    def _tick(self, now_s: float) -> list[Effect]:
        if self.role is None:
            return self._reported(now_s)
        return self.role.tick(now_s)

    def _reported(self, now_s: float) -> list[Effect]:
        """Where no clean member of the ISR is left, say how far this log reaches."""
        view = self._view
        if view is None or view.isr or view.leader is not None or self.node_id not in view.unproven:
            return []
        is_me = view.incarnations.get(self.node_id) == self.incarnation
        if not is_me or now_s - self._reported_s < self._times.retry_s:
            return []
        self._reported_s = now_s
        return [ReportLog(last_epoch=self.log.epochs.latest, log_end=self.log.end)]


def _same_term(before: PartitionView, after: PartitionView) -> bool:
    return (before.leader, before.leader_epoch) == (after.leader, after.leader_epoch)


def _no_fetch(request: FetchRequest) -> AnswerFetch:
    return AnswerFetch(
        answer=FetchAnswer(
            node_id=request.node_id,
            incarnation=request.incarnation,
            leader_epoch=-1,
            offset=request.offset,
            high_watermark=0,
            log_start=0,
            refusal=Refusal.NOT_LEADER,
        )
    )


def _no_epoch_end(question: EpochEndQuestion) -> AnswerEpochEnd:
    return AnswerEpochEnd(
        answer=EpochEndAnswer(
            node_id=question.node_id,
            incarnation=question.incarnation,
            leader_epoch=-1,
            question=question.question,
            refusal=Refusal.NOT_LEADER,
        )
    )
