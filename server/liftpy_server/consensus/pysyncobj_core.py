"""pysyncobj behind an interface of ours. This is the only module that knows the library's private names.

The library decides when this node stands for election, counts votes and acknowledgements, moves a leader's commit
index, and lets a leader that hears of no majority step down. Everything else is done by the objects that hold a `Core`:
disk, wire, members, the log of a follower, the log that a leader sends, the state machine, and snapshots.

    in    `step`                             a message about elections, or an acknowledgement of a follower
          `hear_leader`, `enter_term`        a leader of this term or a newer one speaks; there is a newer term
          `tick`                             time has passed: elections, commits and heartbeats, then the poller waits
          `commit_to`, `applied_index`       how far the log is known to be committed; how far the state has it
          `other_voters`, `track`, `forget`  whose votes and acknowledgements count; whose position in the log is kept
    out   `Hooks`                            what a tick or a message asks for: above all to send the log, and to apply
          `Wire.send`                        questions for votes, and votes

The library tells the journal of every term and vote, and of the no-op that begins a term, when they change. They are
durable before anybody learns of them, because the wire flushes the journal before each message.

Private names of a library may change with any release, so the version is pinned to the byte (`pinned`).
"""
# ruff: noqa: N802, SLF001 - the names of pysyncobj

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from pysyncobj import SyncObj, SyncObjConf, syncobj
from pysyncobj.node import Node
from pysyncobj.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from liftpy_server.consensus.messages import Message
    from liftpy_server.consensus.settings import RaftSettings
    from liftpy_server.consensus.storage.journal import RaftJournal

__all__ = ["Core", "Hooks", "Wire", "monotonic"]

_FOLLOWER: Final = 0
_CANDIDATE: Final = 1
_LEADER: Final = 2

_NEVER_S: Final = 1e9


