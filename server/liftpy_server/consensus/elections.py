"""Elections: a node asks whether it could win before it stands, and each vote counts once.

A node that was cut off or stopped for a while comes back with a deadline long past. Standing at once would raise the
term and depose a healthy leader. So it first asks the others (`pre_vote`); they say yes only if its log is good enough
and they have not heard from a leader for the shortest election timeout. Terms are not touched by asking.

A process that dies takes its connections with it. Who loses the leader's waits no longer: it asks at once, in an order
that all know, so that two do not take each other's votes. Where only the connection was lost, the others have the
leader still, and say no.
"""
# ruff: noqa: N802 - the overridden names are pysyncobj's

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_server.consensus.inner import CANDIDATE, FOLLOWER, LEADER
from liftpy_server.consensus.leader_duties import LeaderDuties
from liftpy_server.consensus.monotonic import monotonic

if TYPE_CHECKING:
    from liftpy_server.consensus.inner import Node
    from liftpy_server.consensus.messages import Message

__all__ = ["Elections"]

_AGAIN: Final = 0.1  # of the shortest election timeout
_TURN: Final = 0.2  # of the shortest election timeout: long enough to be voted for before it is the next one's turn


class Elections(LeaderDuties):
    """See the module."""

    _heard_leader_at: float = 0.0
    _asked_at: float = 0.0
    _asked_term: int = 0
    _mourning_until: float = 0.0
    _promises: frozenset[Node] = frozenset()
    _votes: tuple[int, frozenset[Node]] = (0, frozenset())

    def _SyncObj__connectedToAnyone(self) -> bool:
        """The library asks this when the election deadline has passed; yes lets the node stand."""
        if not self.is_voter:
            return False
        others = self._SyncObj__otherNodes
        if not others or self._SyncObj__transferInProgress:
            return True
        term = self._SyncObj__raftCurrentTerm + 1
        if self._asked_term == term and self._is_majority(self._promises):
            self._asked_term = 0
            return True
        now = monotonic()
        if self._asked_term != term or now >= self._asked_at + self._patience_s(now):
            self._ask(term, now)
        return False

    def _patience_s(self, now: float) -> float:
        """When to ask again. The others may notice a moment later than this node that the leader is gone."""
        return self._settings.election_timeout_min_s * (_AGAIN if now < self._mourning_until else 1)

    def _SyncObj__onNodeDisconnected(self, node: Node) -> None:
        super()._SyncObj__onNodeDisconnected(node)
        if node == self._SyncObj__raftLeader and self._SyncObj__raftState == FOLLOWER:
            self._heard_leader_at = 0.0
            self._asked_term = 0
            self._mourning_until = monotonic() + self._settings.election_timeout_min_s
            heirs = sorted(str(other.id) for other in self._SyncObj__otherNodes - {node})
            turn = sum(heir < self.node_id for heir in heirs) * _TURN
            self._SyncObj__raftElectionDeadline = monotonic() + turn * self._settings.election_timeout_min_s

    def unheard_s(self) -> float:
        """For how many seconds nothing was heard of a leader that a majority follows. From any thread."""
        others, silence = self._SyncObj__otherNodes, self._transport.silence
        if self.is_leader:
            silent_s = sorted(silence.silent_s(str(node.id)) for node in others)
            return silent_s[(len(others) + 1) // 2 - 1] if silent_s else 0.0
        leader = self._SyncObj__raftLeader
        return monotonic() - self._heard_leader_at if leader is None else silence.silent_s(str(leader.id))

    def _is_majority(self, promises: frozenset[Node]) -> bool:
        return 1 + len(promises & self._SyncObj__otherNodes) > (len(self._SyncObj__otherNodes) + 1) / 2

    def _ask(self, term: int, now: float) -> None:
        self._asked_term, self._asked_at, self._promises = term, now, frozenset()
        question = {"last_log_index": self._journal.last, "last_log_term": self._journal[-1][2]}
        for node in self._SyncObj__otherNodes:
            self._transport.send(node, {"type": "pre_vote", "term": term} | question)

    def _SyncObj__onMessageReceived(self, node: Node, message: Message) -> None:
        """Every message of another node comes by here first.

        One that is no member by this node's log is heard only as a leader: the entry that made it one may come from it.
        A member that does not vote by this node's log may do so by its own, and asks for votes rightly.
        """
        if node not in self.followers and message["type"] != "append_entries":
            return
        match message["type"]:
            case "pre_vote" | "request_vote" if not self.may_vote:
                pass
            case "pre_vote":
                if self._would_vote(message):
                    self._transport.send(node, {"type": "pre_vote_response", "term": message["term"]})
            case "pre_vote_response":
                if message["term"] == self._asked_term:
                    self._promises |= {node}
            case "response_vote" if not self._is_new_vote(node, message["term"]):
                pass
            case _:
                if message["type"] == "append_entries" and message["term"] >= self._SyncObj__raftCurrentTerm:
                    self._heard_leader_at = monotonic()
                super()._SyncObj__onMessageReceived(node, message)

    def _would_vote(self, message: Message) -> bool:
        """Whatever the term: one with the better log and an older term must stand, to hear of the newer one and win."""
        has_leader = self._SyncObj__raftState == LEADER or (
            monotonic() < self._heard_leader_at + self._settings.election_timeout_min_s
        )
        theirs = (message["last_log_term"], message["last_log_index"])
        is_good = theirs >= (self._journal[-1][2], self._journal.last)
        return not has_leader and is_good

    def _is_new_vote(self, node: Node, term: int) -> bool:
        """The library counts answers, not voters."""
        is_asked = self._SyncObj__raftState == CANDIDATE and node in self._SyncObj__otherNodes
        if not is_asked or term != self._SyncObj__raftCurrentTerm:
            return False
        voted = self._votes[1] if self._votes[0] == term else frozenset()
        self._votes = (term, voted | {node})
        return node not in voted
