"""Elections: a node asks whether it could win before it stands, and each vote counts once.

A node that was cut off or stopped for a while comes back with a deadline long past. Standing at once would raise the
term and depose a healthy leader. So it first asks the others (`pre_vote`); they say yes only if its log is good enough
and they have not heard from a leader for the shortest election timeout. Terms are not touched by asking.

A process that dies takes its connections with it. Who loses the leader's waits no longer: it asks at once, in an order
that all know, so that two do not take each other's votes. Where only the connection was lost, the others have the
leader still, and say no.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_server.consensus.pysyncobj_core import monotonic

if TYPE_CHECKING:
    from liftpy_server.consensus.messages import Message
    from liftpy_server.consensus.peers import Peers
    from liftpy_server.consensus.pysyncobj_core import Core
    from liftpy_server.consensus.settings import RaftSettings
    from liftpy_server.consensus.storage.journal import RaftJournal
    from liftpy_server.consensus.wire.transport import RaftTransport

__all__ = ["Elections"]

_AGAIN: Final = 0.1  # of the shortest election timeout
_TURN: Final = 0.2  # of the shortest election timeout: long enough to be voted for before it is the next one's turn


class Elections:
    """When this node stands for election, whom it votes for, and whose votes it counts.

    Args:
        settings: Settings of this node.
        core: Runs the elections.
        journal: Has the log by which candidates are compared.
        peers: Voters.
        transport: Carries questions and answers.
    """

    def __init__(
        self, settings: RaftSettings, core: Core, journal: RaftJournal, peers: Peers, transport: RaftTransport
    ) -> None:
        self._node_id = settings.node_id
        self._timeout_min_s = settings.election_timeout_min_s
        self._core = core
        self._journal = journal
        self._peers = peers
        self._transport = transport
        self._heard_leader_at = 0.0
        self._asked_at = 0.0
        self._asked_term = 0
        self._asks_often_until = 0.0
        self._promises: frozenset[str] = frozenset()
        self._votes: tuple[int, frozenset[str]] = (0, frozenset())

    def may_stand(self) -> bool:
        """Whether this node stands for election, now that it has heard of no leader for long. If not, it may ask."""
        if not self._peers.is_voter:
            return False
        if not self._core.other_voters or self._core.is_told_to_stand:
            return True
        term = self._core.term + 1
        if self._asked_term == term and self._is_majority(self._promises):
            self._asked_term = 0
            return True
        now = monotonic()
        if self._asked_term != term or now >= self._asked_at + self._ask_again_s(now):
            self._ask(term, now)
        return False

    def _ask_again_s(self, now: float) -> float:
        """After how long to ask again. The others may notice a moment later than this node that the leader is gone."""
        return self._timeout_min_s * (_AGAIN if now < self._asks_often_until else 1)

    def _is_majority(self, promises: frozenset[str]) -> bool:
        others = self._core.other_voters
        return 1 + len(promises & others) > (len(others) + 1) / 2

    def _ask(self, term: int, now: float) -> None:
        self._asked_term, self._asked_at, self._promises = term, now, frozenset()
        question = {"last_log_index": self._journal.last, "last_log_term": self._journal[-1][2]}
        for node in self._core.other_voters:
            self._transport.send(node, {"type": "pre_vote", "term": term} | question)

    def heard_leader(self, term: int) -> None:
        """Take note of a message of a leader."""
        if term >= self._core.term:
            self._heard_leader_at = monotonic()

    def lost_leader(self, leader: str) -> None:
        """The connection with the leader ended: ask soon whether to stand."""
        if not self._core.is_follower:
            return
        self._heard_leader_at = 0.0
        self._asked_term = 0
        self._asks_often_until = monotonic() + self._timeout_min_s
        turn = sum(other < self._node_id for other in self._core.other_voters - {leader}) * _TURN
        self._core.election_deadline = monotonic() + turn * self._timeout_min_s

    def unheard_s(self) -> float:
        """Seconds since a leader that a majority follows was heard. May be called from any thread."""
        others, silence = self._core.other_voters, self._transport.silence
        if self._core.is_leader:
            silent_s = sorted(silence.silent_s(node) for node in others)
            return silent_s[(len(others) + 1) // 2 - 1] if silent_s else 0.0
        leader = self._core.leader
        return monotonic() - self._heard_leader_at if leader is None else silence.silent_s(leader)

    def receive(self, node: str, message: Message) -> None:
        """Take a question for a vote, or an answer to one. A member that has no vote here may have one in its own log.

        Args:
            node: A member.
            message: pre_vote, pre_vote_response, request_vote or response_vote.
        """
        match message["type"]:
            case "pre_vote" | "request_vote" if not self._peers.may_vote:
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
                self._core.step(node, message)

    def _would_vote(self, message: Message) -> bool:
        """Whatever the term: one with the better log and an older term must stand, to hear of the newer one and win."""
        has_leader = self._core.is_leader or monotonic() < self._heard_leader_at + self._timeout_min_s
        theirs = (message["last_log_term"], message["last_log_index"])
        is_good = theirs >= (self._journal[-1][2], self._journal.last)
        return not has_leader and is_good

    def _is_new_vote(self, node: str, term: int) -> bool:
        """The library counts answers, not voters."""
        is_asked = self._core.is_candidate and node in self._core.other_voters
        if not is_asked or term != self._core.term:
            return False
        voted = self._votes[1] if self._votes[0] == term else frozenset()
        self._votes = (term, voted | {node})
        return node not in voted
