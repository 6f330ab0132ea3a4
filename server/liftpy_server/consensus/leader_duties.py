"""What a leader does for the cluster unasked: it gets to know its members, lets them vote, and hands leadership over.

A new member first only follows (`learn`), and counts in no quorum: one that never comes up, or is slow, harms nobody.
Once it has the log, the leader lets it vote (`add`), as long as there are fewer than five voters. The directory with
which a member first connects is its own from then on (`bind`).

A leader that hands over takes no further commands, waits until a voter has its whole log, and tells that one to stand
for election at once. If nobody takes over in time it goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_server.consensus.leader import Leader
from liftpy_server.consensus.membership import encode_change
from liftpy_server.consensus.monotonic import monotonic
from liftpy_server.consensus.settings import VOTERS_MAX, Voter

if TYPE_CHECKING:
    from liftpy_server.consensus.inner import Node

__all__ = ["LeaderDuties"]

_BEHIND_ENTRIES_MAX = 100


class LeaderDuties(Leader):
    """See the module."""

    _hand_over_until: float | None = None
    _is_successor_told = False

    def hand_over(self) -> None:
        """Begin to hand leadership over, with the next tick. From any thread; nothing happens on a follower."""
        self._is_handing_over = True
        self.wake()

    def _keep_house(self) -> None:
        """Once a tick."""
        if not self.is_leader:
            self._stop_handing_over()
            return
        if self._is_handing_over:
            self._look_for_successor()
            return
        noop = self._SyncObj__noopIDx
        if noop is not None and self.applied_index >= noop:
            self._bind_members()
            self._promote_learners()

    def _stop_handing_over(self) -> None:
        self._is_handing_over = self._is_successor_told = False
        self._hand_over_until = None

    def _look_for_successor(self) -> None:
        now = monotonic()
        if self._hand_over_until is None:
            self._hand_over_until = now + 2 * self._settings.election_timeout_min_s
        if now > self._hand_over_until:
            self._stop_handing_over()
            return
        if self._is_successor_told:
            return
        equals = [
            node
            for node in self._SyncObj__otherNodes & self._SyncObj__connectedNodes
            if self._SyncObj__raftMatchIndex[node] == self._journal.last
        ]
        if equals:  # the one that answered last is the least likely to be gone
            successor = max(equals, key=lambda node: (self._SyncObj__lastResponseTime[node], str(node.id)))
            term = self._SyncObj__raftCurrentTerm
            self._is_successor_told = self._transport.send(successor, {"type": "timeout_now", "term": term})

    def _bind_members(self) -> None:
        for member in (*self.voters, *self.learners):
            if not member.instance:
                instance = self._instance_of(member)
                if instance:
                    bound = Voter(member.node_id, member.host, member.port, instance)
                    self._append(encode_change("bind", bound))

    def _instance_of(self, member: Voter) -> str:
        if member.node_id == self.node_id:
            return self._journal.instance
        return next((self._transport.instance_of(node) for node in self.followers if node.id == member.node_id), "")

    def _promote_learners(self) -> None:
        if not self.learners or len(self.voters) >= VOTERS_MAX or not self._may_change_voters():
            return
        by_name = {str(node.id): node for node in self.followers & self._SyncObj__connectedNodes}
        for learner in self.learners:
            node = by_name.get(learner.node_id)
            if node is not None and learner.instance and self._has_caught_up(node):
                self._append(encode_change("add", learner))
                return  # one change at a time

    def _has_caught_up(self, node: Node) -> bool:
        """A node that does not know yet that it itself is a member would not vote, and may be needed at once."""
        match, noop = self._SyncObj__raftMatchIndex[node], self._SyncObj__noopIDx or 0
        return match >= max(noop, self._membership.index) and match + _BEHIND_ENTRIES_MAX >= self._journal.last
