"""A follower in one epoch: makes its log a prefix of the leader's, then keeps it one.

    ASKING     wants to know where the leader has the end of the epoch of its own last record
    CUTTING    truncates to the smaller of the two ends, or starts anew, and asks again until the epochs agree
    FETCHING   fetches from its log end
    APPENDING  appends what came

It never truncates by its high watermark: that may be older than what it has on disk and helped to commit.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from liftpy_server.replication.effects import (
    AdvanceHighWatermark,
    Append,
    AskEpochEnd,
    Fetch,
    Rebuild,
    SuspectLeader,
    Truncate,
)
from liftpy_server.replication.messages import EpochEndQuestion, FetchRequest, Refusal

if TYPE_CHECKING:
    from liftpy_server.replication.effects import Effect
    from liftpy_server.replication.messages import EpochEndAnswer, FetchAnswer
    from liftpy_server.replication.view import LogMarks, PartitionView, ReplicationTimes

__all__ = ["Follower", "Phase"]


class Phase(Enum):
    """What a follower waits for."""

    ASKING = "asking"
    CUTTING = "cutting"
    FETCHING = "fetching"
    APPENDING = "appending"


class Follower:
    """See the module. `begin` once, then what happens; every method returns what is to be done.

    Args:
        node_id: this replica.
        incarnation: of this node.
        view: in which another replica leads.
        log: the marks of its log; the owner keeps them up to date.
        times: how patient it is.
        now_s: its monotonic clock.
    """

    def __init__(
        self,
        node_id: str,
        incarnation: int,
        view: PartitionView,
        log: LogMarks,
        times: ReplicationTimes,
        now_s: float,
    ) -> None:
        assert view.leader is not None, "nobody to follow"
        self.view = view
        self.phase = Phase.ASKING
        self._leader = view.leader
        self._node_id = node_id
        self._incarnation = incarnation
        self._log = log
        self._times = times
        self._heard_s = now_s
        self._suspected_s = float("-inf")
        self._sent_s = now_s
        self._questions = 0
        self._is_agreed = False
        self._leader_high_watermark = 0

    def begin(self, now_s: float) -> list[Effect]:
        """Follow."""
        return self._ask(now_s)

    def view_changed(self, view: PartitionView) -> None:
        """The metadata changed, and this replica goes on following in the same epoch."""
        self.view = view

    def tick(self, now_s: float) -> list[Effect]:
        """Time has passed."""
        effects: list[Effect] = []
        if now_s - self._sent_s >= self._times.request_timeout_s:
            if self.phase is Phase.ASKING:
                effects += self._ask(now_s)
            elif self.phase is Phase.FETCHING:
                effects += self._fetch(now_s)
        timeout_s = self._times.leader_timeout_s
        is_silent = now_s - self._heard_s >= timeout_s and now_s - self._suspected_s >= timeout_s
        if is_silent and self._node_id in self.view.isr:
            self._suspected_s = now_s
            effects.append(SuspectLeader(leader=self._leader, leader_epoch=self.view.leader_epoch))
        return effects

    def forgive(self, pause_s: float) -> None:
        """This process itself stood still for so long."""
        self._heard_s += pause_s

    def durable(self, now_s: float) -> list[Effect]:
        """More is on disk: say so at once, the leader may wait for nothing else."""
        return self._fetch(now_s) if self.phase is Phase.FETCHING else []

    def epoch_end(self, answer: EpochEndAnswer, now_s: float) -> list[Effect]:
        """The leader says where an epoch ends."""
        is_mine = answer.incarnation == self._incarnation and answer.question == self._questions
        if not is_mine or self.phase is not Phase.ASKING:
            return []
        if answer.refusal is not None:
            return self._try_again_soon()
        if answer.leader_epoch != self.view.leader_epoch:
            return []
        self._heard_s = now_s
        if answer.epoch == -1:  # the leader keeps nothing that this log could be compared with
            return self._rebuild(answer.end)
        log = self._log
        epoch, end = log.epochs.end_offset(answer.epoch, log.end)
        cut_at = max(log.start, min(end, answer.end))
        self._is_agreed = epoch == answer.epoch
        if cut_at < log.end:
            self.phase = Phase.CUTTING
            return [Truncate(end=cut_at, loses_committed=cut_at < log.high_watermark)]
        return self._go_on(now_s)

    def cut(self, now_s: float) -> list[Effect]:
        """The log was truncated, or is empty and begins elsewhere."""
        return self._go_on(now_s)

    def answered(self, answer: FetchAnswer, now_s: float) -> list[Effect]:
        """The leader says what follows `answer.offset`. Any answer of this epoch that fits the log is a good one."""
        is_mine = answer.incarnation == self._incarnation and answer.offset == self._log.end
        if not is_mine or self.phase is not Phase.FETCHING:
            return []
        if answer.refusal in {Refusal.NOT_LEADER, Refusal.STALE_INCARNATION}:
            return self._try_again_soon()
        if answer.leader_epoch != self.view.leader_epoch:
            return []
        if answer.refusal is Refusal.BELOW_START:
            self._heard_s = now_s
            return self._rebuild(answer.log_start)
        if answer.refusal is Refusal.DIVERGED:
            return self._diverged(answer, now_s)
        self._heard_s = now_s
        self._leader_high_watermark = max(self._leader_high_watermark, answer.high_watermark)
        if answer.ranges:
            self.phase = Phase.APPENDING
            return [Append(answer=answer)]
        return [*self._advanced(), *self._fetch(now_s)]

    def appended(self, now_s: float) -> list[Effect]:
        """What came is in the log."""
        self.phase = Phase.FETCHING
        return [*self._advanced(), *self._fetch(now_s)]

    def append_failed(self, now_s: float) -> None:
        """Nothing of what came is in the log; it is fetched again after a while."""
        self.phase = Phase.FETCHING
        self._sent_s = now_s

    def _try_again_soon(self) -> list[Effect]:
        """The leader does not know yet that it leads, or who asks: at the next tick it may. It counts as silent."""
        self._sent_s = float("-inf")
        return []

    def _go_on(self, now_s: float) -> list[Effect]:
        if not self._is_agreed:
            return self._ask(now_s)
        self.phase = Phase.FETCHING
        return self._fetch(now_s)

    def _ask(self, now_s: float) -> list[Effect]:
        if self._log.epochs.latest == -1:  # a log without a record agrees with any other
            self._is_agreed = True
            return self._go_on(now_s)
        self.phase = Phase.ASKING
        self._sent_s = now_s
        self._questions += 1
        question = EpochEndQuestion(
            node_id=self._node_id,
            incarnation=self._incarnation,
            leader_epoch=self.view.leader_epoch,
            question=self._questions,
            last_epoch=self._log.epochs.latest,
        )
        return [AskEpochEnd(leader=self._leader, question=question)]

    def _fetch(self, now_s: float) -> list[Effect]:
        self._sent_s = now_s
        request = FetchRequest(
            node_id=self._node_id,
            incarnation=self._incarnation,
            leader_epoch=self.view.leader_epoch,
            offset=self._log.end,
            last_epoch=self._log.epochs.latest,
            durable_end=self._log.durable_end,
            high_watermark=self._log.high_watermark,
        )
        return [Fetch(leader=self._leader, request=request)]

    def _advanced(self) -> list[Effect]:
        committed = min(self._leader_high_watermark, self._log.end)
        if committed <= self._log.high_watermark:
            return []
        self._log.high_watermark = committed
        return [AdvanceHighWatermark(offset=committed)]

    def _diverged(self, answer: FetchAnswer, now_s: float) -> list[Effect]:
        self._heard_s = now_s
        if self._log.epochs.latest == -1:  # nothing to compare by, and beyond the leader's end
            return self._rebuild(answer.log_start)
        self._is_agreed = False
        return self._ask(now_s)

    def _rebuild(self, start: int) -> list[Effect]:
        self._is_agreed = True
        self.phase = Phase.CUTTING
        return [Rebuild(start=start, loses_committed=start < self._log.high_watermark)]