def monotonic() -> float:
    """Seconds by the clock of the library, whose deadlines this package reads and sets.

    It is not `time.monotonic`. The library takes the kernel's raw clock where there is one, and the two part by up to a
    second in an hour while the machine's time is being corrected: a heartbeat that is due by one of them would be late,
    or sent without end, by the other. The clock is looked up in the library at every call, so a test that replaces it
    there replaces it everywhere.
    """
    return float(syncobj.monotonicTime())


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What the core asks for, in the middle of a tick or a message.

    Attributes:
        may_stand: The election deadline has passed. Whether this node stands for election now.
        elected: This node has won. Nothing is appended in its term, and nothing is sent.
        leading: The no-op of its term is in the log, and was sent.
        leader_changed: Answers of the leader of before will not come any more.
        apply_committed: Entries up to `commit_index` are committed. Apply them, and move `applied_index` with each.
        send_log: Followers get what they lack, or a heartbeat.
        take_proposals: Append or forward the commands that wait.
        keep_snapshot: Begin or end a snapshot, if it is time.
    """

    may_stand: Callable[[], bool]
    elected: Callable[[], None]
    leading: Callable[[], None]
    leader_changed: Callable[[], None]
    apply_committed: Callable[[], None]
    send_log: Callable[[], None]
    take_proposals: Callable[[], None]
    keep_snapshot: Callable[[], None]


class Wire(Protocol):
    """What the library needs of the connections."""

    def send(self, node: str, message: Message) -> bool:
        """Send a message, after the journal was flushed. Returns whether it may arrive."""
        ...

    def poll(self, timeout: float) -> None:
        """Wait for messages, and hand them on."""
        ...


class Core:
    """Term, role and commit index of one voter, and its counts of votes and acknowledgements. For one thread.

    Args:
        settings: Settings of this node.
        other_voters: Other voters by name.
        journal: Keeps term, vote and log. It is flushed before anything of them is told or counted.
        wire: Sends messages and waits for them.
        random: Draws election timeouts.

    Attributes:
        hooks: Hooks, to be set before the first tick.
    """

    hooks: Hooks

    def __init__(
        self,
        settings: RaftSettings,
        other_voters: Iterable[str],
        journal: RaftJournal,
        wire: Wire,
        random: Random,
    ) -> None:
        self._journal = journal
        self._library = _Library(self, settings, [Node(node_id) for node_id in other_voters], wire, random)
        # The library made a log in memory. It runs nothing before its first tick, so its parts can be replaced now.
        self._library._SyncObj__raftLog = _Log(journal)
        self._library._SyncObj__raftCurrentTerm = journal.term
        self._library._SyncObj__votedForNodeId = journal.vote
        self._library._SyncObj__raftCommitIndex = journal.first
        self._library._SyncObj__raftLastApplied = journal.first
        self._library._poller = wire
        if not self.other_voters:
            self.election_deadline = 0.0  # a cluster of one need not wait for anybody

    def step(self, node: str, message: Message) -> None:
        """Take a message about an election, or the acknowledgement of a follower.

        Args:
            node: Id of the node that sent it.
            message: request_vote, response_vote, timeout_now, or a next_node_idx of this term.
        """
        self._library._SyncObj__onMessageReceived(Node(node), message)

    def hear_leader(self, node: str, term: int) -> None:
        """Follow the leader of a term that is not older than this node's; the log and the commit index stay."""
        message = {"type": "append_entries", "term": term, "commit_index": 0, "entries": []}
        self._library._SyncObj__onMessageReceived(Node(node), message)

    def enter_term(self, term: int) -> None:
        """Follow nobody yet, in a newer term that another node told of."""
        self._library._SyncObj__setCurrentTerm(term, None)
        self._library._SyncObj__setState(_FOLLOWER)
        self._library._SyncObj__raftLeader = None

    def tick(self, wait_s: float) -> None:
        """Do what time asks for, then wait for messages. The journal must be flushed: a leader counts its own log."""
        self._library.doTick(wait_s)

    def send_log(self) -> None:
        """Send the log to the followers now; the next heartbeat is due a heartbeat's time later."""
        self._library._SyncObj__sendAppendEntries()

    def commit_to(self, index: int) -> None:
        """Take note that the log is committed up to an entry, at least."""
        self._library._SyncObj__raftCommitIndex = max(self.commit_index, index)

    def track(self, node: str) -> None:
        """Keep the position of a follower in the log, from the beginning: nothing is known of it."""
        self._library._SyncObj__raftNextIndex[Node(node)] = self._journal.last + 1
        self._library._SyncObj__raftMatchIndex[Node(node)] = 0
        self._library._SyncObj__lastResponseTime[Node(node)] = monotonic()

    def forget(self, node: str) -> None:
        """Keep the position of a node no more."""
        self._library._SyncObj__raftNextIndex.pop(Node(node), None)
        self._library._SyncObj__raftMatchIndex.pop(Node(node), None)
        self._library._SyncObj__lastResponseTime.pop(Node(node), None)

    def next_index(self, node: str) -> int:
        """Index of the entry that a follower is sent next."""
        return self._library._SyncObj__raftNextIndex[Node(node)]

    def set_next_index(self, node: str, index: int) -> None:
        """Change which entry a follower is sent next."""
        self._library._SyncObj__raftNextIndex[Node(node)] = index

    def match_index(self, node: str) -> int:
        """Index of the entry up to which a follower is known to have the log of this leader."""
        return self._library._SyncObj__raftMatchIndex[Node(node)]

    def answered_at(self, node: str) -> float:
        """When a follower acknowledged something to this leader the last time, by `monotonic`."""
        return self._library._SyncObj__lastResponseTime[Node(node)]

    @property
    def term(self) -> int:
        """The newest term that this node has seen."""
        return self._library._SyncObj__raftCurrentTerm

    @property
    def is_follower(self) -> bool:
        """Whether this node neither leads nor stands for election."""
        return self._library._SyncObj__raftState == _FOLLOWER

    @property
    def is_candidate(self) -> bool:
        """Whether this node stands for election."""
        return self._library._SyncObj__raftState == _CANDIDATE

    @property
    def is_leader(self) -> bool:
        """Whether this node believes that it leads."""
        return self._library._SyncObj__raftState == _LEADER

    @property
    def leader(self) -> str | None:
        """Who leads, as far as this node knows; this node itself, or another one."""
        leader = self._library._SyncObj__raftLeader
        return None if leader is None else str(leader.id)

    @property
    def is_told_to_stand(self) -> bool:
        """Whether the leader hands over to this node, which stands for election without asking."""
        return self._library._SyncObj__transferInProgress

    @property
    def election_deadline(self) -> float:
        """When this node stands for election if it hears of no leader before, by `monotonic`."""
        return self._library._SyncObj__raftElectionDeadline

    @election_deadline.setter
    def election_deadline(self, deadline: float) -> None:
        self._library._SyncObj__raftElectionDeadline = deadline

    @property
    def other_voters(self) -> frozenset[str]:
        """Voters other than this node, whose votes and acknowledgements count. May be read from any thread."""
        return frozenset(str(node.id) for node in self._library._SyncObj__otherNodes)

    @other_voters.setter
    def other_voters(self, node_ids: Iterable[str]) -> None:
        self._library._SyncObj__otherNodes = {Node(node_id) for node_id in node_ids}

    @property
    def commit_index(self) -> int:
        """Index of the newest entry that is known to be committed."""
        return self._library._SyncObj__raftCommitIndex

    @property
    def applied_index(self) -> int:
        """Index of the newest entry in the state."""
        return self._library._SyncObj__raftLastApplied

    @applied_index.setter
    def applied_index(self, index: int) -> None:
        self._library._SyncObj__raftLastApplied = index

    @property
    def no_op_index(self) -> int | None:
        """Index of the no-op with which this node began to lead the last time; None if it never led."""
        return self._library._SyncObj__noopIDx


