"""pysyncobj's `SyncObj`, with the parts it builds for itself replaced, and its private state given types.

What is inherited of it: elections, counting votes and acknowledgements, moving the leader's commit index, stepping
down. Everything that touches disk, wire, membership or the state machine is ours, by overriding the private methods
named here. That is why the version is pinned to the byte (`pinned`).
"""
# ruff: noqa: N802 - the overridden names are pysyncobj's

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from liftpy_server.consensus.journal import RaftJournal
    from liftpy_server.consensus.membership import Membership
    from liftpy_server.consensus.settings import RaftSettings
    from liftpy_server.consensus.transport import RaftTransport

__all__ = ["CANDIDATE", "FOLLOWER", "LEADER", "Inner", "Machine", "Node", "RaftBrokenError"]

FOLLOWER: Final = 0
CANDIDATE: Final = 1
LEADER: Final = 2

_NEVER_S: Final = 1e9

Callback = "Callable[[Any, int], None]"


class RaftBrokenError(LiftError):
    """What must never be, is: this node and the others do not agree on what was committed. The node must stop."""


class Machine(Protocol):
    """The state machine. None of its methods may raise for what a command holds."""

    def apply(self, command: bytes) -> Any:
        """Apply a committed command. Returns what its proposer is told."""
        ...

    def accepts(self, command: bytes) -> bool:
        """Whether a leader may append this command to the log."""
        ...

    def capture(self) -> Callable[[], Any]:
        """Take hold of the state now. Returns what makes plain values of it later, in any thread."""
        ...

    def restore(self, state: Any) -> None:
        """Replace the state by that of a snapshot."""
        ...


class Inner(SyncObj):  # type: ignore[misc]  # pysyncobj is not typed
    """See the module."""

    followers: set[Node]
    """All other members, those that only learn among them; the library's `otherNodes` are those that vote."""

    _SyncObj__raftLog: RaftJournal
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__raftState: int
    _SyncObj__raftLeader: Node | None
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftNextIndex: dict[Node, int]
    _SyncObj__raftMatchIndex: dict[Node, int]
    _SyncObj__lastResponseTime: dict[Node, float]
    _SyncObj__otherNodes: set[Node]
    _SyncObj__connectedNodes: set[Node]
    _SyncObj__commandsWaitingCommit: dict[int, list[tuple[int, Any]]]
    _SyncObj__commandsWaitingReply: dict[int, Any]
    _SyncObj__commandsLocalCounter: int
    _SyncObj__leaderCommitIndex: int | None
    _SyncObj__newAppendEntriesTime: float
    _SyncObj__noopIDx: int | None
    _SyncObj__changeClusterIDx: int | None
    _SyncObj__transferInProgress: bool

    def __init__(
        self,
        settings: RaftSettings,
        journal: RaftJournal,
        membership: Membership,
        transport: RaftTransport,
        machine: Machine,
        random: Random,
    ) -> None:
        self._random = random
        self._settings = settings
        self._journal = journal
        self._membership = membership
        self._transport = transport
        self._machine = machine
        members = membership.members()
        others = [Node(node_id) for node_id in members.voters if node_id != settings.node_id]
        self.followers = {Node(node_id) for node_id in members.all if node_id != settings.node_id}
        # Nothing runs before the first tick (`autoTick`), so the parts can be put in place after the constructor. The
        # log it makes meanwhile is in memory.
        super().__init__(Node(settings.node_id), others, conf=_configuration(settings), transport=transport)
        self._SyncObj__raftLog = journal
        self._SyncObj__raftCurrentTerm = journal.getCurrentTerm()
        self._SyncObj__votedForNodeId = journal.getVotedForNodeId()
        self._SyncObj__raftCommitIndex = journal.first
        self._SyncObj__raftLastApplied = journal.first
        for node in self.followers:
            self._start_counting(node)
        self._poller = transport
        if not others:
            self._SyncObj__raftElectionDeadline = 0.0  # a cluster of one need not wait for anybody

    @property
    def node_id(self) -> str:
        """This node."""
        return self._settings.node_id

    @property
    def is_voter(self) -> bool:
        """Whether this node belongs to the quorum, and not one of its name that had another data directory."""
        own = self._membership.voters().get(self.node_id)
        return own is not None and own.instance in {"", self._journal.instance}

    @property
    def may_vote(self) -> bool:
        """Whether this node answers who asks for its vote.

        A learner does, too: who asks may have the entry by which it votes, and need it. It must know that it itself is
        meant, and not one of its name from before: so it waits for the entry that binds its data directory.
        """
        own = self._membership.members().all.get(self.node_id)
        return self.is_voter or (own is not None and own.instance == self._journal.instance)

    @property
    def leader_id(self) -> str | None:
        """Who leads, as far as this node knows."""
        leader = self._SyncObj__raftLeader
        return None if leader is None else str(leader.id)

    @property
    def is_leader(self) -> bool:
        """Whether this node believes that it leads."""
        return self._SyncObj__raftState == LEADER

    @property
    def cluster_id(self) -> str:
        """The cluster, by what was committed; empty while this node does not know."""
        return self._journal.cluster_id

    @property
    def applied_index(self) -> int:
        """Index of the newest entry in the state."""
        return self._SyncObj__raftLastApplied

    def _new_name(self) -> str:
        """32 hex digits that nobody had before."""
        return f"{self._random.getrandbits(128):032x}"

    def _SyncObj__generateRaftTimeout(self) -> float:
        shortest = self._settings.election_timeout_min_s
        return shortest * (1 + self._random.random())

    def _start_counting(self, node: Node) -> None:
        self._SyncObj__raftNextIndex[node] = self._journal.last + 1
        self._SyncObj__raftMatchIndex[node] = 0

    def _doDestroy(self) -> None:
        self._transport.destroy()


def _configuration(settings: RaftSettings) -> SyncObjConf:
    shortest = settings.election_timeout_min_s
    return SyncObjConf(
        autoTick=False,
        raftMinTimeout=shortest,
        raftMaxTimeout=2 * shortest,
        appendEntriesPeriod=settings.heartbeat_s,
        leaderFallbackTimeout=2 * shortest,
        connectionTimeout=4 * shortest,
        commandsWaitLeader=False,
        appendEntriesUseBatch=True,  # without it, a pipe is opened that nobody closes; waking is the transport's
        dynamicMembershipChange=False,  # with it, pickle is read from the log; changes are ours
        useFork=False,
        logCompactionMinTime=_NEVER_S,
    )
