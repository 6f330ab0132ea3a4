"""A follower in one epoch: makes its log a prefix of the leader's, then keeps it one.

    ASKING     wants to know where the leader has the end of the epoch of its own last record
    CUTTING    truncates to the smaller of the two ends, or starts anew, and asks again until the epochs agree
    FETCHING   fetches from its log end
    APPENDING  appends what came

It never truncates by its high watermark: that may be older than what it has on disk and helped to commit.

A fetch to which there is nothing new waits at the leader, for as long as it takes; while it waits the leader is heard
by the session that carries it, and this follower is steady.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from liftpy_envelope.follow import FollowFetch, FollowQuestion, FollowRefusal
from liftpy_server.replication.core.effects import (
    AdvanceHighWatermark,
    Append,
    AskEpochEnd,
    Fetch,
    KeepCommitted,
    Rebuild,
    SuspectLeader,
    Truncate,
)

if TYPE_CHECKING:
    from liftpy_envelope.follow import FollowEnd, FollowResult
    from liftpy_envelope.pull import PartitionKey
    from liftpy_server.replication.core.effects import Effect
    from liftpy_server.replication.core.inputs import FetchAnswered, Tick
    from liftpy_server.replication.core.view import LogMarks, PartitionView, ReplicationTimes

__all__ = ["FollowPhase", "Follower"]


class FollowPhase(Enum):
    """What a follower waits for."""

    ASKING = "asking"
    CUTTING = "cutting"
    FETCHING = "fetching"
    APPENDING = "appending"


class Follower:
    """The follower role in one epoch. Call `begin` once; every method returns effects.

    Args:
        node_id: This replica.
        incarnation: Incarnation of this node.
        key: The partition.
        view: View in which another replica leads.
        log: The marks of its log; the owner keeps them up to date.
        times: How patient it is.
        now_s: Monotonic time of the replica, seconds.
    """

    def __init__(
        self,
        node_id: str,
        incarnation: int,
        key: PartitionKey,
        view: PartitionView,
        log: LogMarks,
        times: ReplicationTimes,
        now_s: float,
    ) -> None:
        assert view.leader is not None, "nobody to follow"
        self.view = view
        self.phase = FollowPhase.ASKING
        self._leader = view.leader
        self._node_id = node_id
        self._incarnation = incarnation
        self._key = key
        self._log = log
        self._times = times
        self._heard_s = now_s
        self._suspected_s = float("-inf")
        self._sent_s = now_s
        self._is_fetch_out = False
        self._is_steady = False
        self._questions = 0
        self._is_agreed = False
        self._leader_high_watermark = 0
        self._copies_since_s = float("-inf")  # when it began to copy this leader's log into an empty one

    def begin(self, now_s: float) -> list[Effect]:
        """Follow."""
        return self._ask(now_s)

    @property
    def is_steady(self) -> bool:
        """Whether the last tick found that nothing is to be done while the leader's session is heard."""
        return self._is_steady

    def view_changed(self, view: PartitionView) -> None:
        """The metadata changed, and this replica goes on following in the same epoch."""
        self.view = view

    def woken(self, now_s: float) -> None:
        """Something happens after it was steady; its owner would have told of a silence half as long as a timeout."""
        self._heard_s = max(self._heard_s, now_s - self._times.leader_timeout_s / 2)

    def tick(self, given: Tick, now_s: float) -> list[Effect]:
        """Time has passed."""
        waiting_s = self._waiting_heard_s(given)
        self._heard_s = min(now_s, max(self._heard_s, waiting_s) + given.paused_s)
        effects = [*self._sent_again(waiting_s, now_s), *self._suspected(now_s)]
        is_heard = now_s - waiting_s < self._times.leader_timeout_s / 2
        self._is_steady = is_heard and not effects and not self._wants_to_join()
        return effects

    def _waiting_heard_s(self, given: Tick) -> float:
        """When the leader was heard by the session at which a fetch waits; -inf where none does."""
        if not self._is_fetch_out:
            return float("-inf")
        return given.heard_s.get(self._leader, float("-inf"))

    def _wants_to_join(self) -> bool:
        return self._node_id not in self.view.isr and self._node_id not in self.view.observers

    def _sent_again(self, waiting_s: float, now_s: float) -> list[Effect]:
        """Who wants to join says again what it has even while its fetch waits: the leader may have had to forget it."""
        if now_s - self._sent_s < self._times.request_timeout_s:
            return []
        if self.phase is FollowPhase.ASKING:
            return self._ask(now_s)
        is_waiting = now_s - waiting_s < self._times.request_timeout_s and not self._wants_to_join()
        return self._fetch(now_s) if self.phase is FollowPhase.FETCHING and not is_waiting else []

    def _suspected(self, now_s: float) -> list[Effect]:
        view, timeout_s = self.view, self._times.leader_timeout_s
        is_silent = now_s - self._heard_s >= timeout_s and now_s - self._suspected_s >= timeout_s
        if not is_silent or self._node_id not in view.isr or self._node_id in view.observers:
            return []
        self._suspected_s = now_s
        return [SuspectLeader(leader=self._leader, leader_epoch=view.leader_epoch)]

    def durable(self, now_s: float) -> list[Effect]:
        """More is on disk: say so at once, the leader may wait for nothing else."""
        return self._fetch(now_s) if self.phase is FollowPhase.FETCHING else []

    def epoch_end(self, answer: FollowEnd, now_s: float) -> list[Effect]:
        """The leader says where an epoch ends."""
        is_mine = answer.incarnation == self._incarnation and answer.question == self._questions
        if not is_mine or self.phase is not FollowPhase.ASKING:
            return []
        if answer.refusal:
            return self._try_again_soon()
        if answer.leader_epoch != self.view.leader_epoch:
            return []
        self._heard_s = now_s
        if answer.epoch == -1:  # the leader keeps nothing that this log could be compared with
            return self._rebuild(answer.end, now_s)
        log = self._log
        epoch, end = log.epochs.end_offset(answer.epoch, log.end)
        cut_at = max(log.start, min(end, answer.end))
        if self._must_keep(cut_at):
            return self._keep(cut_at, now_s)
        self._is_agreed = epoch == answer.epoch
        if cut_at < log.end:
            self.phase = FollowPhase.CUTTING
            return [Truncate(end=cut_at, loses_committed=self._may_lose(cut_at))]
        return self._go_on(now_s)

    def _must_keep(self, cut_at: int) -> bool:
        """Whether committed records would go, and the metadata knows of no election since by which they were lost."""
        log = self._log
        return cut_at < log.high_watermark and self.view.unclean_epoch <= max(0, log.epochs.latest)

    def _may_lose(self, cut_at: int) -> bool:
        """Whether what goes was committed, or may have been: an unclean election passed this log over.

        The high watermark of a node that was killed is as old as its last checkpoint.
        """
        log = self._log
        was_passed_over = self.view.unclean_epoch > max(0, log.epochs.latest)
        return cut_at < (log.end if was_passed_over else log.high_watermark)

    def _keep(self, cut_at: int, now_s: float) -> list[Effect]:
        self.phase = FollowPhase.ASKING
        self._is_agreed = False
        self._sent_s = now_s
        return [KeepCommitted(leader=self._leader, end=cut_at, high_watermark=self._log.high_watermark)]

    def cut(self, now_s: float) -> list[Effect]:
        """The log was truncated, or is empty and begins elsewhere."""
        return self._go_on(now_s)

    def fetched(self, fetched: FetchAnswered, now_s: float) -> list[Effect]:
        """The leader says what follows an offset. Any answer of this epoch that fits the log is a good one."""
        answer = fetched.result
        is_mine = answer.incarnation == self._incarnation and answer.offset == self._log.end
        if not is_mine or self.phase is not FollowPhase.FETCHING:
            return []
        self._is_fetch_out = False
        if answer.refusal is FollowRefusal.NOT_LEADER or answer.refusal is FollowRefusal.STALE_INCARNATION:
            return self._try_again_soon()
        if answer.leader_epoch != self.view.leader_epoch:
            return []
        if answer.refusal is FollowRefusal.BELOW_START:
            self._heard_s = now_s
            return self._rebuild(answer.log_start, now_s)
        if answer.refusal is FollowRefusal.DIVERGED:
            return self._diverged(answer, now_s)
        self._heard_s = now_s
        self._leader_high_watermark = max(self._leader_high_watermark, answer.high_watermark)
        if self._lacks_tombstones(answer, now_s):
            return self._rebuild(answer.log_start, now_s, is_planned=True)
        if fetched.ranges:
            self._log.delete_horizon = max(self._log.delete_horizon, answer.delete_horizon)
        if fetched.ranges or answer.producers_bytes:
            self.phase = FollowPhase.APPENDING
            return [Append(fetched=fetched)]
        return [*self._advanced(), *self._fetch(now_s)]

    def _lacks_tombstones(self, answer: FollowResult, now_s: float) -> bool:
        """Whether keys may live on here that were deleted, for their tombstones have left the leader's log.

        A tombstone leaves `delete_retention_s` after all that it deleted has left. So of a log that is being copied
        for less than that it can have deleted nothing which came here.
        """
        log = self._log
        if log.start == log.end:
            self._copies_since_s = now_s
        if answer.delete_horizon <= max(log.delete_horizon, log.end) or log.start == log.end:
            return False
        return now_s - self._copies_since_s >= self.view.delete_retention_s

    def appended(self, now_s: float) -> list[Effect]:
        """What came is in the log."""
        self.phase = FollowPhase.FETCHING
        return [*self._advanced(), *self._fetch(now_s)]

    def append_failed(self, now_s: float) -> None:
        """Nothing of what came is in the log; it is fetched again after a while."""
        self.phase = FollowPhase.FETCHING
        self._sent_s = now_s

    def cut_failed(self, now_s: float) -> None:
        """The log is as it was; the leader is asked again after a while where to cut it."""
        self.phase = FollowPhase.ASKING
        self._is_agreed = False
        self._sent_s = now_s

    def _try_again_soon(self) -> list[Effect]:
        """The leader does not know yet that it leads, or who asks: at the next tick it may. It counts as silent."""
        self._sent_s = float("-inf")
        return []

    def _go_on(self, now_s: float) -> list[Effect]:
        if not self._is_agreed:
            return self._ask(now_s)
        self.phase = FollowPhase.FETCHING
        return self._fetch(now_s)

    def _ask(self, now_s: float) -> list[Effect]:
        if self._log.epochs.latest == -1:  # a log without a record agrees with any other
            self._is_agreed = True
            return self._go_on(now_s)
        self.phase = FollowPhase.ASKING
        self._sent_s = now_s
        self._questions += 1
        question = FollowQuestion(
            key=self._key,
            incarnation=self._incarnation,
            leader_epoch=self.view.leader_epoch,
            question=self._questions,
            last_epoch=self._log.epochs.latest,
        )
        return [AskEpochEnd(leader=self._leader, question=question)]

    def _fetch(self, now_s: float) -> list[Effect]:
        self._sent_s = now_s
        self._is_fetch_out = True
        request = FollowFetch(
            key=self._key,
            incarnation=self._incarnation,
            leader_epoch=self.view.leader_epoch,
            offset=self._log.end,
            last_epoch=self._log.epochs.latest,
            durable_end=self._log.durable_end,
            high_watermark=self._log.high_watermark,
            version=self.view.version,
        )
        return [Fetch(leader=self._leader, request=request)]

    def _advanced(self) -> list[Effect]:
        committed = min(self._leader_high_watermark, self._log.end)
        if committed <= self._log.high_watermark:
            return []
        self._log.high_watermark = committed
        return [AdvanceHighWatermark(offset=committed)]

    def _diverged(self, answer: FollowResult, now_s: float) -> list[Effect]:
        self._heard_s = now_s
        if self._log.epochs.latest == -1:  # nothing to compare by, and beyond the leader's end
            return self._rebuild(answer.log_start, now_s)
        self._is_agreed = False
        return self._ask(now_s)

    def _rebuild(self, start: int, now_s: float, *, is_planned: bool = False) -> list[Effect]:
        if not is_planned and self._must_keep(start):
            return self._keep(start, now_s)
        self._is_agreed = True
        self.phase = FollowPhase.CUTTING
        return [Rebuild(start=start, loses_committed=not is_planned and self._may_lose(start))]