class _Library(SyncObj):  # type: ignore[misc]  # pysyncobj is not typed
    """pysyncobj, with hooks in the place of all that it would do on disk, wire and state."""

    _SyncObj__raftLog: _Log
    _SyncObj__raftCurrentTerm: int
    _SyncObj__votedForNodeId: str | None
    _SyncObj__raftState: int
    _SyncObj__raftLeader: Node | None
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__raftNextIndex: dict[Node, int]
    _SyncObj__raftMatchIndex: dict[Node, int]
    _SyncObj__lastResponseTime: dict[Node, float]
    _SyncObj__otherNodes: set[Node]
    _SyncObj__newAppendEntriesTime: float
    _SyncObj__noopIDx: int | None
    _SyncObj__transferInProgress: bool

    def __init__(self, core: Core, settings: RaftSettings, others: list[Node], wire: Wire, random: Random) -> None:
        self._core = core
        self._settings = settings
        self._random = random
        conf, outgoing = _configuration(settings), _Outgoing(wire)
        super().__init__(Node(settings.node_id), others, conf=conf, transport=outgoing)

    def _SyncObj__generateRaftTimeout(self) -> float:
        return self._settings.election_timeout_min_s * (1 + self._random.random())

    def _SyncObj__connectedToAnyone(self) -> bool:
        """Asked when the election deadline has passed; yes lets the node stand."""
        return self._core.hooks.may_stand()

    def _SyncObj__onBecomeLeader(self) -> None:
        self._core.hooks.elected()
        super()._SyncObj__onBecomeLeader()
        self._core.hooks.leading()

    def _SyncObj__onLeaderChanged(self) -> None:
        self._core.hooks.leader_changed()

    def _SyncObj__applyLogEntries(self) -> bool:
        """Returns whether followers have something to learn at once."""
        if self._SyncObj__raftCommitIndex <= self._SyncObj__raftLastApplied:
            return False
        self._core.hooks.apply_committed()
        return True

    def _SyncObj__sendAppendEntries(self) -> None:
        self._SyncObj__newAppendEntriesTime = monotonic() + self._settings.heartbeat_s
        self._core.hooks.send_log()

    def _checkCommandsToApply(self) -> None:
        self._core.hooks.take_proposals()

    def _SyncObj__tryLogCompaction(self) -> None:
        self._core.hooks.keep_snapshot()


class _Log:
    """The journal by the names of the library."""

    def __init__(self, journal: RaftJournal) -> None:
        self._journal = journal

    def __getitem__(self, item: Any) -> Any:
        return self._journal[item]

    def add(self, command: bytes, index: int, term: int) -> None:
        self._journal.add(command, index, term)

    def setCurrentTerm(self, term: int, vote: str | None) -> None:
        self._journal.set_term(term, vote)

    def setRaftCommitIndex(self, index: int) -> None:
        """Nothing: a commit index from before a crash may lie beyond the log that is left."""

    def onOneSecondTimer(self) -> None:
        """Nothing: no write is put off."""


class _Outgoing(Transport):  # type: ignore[misc]  # pysyncobj is not typed
    """What the library sends. What comes in does not pass the library first."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(None, None, [])
        self._wire = wire

    def send(self, node: Node, message: Message) -> bool:
        return self._wire.send(str(node.id), message)


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
