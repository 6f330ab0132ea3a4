"""One replica of a partition: takes the role that the metadata gives it, and keeps the marks of its log.

A view counts only if it has this node in this incarnation: a process that was replaced by a later one of the same
node, or that the metadata does not know yet, has no role. Nor has one whose log has failed: it tells the metadata, and
when there is a new copy in its place, that; it takes a role again when the metadata has taken note of both.

A quiet replica (`is_quiet`) needs no ticks. Its owner ticks it again after any other input, when the session with a
peer has been silent for half of `leader_timeout_s`, and four times per `replica_lag_max_s` anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from liftpy_envelope.follow import FollowEnd
from liftpy_server.replication.core.effects import (
    AnswerEpochEnd,
    AnswerFetch,
    Append,
    Rebuild,
    ReportFailure,
    ReportLog,
    ReportRenewal,
    Truncate,
)
from liftpy_server.replication.core.follower import Follower
from liftpy_server.replication.core.inputs import (
    AppendFailed,
    CutFailed,
    Durable,
    FetchAnswered,
    FollowerAsked,
    FollowerFetched,
    GaveUp,
    IsrRefused,
    LogAppended,
    LogFailed,
    Rebuilt,
    StartAdvanced,
    Tick,
    Truncated,
    ViewChanged,
)
from liftpy_server.replication.core.leader import Leader

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_envelope.pull import PartitionKey
    from liftpy_server.replication.core.effects import Effect
    from liftpy_server.replication.core.inputs import Input
    from liftpy_server.replication.core.view import LogMarks, PartitionView, ReplicationTimes

__all__ = ["Replica"]


class Replica:
    """State machine of one replica: `step` takes every input and returns effects.

    Args:
        node_id: Id of this node.
        incarnation: Incarnation that the metadata gave it when it registered.
        key: The partition; views of another stream with the same name are ignored.
        log: The marks of the log as it was opened; the replica keeps them from then on.
        times: How patient it is.
    """

    def __init__(
        self, node_id: str, incarnation: int, key: PartitionKey, log: LogMarks, times: ReplicationTimes
    ) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self.log = log
        self.role: Leader | Follower | None = None
        self._key = key
        self._uuid = key.uuid.hex()
        self._times = times
        self._view: PartitionView | None = None
        self._waiting_view: PartitionView | None = None
        self._is_log_busy = False
        self._is_quiet = False
        self._is_failed = False
        self._is_over = False
        self._reported_s = float("-inf")

    @property
    def leader(self) -> Leader | None:
        """The role, if this replica leads."""
        return self.role if isinstance(self.role, Leader) else None

    @property
    def view(self) -> PartitionView | None:
        """The view of the metadata by which this replica acts; a newer one may wait until its log is done."""
        return self._view

    @property
    def is_quiet(self) -> bool:
        """Whether ticks would say nothing new, as long as the peers' sessions are heard (see the module)."""
        return self._is_quiet

    def step(self, given: Input, now_s: float) -> list[Effect]:
        """Process one input, and return the effects.

        Args:
            given: What happened.
            now_s: This process's monotonic clock.

        Returns:
            What is to be done, in this order.
        """
        if self._is_quiet:
            self._is_quiet = False
            if self.role is not None:
                self.role.woken(now_s)
        effects = self._HANDLERS[type(given)](self, given, now_s)
        for effect in effects:
            if isinstance(effect, (Append, Truncate, Rebuild)):
                self._is_log_busy = True
        return effects

    def _follower_fetched(self, given: FollowerFetched, now_s: float) -> list[Effect]:
        if isinstance(self.role, Leader):
            return self.role.fetched(given.node_id, given.fetch, now_s)
        return [AnswerFetch(answer=given.fetch.not_led())]

    def _follower_asked(self, given: FollowerAsked, _now_s: float) -> list[Effect]:
        if isinstance(self.role, Leader):
            return self.role.asked(given.node_id, given.question)
        return [AnswerEpochEnd(answer=given.question.not_led())]

    def _isr_refused(self, given: IsrRefused, _now_s: float) -> list[Effect]:
        return self.role.isr_refused(given.version, given.attempt) if isinstance(self.role, Leader) else []

    def _start_advanced(self, given: StartAdvanced, _now_s: float) -> list[Effect]:
        self.log.advance_start(given.start)
        return []

    def _log_failed(self, _given: LogFailed, now_s: float) -> list[Effect]:
        self._is_failed = True
        return [*self._gave_up(GaveUp(), now_s), *self._reported(now_s)]

    def _gave_up(self, _given: GaveUp, _now_s: float) -> list[Effect]:
        self._is_over = True
        self._is_log_busy = False
        effects = self.role.end() if isinstance(self.role, Leader) else []
        self.role = None
        return effects

    def _fetched(self, given: FetchAnswered, now_s: float) -> list[Effect]:
        return self.role.fetched(given, now_s) if isinstance(self.role, Follower) else []

    def _epoch_end(self, given: FollowEnd, now_s: float) -> list[Effect]:
        return self.role.epoch_end(given, now_s) if isinstance(self.role, Follower) else []

    def _durable(self, given: Durable, now_s: float) -> list[Effect]:
        before = self.log.durable_end
        self.log.sync(given.end)
        if self.log.durable_end == before or self.role is None:
            return []
        return self.role.durable(now_s) if isinstance(self.role, Follower) else self.role.advanced()

    def _log_changed(
        self, given: LogAppended | AppendFailed | CutFailed | Truncated | Rebuilt, now_s: float
    ) -> list[Effect]:
        """Marks first; then the role goes on; then what the metadata said meanwhile."""
        if self._is_over:  # what was under way comes too late
            return []
        self._mark(given)
        self._is_log_busy = False
        effects: list[Effect] = []
        if isinstance(self.role, Leader):
            self.role.appended(now_s)
        elif self.role is not None:
            effects += self._followed(self.role, given, now_s)
        if self._waiting_view is not None:
            view, self._waiting_view = self._waiting_view, None
            effects += self._take_view(view, now_s)
        return effects

    def _mark(self, given: LogAppended | AppendFailed | CutFailed | Truncated | Rebuilt) -> None:
        if isinstance(given, LogAppended):
            for part in given.ranges:
                self.log.append(part.epoch, part.base, part.end)
            self.log.sync(given.durable_end)
        elif isinstance(given, Truncated):
            self.log.truncate(given.end)
        elif isinstance(given, Rebuilt):
            self.log.rebuild(given.start)

    @staticmethod
    def _followed(
        follower: Follower, given: LogAppended | AppendFailed | CutFailed | Truncated | Rebuilt, now_s: float
    ) -> list[Effect]:
        if isinstance(given, LogAppended):
            return follower.appended(now_s)
        if isinstance(given, AppendFailed):
            follower.append_failed(now_s)
            return []
        if isinstance(given, CutFailed):
            follower.cut_failed(now_s)
            return []
        return follower.cut(now_s)

    def _viewed(self, given: ViewChanged, now_s: float) -> list[Effect]:
        return self._take_view(given.view, now_s)

    def _take_view(self, view: PartitionView, now_s: float) -> list[Effect]:
        if view.uuid != self._uuid or (self._view is not None and view.revision <= self._view.revision):
            return []
        if self._is_log_busy:
            if self._waiting_view is None or view.revision > self._waiting_view.revision:
                self._waiting_view = view
            return []
        before, self._view = self._view, view
        if before is not None and view.unclean_epoch > before.unclean_epoch:
            self.log.known_end = 0  # what was lost is lost
        is_same = self.role is not None and before is not None and _same_term(before, view)
        if is_same and self._has_role(view):
            return self._same_role(view, now_s)
        effects = self.role.end() if isinstance(self.role, Leader) else []
        self.role = None
        return [*effects, *self._new_role(view, now_s)]

    def _has_role(self, view: PartitionView) -> bool:
        is_me = not self._is_over and view.incarnations.get(self.node_id) == self.incarnation
        is_well = self.node_id not in view.failed
        return is_me and is_well and view.leader is not None and self.node_id in view.replicas

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
            self.role = Follower(self.node_id, self.incarnation, self._key, view, self.log, self._times, now_s)
        return self.role.begin(now_s)

    def _tick(self, given: Tick, now_s: float) -> list[Effect]:
        if self.role is not None:
            effects = self.role.tick(given, now_s)
            self._is_quiet = self.role.is_steady
        else:
            effects = self._reported(now_s)
            self._is_quiet = self._report() is None and not self._is_unsynced
        return effects

    def _reported(self, now_s: float) -> list[Effect]:
        report = self._report()
        if report is None or now_s - self._reported_s < self._times.retry_s:
            return []
        self._reported_s = now_s
        return [report]

    def _report(self) -> Effect | None:
        """What the metadata has to hear of this log and does not know; where no clean member is left, how far it is."""
        view = self._view
        if view is None or view.incarnations.get(self.node_id) != self.incarnation or self.node_id not in view.replicas:
            return None
        if self._is_failed and self.node_id not in view.failed:
            return ReportFailure(high_watermark=self._known_end)
        if not self._is_failed and self._is_over:
            return None
        if not self._is_failed and self.node_id in view.failed:
            return ReportRenewal()
        return None if view.isr or view.leader is not None else self._log_report(view)

    @property
    def _is_unsynced(self) -> bool:
        """Whether a report has to wait: who is elected by it must have on disk what it says."""
        return not self._is_failed and self.log.durable_end < self.log.end

    @property
    def _known_end(self) -> int:
        """Records below it are known here to have been committed."""
        return max(self.log.high_watermark, self.log.known_end)

    def _log_report(self, view: PartitionView) -> ReportLog | None:
        """How far this log reaches, where the metadata does not have it."""
        log = self.log
        if self._is_unsynced:
            return None
        last_epoch, log_end = (-1, 0) if self._is_failed else (log.epochs.latest, log.end)
        mark = self._known_end
        if (self.node_id, self.incarnation, last_epoch, log_end, mark) in view.reports:
            return None
        return ReportLog(leader_epoch=view.leader_epoch, last_epoch=last_epoch, log_end=log_end, high_watermark=mark)

    _HANDLERS: ClassVar[dict[type, Callable[[Replica, Any, float], list[Effect]]]] = {
        ViewChanged: _viewed,
        Tick: _tick,
        StartAdvanced: _start_advanced,
        LogFailed: _log_failed,
        GaveUp: _gave_up,
        IsrRefused: _isr_refused,
        Durable: _durable,
        LogAppended: _log_changed,
        AppendFailed: _log_changed,
        CutFailed: _log_changed,
        Truncated: _log_changed,
        Rebuilt: _log_changed,
        FollowerFetched: _follower_fetched,
        FollowerAsked: _follower_asked,
        FetchAnswered: _fetched,
        FollowEnd: _epoch_end,
    }


def _same_term(before: PartitionView, after: PartitionView) -> bool:
    return (before.leader, before.leader_epoch) == (after.leader, after.leader_epoch)
