"""The leader of a partition in one epoch: counts what its followers have on disk, and commits.

    high watermark = the smallest durable end over the in-sync replica set, never backwards

and not at all while the set is smaller than `min_isr`. Counted are the committed set and, while a proposal of this
leader is undecided, the proposed one: an old member counts until its removal is committed, a new one as soon as it is
proposed. A leader in a stale view can not commit: it needs fetches in its epoch from every member of a set that has
the new leader in it.

Whether somebody lags is judged at ticks only: they tell for how long this process itself stood still, and by which
sessions a follower is heard whose fetch waits here because there is nothing new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_envelope.follow import FollowEnd, FollowRefusal, FollowResult
from liftpy_server.replication.core.effects import (
    AcceptingChanged,
    AdvanceHighWatermark,
    AnswerEpochEnd,
    AnswerFetch,
    LeadershipBegan,
    LeadershipEnded,
    ProposeIsr,
    ProposeLeader,
    ReportRecords,
)
from liftpy_server.replication.core.isr import is_in_sync, may_join, wanted_isr
from liftpy_server.replication.core.progress import EndSamples, FollowerProgress

if TYPE_CHECKING:
    from liftpy_envelope.follow import FollowFetch, FollowQuestion
    from liftpy_server.replication.core.effects import Effect
    from liftpy_server.replication.core.inputs import Tick
    from liftpy_server.replication.core.view import LogMarks, PartitionView, ReplicationTimes

__all__ = ["Leader"]

_RETURNS_MAX: Final = 64


class Leader:
    """The leader role in one epoch. Call `begin` once; every method returns effects.

    Args:
        node_id: Id of the node with this replica.
        view: View in which this replica leads.
        log: The marks of its log; the owner keeps them up to date.
        times: How patient it is.
        now_s: Monotonic time of the replica, seconds.
    """

    def __init__(self, node_id: str, view: PartitionView, log: LogMarks, times: ReplicationTimes, now_s: float) -> None:
        self.view = view
        self.epoch_start = log.end
        self._node_id = node_id
        self._log = log
        self._times = times
        self._samples = EndSamples(times.replica_lag_max_s, log.end)
        self._followers = {node: self._unheard(node, now_s) for node in view.replicas if node != node_id}
        self._pending: ProposeIsr | None = None
        self._proposed_s = float("-inf")
        self._proposed_version = view.version
        self._attempts = 0
        self._is_accepting = False
        self._is_isr_right = False
        self._is_steady = False
        self._judged_s = now_s
        self._told_records_s = float("-inf")
        self._preferred_since_s: float | None = None
        self._preferred_after_s = times.preferred_return_s

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

    def states(self, now_s: float) -> list[tuple[str, int | None, bool]]:
        """State of each other replica: its node, its durable end, and whether it keeps up."""
        return [
            (node, progress.durable_end, is_in_sync(progress, now_s, self._times.replica_lag_max_s))
            for node, progress in self._followers.items()
        ]

    @property
    def is_accepting(self) -> bool:
        """Whether enough replicas are in sync to commit what is appended now."""
        return self._is_accepting

    @property
    def is_steady(self) -> bool:
        """Whether the last tick found that nothing is to be done while the followers' sessions are heard."""
        return self._is_steady

    def begin(self, now_s: float) -> list[Effect]:
        """Begin to lead."""
        self._samples.add(now_s, self._log.end)
        began = LeadershipBegan(leader_epoch=self.view.leader_epoch, first_offset=self.epoch_start)
        return [began, *self._accepting(), *self.advanced()]

    def end(self) -> list[Effect]:
        """Step down."""
        return [LeadershipEnded(leader_epoch=self.view.leader_epoch)]

    def view_changed(self, view: PartitionView, now_s: float) -> list[Effect]:
        """The metadata changed, and this replica goes on leading in the same epoch."""
        before, self.view = self.view, view
        if self._pending is not None and view.version > self._pending.version:
            self._pending = None
        self._followers = {
            node: self._kept(node, before, now_s) or self._unheard(node, now_s)
            for node in view.replicas
            if node != self._node_id
        }
        return [*self.advanced(), *self._accepting()]

    def _kept(self, node: str, before: PartitionView, now_s: float) -> FollowerProgress | None:
        """What a follower said stays true, unless it has restarted, began a new copy, or was removed and added again.

        The last takes two versions, either of which this leader may have missed; a member of the ISR can not have
        been away, since only this leader could have let it in again.
        """
        progress = self._followers.get(node)
        if progress is None or progress.incarnation != self.view.incarnations.get(node):
            return None
        if before.renewed.get(node) != self.view.renewed.get(node):
            return None
        if node not in self.view.isr:
            return progress if self.view.version <= before.version + 1 else None
        if node not in before.isr:
            progress.caught_up_s = max(progress.caught_up_s, now_s)
        return progress

    def isr_refused(self, version: int, attempt: int) -> list[Effect]:
        """The proposal made at `version` as this `attempt` will never happen: its new members count no longer."""
        if self._pending is None or (self._pending.version, self._pending.attempt) != (version, attempt):
            return []
        self._pending = None
        return self.advanced()

    def woken(self, now_s: float) -> None:
        """Something happens after it was steady; its owner would have told of a silence half as long as a timeout."""
        heard_s = now_s - self._times.leader_timeout_s / 2
        for progress in self._followers.values():
            if progress.is_waiting:
                self._heard(progress, heard_s)

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
        return [AdvanceHighWatermark(offset=committed), *self._told_records(self._judged_s)]

    @property
    def _owes_records(self) -> bool:
        """Whether records are committed, and the metadata know of none."""
        return self.view.empty_from is not None and self._log.high_watermark > self.view.empty_from

    def _told_records(self, now_s: float) -> list[Effect]:
        """The metadata hear of the first committed records; no ack waits for that (`docs/internals/decisions.md`)."""
        if not self._owes_records or now_s - self._told_records_s < self._times.retry_s:
            return []
        self._told_records_s = now_s
        return [ReportRecords(leader_epoch=self.view.leader_epoch, end=self._log.high_watermark)]

    def fetched(self, node: str, fetch: FollowFetch, now_s: float) -> list[Effect]:
        """A follower fetches; what it has on disk counts from now on."""
        refusal = self._refusal(node, fetch.incarnation, fetch.leader_epoch)
        if fetch.version < self.view.renewed.get(node, 0):
            refusal = refusal or FollowRefusal.STALE_INCARNATION  # it is of the copy before
        refusal = refusal or self._misfit(fetch)
        if refusal:
            return [self._fetch_answer(fetch, refusal)]
        progress = self._followers[node]
        is_member = node in self.view.isr
        # A member's fetch that is shorter than one before came late; who is no member may have begun anew.
        durable_end = max(progress.durable_end or 0, fetch.durable_end) if is_member else fetch.durable_end
        progress.durable_end = durable_end
        caught_up_s = now_s if durable_end >= self._log.end else self._samples.latest_within(durable_end)
        progress.caught_up_s = max(progress.caught_up_s, caught_up_s)
        effects = self.advanced()
        if not is_member:
            effects += self._proposed(now_s)
        effects.append(self._fetch_answer(fetch, FollowRefusal.NONE))
        return effects

    def asked(self, node: str, question: FollowQuestion) -> list[Effect]:
        """A follower asks where an epoch ends."""
        refusal = self._refusal(node, question.incarnation, question.leader_epoch)
        epoch, end = self._log.epochs.end_offset(question.last_epoch, self._log.end)
        answer = FollowEnd(
            key=question.key,
            refusal=refusal,
            incarnation=question.incarnation,
            leader_epoch=self.view.leader_epoch,
            question=question.question,
            epoch=epoch,
            end=end,
        )
        return [AnswerEpochEnd(answer=answer)]

    def tick(self, given: Tick, now_s: float) -> list[Effect]:
        """Process the passing of time."""
        self._samples.add(now_s, self._log.end)
        if given.paused_s > 0:
            self._samples.shift(given.paused_s, now_s)
        for node, progress in self._followers.items():
            heard_s = given.heard_s.get(node, float("-inf"))
            self._heard(progress, heard_s)
            progress.caught_up_s = min(now_s, progress.caught_up_s + given.paused_s)
            progress.is_waiting = now_s - heard_s < self._times.leader_timeout_s / 2
        self._judged_s = now_s
        effects = [*self._proposed(now_s), *self._returned(now_s), *self._told_records(now_s), *self._accepting()]
        self._is_steady = self._is_isr_right and self._preferred_since_s is None and not effects
        self._is_steady = self._is_steady and not self._owes_records
        self._is_steady = self._is_steady and all(map(self._says_nothing_new, self.view.isr))
        return effects

    def _heard(self, progress: FollowerProgress, heard_s: float) -> None:
        """A follower whose fetch waits here was heard; if it has everything it had everything then."""
        if progress.durable_end is not None and progress.durable_end >= self._log.end:
            progress.caught_up_s = max(progress.caught_up_s, heard_s)

    def _says_nothing_new(self, member: str) -> bool:
        """Whether a member waits with all there is, or lags so long that only a fetch can change it."""
        progress = self._followers.get(member)
        if progress is None or not is_in_sync(progress, self._judged_s, self._times.replica_lag_max_s):
            return True
        return progress.is_waiting and progress.durable_end == self._log.end

    def _refusal(self, node: str, incarnation: int, epoch: int) -> FollowRefusal:
        if epoch != self.view.leader_epoch:
            return FollowRefusal.NOT_LEADER
        progress = self._followers.get(node)
        if progress is None or progress.incarnation != incarnation:
            return FollowRefusal.STALE_INCARNATION
        return FollowRefusal.NONE

    def _misfit(self, fetch: FollowFetch) -> FollowRefusal:
        """A follower asks before its first fetch, so its log should be a prefix of this one; believe nothing else."""
        log = self._log
        if fetch.offset < log.start:
            return FollowRefusal.BELOW_START
        epoch, end = log.epochs.end_offset(fetch.last_epoch, log.end)
        is_below_history = fetch.last_epoch == -1 or fetch.offset == log.start
        if fetch.offset > log.end or not (is_below_history or (epoch == fetch.last_epoch and fetch.offset <= end)):
            return FollowRefusal.DIVERGED
        return FollowRefusal.NONE

    def _fetch_answer(self, fetch: FollowFetch, refusal: FollowRefusal) -> AnswerFetch:
        answer = FollowResult(
            key=fetch.key,
            refusal=refusal,
            incarnation=fetch.incarnation,
            leader_epoch=self.view.leader_epoch,
            offset=fetch.offset,
            high_watermark=self._log.high_watermark,
            log_start=self._log.start,
        )
        return AnswerFetch(answer=answer)

    def _proposed(self, now_s: float) -> list[Effect]:
        is_too_soon = now_s - self._proposed_s < self._times.retry_s
        if self._pending is not None:
            if is_too_soon:
                return []
            self._proposed_s = now_s
            return [self._pending]
        isr = wanted_isr(
            self.view, self._node_id, self._followers, self._joiners(), self._judged_s, self._times.replica_lag_max_s
        )
        self._is_isr_right = set(isr) == set(self.view.isr)
        if self._is_isr_right or (is_too_soon and self.view.version == self._proposed_version):
            return []
        return [self._propose(isr, now_s)]

    def _joiners(self) -> tuple[str, ...]:
        return tuple(
            node
            for node, progress in self._followers.items()
            if node not in self.view.isr
            and node not in self.view.observers
            and node not in self.view.failed
            and is_in_sync(progress, self._judged_s, self._times.replica_lag_max_s)
            and may_join(progress, self._log.high_watermark, self.epoch_start)
        )

    def _propose(self, isr: tuple[str, ...], now_s: float) -> ProposeIsr:
        self._attempts += 1
        self._proposed_s, self._proposed_version = now_s, self.view.version
        self._pending = ProposeIsr(
            isr=isr,
            incarnations={node: self.view.incarnations[node] for node in isr if node in self.view.incarnations},
            leader_epoch=self.view.leader_epoch,
            version=self.view.version,
            attempt=self._attempts,
        )
        return self._pending

    def _returned(self, now_s: float) -> list[Effect]:
        """Give the lead back to the preferred replica once it has been in sync for a while."""
        preferred = next(node for node in self.view.replicas if node not in self.view.observers)
        progress = self._followers.get(preferred)
        may_lead = progress is not None and preferred in self.view.isr and self.is_caught_up
        if progress is None or not may_lead or not is_in_sync(progress, now_s, self._times.leader_timeout_s):
            self._preferred_since_s = None
            return []
        if self._preferred_since_s is None:
            self._preferred_since_s = now_s
        if now_s - self._preferred_since_s < self._preferred_after_s:
            return []
        self._preferred_since_s = now_s
        # Where nothing comes of it (the node is drained), it is proposed ever more seldom.
        self._preferred_after_s = min(2 * self._preferred_after_s, _RETURNS_MAX * self._times.preferred_return_s)
        return [
            ProposeLeader(leader=preferred, leader_epoch=self.view.leader_epoch, version=self.view.version),
        ]

    def _accepting(self) -> list[Effect]:
        lag_max_s = self._times.replica_lag_max_s
        in_sync = 1 + sum(
            node in self.view.isr and is_in_sync(progress, self._judged_s, lag_max_s)
            for node, progress in self._followers.items()
        )
        is_accepting = in_sync >= self.view.min_isr
        if is_accepting == self._is_accepting:
            return []
        self._is_accepting = is_accepting
        return [AcceptingChanged(accepting=is_accepting)]
