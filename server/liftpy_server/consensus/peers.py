"""The other members: who they are by the log, and what core and transport are told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from liftpy_server.consensus.membership import Membership
    from liftpy_server.consensus.pysyncobj_core import Core
    from liftpy_server.consensus.settings import Voter
    from liftpy_server.consensus.storage.journal import RaftJournal
    from liftpy_server.consensus.wire.transport import RaftTransport

__all__ = ["Peers"]


class Peers:
    """The members by the newest entries of the log, and which of them are connected.

    Args:
        node_id: Id of this node.
        journal: Has the instance of this node.
        membership: Folded from the log.
        core: Counts the votes of those that vote.
        transport: Connects with all of them.

    Attributes:
        membership: Folded from the log; whoever changes the log changes it, and calls `sync`.
        followers: All other members, those that only learn among them.
        connected: Whoever has a connection with this node, member or not.
        voters: Voters, this node among them if it votes.
        learners: Nodes that follow and do not vote.
    """

    def __init__(
        self, node_id: str, journal: RaftJournal, membership: Membership, core: Core, transport: RaftTransport
    ) -> None:
        self._node_id = node_id
        self._journal = journal
        self.membership = membership
        self._core = core
        self._transport = transport
        self.followers: frozenset[str] = frozenset()
        self.connected: set[str] = set()
        self.voters: tuple[Voter, ...] = ()
        self.learners: tuple[Voter, ...] = ()

    def sync(self) -> None:
        """Bring core and transport in line with the log, after members changed in it."""
        members = self.membership.members()
        wanted = frozenset(members.all) - {self._node_id}
        for node in self.followers - wanted:
            self._core.forget(node)
        for node in wanted - self.followers:
            self._core.track(node)
        self._core.other_voters = frozenset(members.voters) - {self._node_id}
        self.followers = wanted
        self.voters = tuple(members.voters.values())
        self.learners = tuple(members.learners.values())
        self._transport.admit(members.all)

    @property
    def is_voter(self) -> bool:
        """Whether this node belongs to the quorum, and not one of its name that had another data directory."""
        own = self.membership.voters().get(self._node_id)
        return own is not None and own.instance in {"", self._journal.instance}

    @property
    def may_vote(self) -> bool:
        """Whether this node answers who asks for its vote.

        A learner does, too: who asks may have the entry by which it votes, and need it. It must know that it itself is
        meant, and not one of its name from before: so it waits for the entry that binds its data directory.
        """
        own = self.membership.members().all.get(self._node_id)
        return self.is_voter or (own is not None and own.instance == self._journal.instance)
