"""What a leader does for the cluster unasked: it gets to know its members, lets them vote, and hands leadership over.

A new member first only follows (`learn`), and counts in no quorum: one that never comes up, or is slow, harms nobody.
Once it has the log, the leader lets it vote (`add`), as long as there are fewer than five voters. The directory with
which a member first connects is its own from then on (`bind`).

A leader that hands over takes no further commands, waits until a voter has its whole log, and tells that one to stand
for election at once. If nobody takes over in time it goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_server.consensus.membership import encode_change
from liftpy_server.consensus.pysyncobj_core import monotonic
from liftpy_server.consensus.settings import VOTERS_MAX, Voter

if TYPE_CHECKING:
    from liftpy_server.consensus.leader import RaftLeader
    from liftpy_server.consensus.peers import Peers
    from liftpy_server.consensus.pysyncobj_core import Core
    from liftpy_server.consensus.settings import RaftSettings
    from liftpy_server.consensus.storage.journal import RaftJournal
    from liftpy_server.consensus.wire.transport import RaftTransport

__all__ = ["LeaderDuties"]

_BEHIND_ENTRIES_MAX = 100


class LeaderDuties:
    """Binds members to their data, promotes learners, and hands leadership over, with every tick.

    Args:
        settings: Settings of this node.
        core: Knows whether this node leads, and where each follower is in the log.
        journal: Journal with the entries of the Raft log.
        leader: Appends changes of members.
        peers: Members of the Raft group.
        transport: Knows the data directories of those that are connected.
    """

    def __init__(
        self,
        settings: RaftSettings,
        core: Core,
        journal: RaftJournal,
        leader: RaftLeader,
        peers: Peers,
        transport: RaftTransport,
    ) -> None:
        self._settings = settings
        self._core = core
        self._journal = journal
        self._leader = leader
        self._peers = peers
        self._transport = transport
        self._hand_over_until: float | None = None
        self._is_successor_told = False

    def run(self) -> None:
        """Do what there is to do. Called with every tick, before it."""
        if not self._core.is_leader:
            self._stop_handing_over()
            return
        if self._leader.is_handing_over:
            self._look_for_successor()
            return
        no_op = self._core.no_op_index
        if no_op is not None and self._core.applied_index >= no_op:
            self._bind_members()
            self._promote_learners()

    def _stop_handing_over(self) -> None:
        self._leader.is_handing_over = self._is_successor_told = False
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
            for node in self._core.other_voters & self._peers.connected
            if self._core.match_index(node) == self._journal.last
        ]
        if equals:  # the one that answered last is the least likely to be gone
            successor = max(equals, key=lambda node: (self._core.answered_at(node), node))
            term = self._core.term
            self._is_successor_told = self._transport.send(successor, {"type": "timeout_now", "term": term})

    def _bind_members(self) -> None:
        for member in (*self._peers.voters, *self._peers.learners):
            if not member.instance:
                instance = self._instance_of(member.node_id)
                if instance:
                    bound = Voter(member.node_id, member.host, member.port, instance)
                    self._leader.append(encode_change("bind", bound))

    def _instance_of(self, node: str) -> str:
        if node == self._settings.node_id:
            return self._journal.instance
        return self._transport.instance_of(node) if node in self._peers.followers else ""

    def _promote_learners(self) -> None:
        learners = self._peers.learners
        if not learners or len(self._peers.voters) >= VOTERS_MAX or not self._leader.may_change_voters():
            return
        for learner in learners:
            is_connected = learner.node_id in self._peers.followers & self._peers.connected
            if is_connected and learner.instance and self._has_caught_up(learner.node_id):
                self._leader.append(encode_change("add", learner))
                return  # one change at a time

    def _has_caught_up(self, node: str) -> bool:
        """A node that does not know yet that it itself is a member would not vote, and may be needed at once."""
        match, no_op = self._core.match_index(node), self._core.no_op_index or 0
        return match >= max(no_op, self._peers.membership.index) and match + _BEHIND_ENTRIES_MAX >= self._journal.last
