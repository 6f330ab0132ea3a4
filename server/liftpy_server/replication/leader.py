"""The leader of a partition in one epoch: counts what its followers have on disk, and commits.

    high watermark = the smallest durable end over the in-sync replica set, never backwards

and not at all while the set is smaller than `min_isr`. Counted are the committed set and, while a proposal of this
leader is undecided, the proposed one: an old member counts until its removal is committed, a new one as soon as it is
proposed. A leader in a stale view can not commit: it needs fetches in its epoch from every member of a set that has
the new leader in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_server.replication.effects import (
    AcceptingChanged,
    AdvanceHighWatermark,
    AnswerEpochEnd,
    AnswerFetch,
    LeadershipBegan,
    LeadershipEnded,
    ProposeIsr,
    ProposeLeader,
)
from liftpy_server.replication.isr import is_in_sync, may_join, wanted_isr
from liftpy_server.replication.messages import EpochEndAnswer, FetchAnswer, Refusal
from liftpy_server.replication.progress import EndSamples, FollowerProgress

if TYPE_CHECKING:
    from liftpy_server.replication.effects import Effect
    from liftpy_server.replication.messages import EpochEndQuestion, FetchRequest
    from liftpy_server.replication.view import LogMarks, PartitionView, ReplicationTimes

__all__ = ["Leader"]


class Leader:
    """See the module. `begin` once, then what happens; every method returns what is to be done.

    Args:
        node_id: this replica.
        view: in which this replica leads.
        log: the marks of its log; the owner keeps them up to date.
        times: how patient it is.
        now_s: its monotonic clock.
    """

    def __init__(self, node_id: str, view: PartitionView, log: LogMarks, times: ReplicationTimes, now_s: float) -> None:
        self.view = view
        self.epoch_start = log.end
        self._node_id = node_id
        self._log = log
        self._times = times
        self._samples = EndSamples(times.replica_lag_max_s)
        self._followers = {node: self._unheard(node, now_s) for node in view.replicas if node != node_id}
        self._pending: ProposeIsr | None = None
        self._pending_since_s = now_s
        self._attempts = 0
        self._is_accepting = False
        self._preferred_since_s: float | None = None

    def _unheard(self, node: str, now_s: float) -> FollowerProgress:
        """Members of the set get as much time for their first fetch as between two of them."""
        caught_up_s = now_s if node in self.view.isr else float("-inf")
        return FollowerProgress(incarnation=self.view.incarnations.get(node), caught_up_s=caught_up_s)

    @property
    def is_caught_up(self) -> bool:
        """Whether all that an earlier leader may have committed is known to be committed.

        Until then questions about the newest offset, committed offsets and range ends have no answer yet.
        """
        return self._log.high_watermark >= self.epoch_start

    @property
    def is_accepting(self) -> bool:
        """Whether enough replicas are in sync to commit what is appended now."""
        return self._is_accepting

    def begin(self, now_s: float) -> list[Effect]:
        """Take over."""
        self._samples.add(now_s, self._log.end)
        began = LeadershipBegan(leader_epoch=self.view.leader_epoch, first_offset=self.epoch_start)
        return [began, *self._accepting(now_s), *self.advanced()]

    def end(self) -> list[Effect]:
        """Step down."""
        return [LeadershipEnded(leader_epoch=self.view.leader_epoch)]

    def view_changed(self, view: PartitionView, now_s: float) -> list[Effect]:
        """The metadata changed, and this replica goes on leading in the same epoch."""
        joined = [node for node in view.isr if node not in self.view.isr]
        self.view = view
        if self._pending is not None and view.version > self._pending.version:
            self._pending = None
        for node, progress in self._followers.items():
            if view.incarnations.get(node) != progress.incarnation:
                # A restarted member has its time, but counts with nothing until it says what it has.
                self._followers[node] = self._unheard(node, now_s)
            elif node in joined:
                progress.caught_up_s = max(progress.caught_up_s, now_s)
        return [*self.advanced(), *self._accepting(now_s)]

    def isr_refused(self, version: int) -> list[Effect]:
        """The proposal made at `version` will never happen: its new members count no longer."""
        if self._pending is None or self._pending.version != version:
            return []
        self._pending = None
        return self.advanced()

    def appended(self, now_s: float) -> None:
        """The log has grown."""
        self._samples.add(now_s, self._log.end)

    def advanced(self) -> list[Effect]:
        """Somebody has more on disk, or somebody counts no longer."""
        if len(self.view.isr) < self.view.min_isr:
            return []
        pending = self._pending.isr if self._pending is not None else ()
        ends = [self._log.durable_end]
        for node, progress in self._followers.items():
            if node in self.view.isr or node in pending:
                ends.append(progress.durable_end or 0)
        committed = min(ends)
        if committed <= self._log.high_watermark:
            return []
        self._log.high_watermark = committed
        return [AdvanceHighWatermark(offset=committed)]

    def fetched(self, request: FetchRequest, now_s: float) -> list[Effect]:
        """A follower fetches; what it has on disk counts from now on."""
        refusal = self._refusal(request.node_id, request.incarnation, request.leader_epoch)
        if refusal is None:
            refusal = self._misfit(request)
        if refusal is not None:
            return [self._fetch_answer(request, refusal)]
        progress = self._followers[request.node_id]
        progress.durable_end = max(progress.durable_end or 0, request.durable_end)
        caught_up_s = (
            now_s if progress.durable_end >= self._log.end else self._samples.latest_within(progress.durable_end)
        )
        progress.caught_up_s = max(progress.caught_up_s, caught_up_s)
        effects = self.advanced()
        if request.node_id not in self.view.isr:
            effects += self._proposed(now_s)
        return [*effects, self._fetch_answer(request, None)]

    def asked(self, question: EpochEndQuestion) -> list[Effect]:
        """A follower asks where an epoch ends."""
        refusal = self._refusal(question.node_id, question.incarnation, question.leader_epoch)
        epoch, end = self._log.epochs.end_offset(question.last_epoch, self._log.end)
        answer = EpochEndAnswer(
            node_id=question.node_id,
            incarnation=question.incarnation,
            leader_epoch=self.view.leader_epoch,
            question=question.question,
            epoch=epoch,
            end=end,
            refusal=refusal,
        )
        return [AnswerEpochEnd(answer=answer)]

    def tick(self, now_s: float) -> list[Effect]:
        """Time has passed."""
        self._samples.add(now_s, self._log.end)
        return [*self._proposed(now_s), *self._returned(now_s), *self._accepting(now_s)]

    def forgive(self, pause_s: float) -> None:
        """This process itself stood still for so long."""
        self._samples.shift(pause_s)
        for progress in self._followers.values():
            progress.caught_up_s += pause_s

    def _refusal(self, node: str, incarnation: int, epoch: int) -> Refusal | None:
        if epoch != self.view.leader_epoch:
            return Refusal.NOT_LEADER
        progress = self._followers.get(node)
        if progress is None or progress.incarnation != incarnation:
            return Refusal.STALE_INCARNATION
        return None

    def _misfit(self, request: FetchRequest) -> Refusal | None:
        """A follower asks before its first fetch, so its log should be a prefix of this one; believe nothing else."""
        log = self._log
        if request.offset < log.start:
            return Refusal.BELOW_START
        epoch, end = log.epochs.end_offset(request.last_epoch, log.end)
        is_below_history = request.last_epoch == -1 or request.offset == log.start
        if request.offset > log.end or not (
            is_below_history or (epoch == request.last_epoch and request.offset <= end)
        ):
            return Refusal.DIVERGED
        return None

    def _fetch_answer(self, request: FetchRequest, refusal: Refusal | None) -> AnswerFetch:
        answer = FetchAnswer(
            node_id=request.node_id,
            incarnation=request.incarnation,
            leader_epoch=self.view.leader_epoch,
            offset=request.offset,
            high_watermark=self._log.high_watermark,
            log_start=self._log.start,
            refusal=refusal,
        )
        return AnswerFetch(answer=answer)

    def _proposed(self, now_s: float) -> list[Effect]:
        if self._pending is not None:
            if now_s - self._pending_since_s < self._times.retry_s:
                return []
            self._pending_since_s = now_s
            return [self._pending]
        joiners = tuple(
            node
            for node, progress in self._followers.items()
            if node not in self.view.isr
            and is_in_sync(progress, now_s, self._times.replica_lag_max_s)
            and may_join(progress, self._log.high_watermark, self.epoch_start)
        )
        lag_max_s = self._times.replica_lag_max_s
        isr = wanted_isr(self.view, self._node_id, self._followers, joiners, now_s, lag_max_s)
        if set(isr) == set(self.view.isr):
            return []
        self._attempts += 1
        self._pending_since_s = now_s
        self._pending = ProposeIsr(
            isr=isr,
            incarnations={node: self.view.incarnations[node] for node in isr if node in self.view.incarnations},
            leader_epoch=self.view.leader_epoch,
            version=self.view.version,
            attempt=self._attempts,
        )
        return [self._pending]

    def _returned(self, now_s: float) -> list[Effect]:
        """Give the lead back to the preferred replica once it has been in sync for a while."""
        preferred = self.view.replicas[0]
        if preferred == self._node_id or preferred not in self.view.isr or not self.is_caught_up:
            self._preferred_since_s = None
            return []
        if not is_in_sync(self._followers[preferred], now_s, self._times.leader_timeout_s):
            self._preferred_since_s = None
            return []
        if self._preferred_since_s is None:
            self._preferred_since_s = now_s
        if now_s - self._preferred_since_s < self._times.preferred_return_s:
            return []
        self._preferred_since_s = now_s  # where nothing comes of it, it is proposed again after the same time
        return [
            ProposeLeader(leader=preferred, leader_epoch=self.view.leader_epoch, version=self.view.version),
        ]

    def _accepting(self, now_s: float) -> list[Effect]:
        lag_max_s = self._times.replica_lag_max_s
        in_sync = 1 + sum(
            node in self.view.isr and is_in_sync(progress, now_s, lag_max_s)
            for node, progress in self._followers.items()
        )
        is_accepting = in_sync >= self.view.min_isr
        if is_accepting == self._is_accepting:
            return []
        self._is_accepting = is_accepting
        return [AcceptingChanged(accepting=is_accepting)]
