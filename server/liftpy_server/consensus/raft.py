"""One voter: pysyncobj's core with every part that could lose an acknowledged command replaced.

The order that makes it safe: nothing leaves the node, and a leader counts nothing of its own, before the journal is
flushed; the state takes a command only after it is committed; a proposer is called after the state took it; the
snapshot is on disk before the log is truncated. Any exception out of `tick` means that this order may be broken, and
the node must stop: it is never logged and survived.

    Core            term, role, votes and commit index (`pysyncobj_core`)
    RaftJournal     term, vote and log on disk          Membership       who the members are, by the log
    Peers           the other members                   Elections        when to stand, and for whom to vote
    Follower        takes a leader's log                Leader           appends to the log, and sends it
    Proposals       commands that are not answered      LeaderDuties     members and handover
    SnapshotKeeper  the snapshot on disk                RaftTransport    connections
"""

from __future__ import annotations

import logging
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final

from liftpy_log.storage.disk import OsDisk
from liftpy_server.consensus.elections import Elections
from liftpy_server.consensus.follower import RaftFollower
from liftpy_server.consensus.leader import RaftLeader, new_name
from liftpy_server.consensus.leader_duties import LeaderDuties
from liftpy_server.consensus.membership import Membership
from liftpy_server.consensus.peers import Peers
from liftpy_server.consensus.pinned import check_pinned
from liftpy_server.consensus.proposals import Proposals
from liftpy_server.consensus.pysyncobj_core import Core, Hooks
from liftpy_server.consensus.snapshot_keeper import SNAPSHOT_NAME, SnapshotKeeper, load_and_reconcile
from liftpy_server.consensus.storage.journal import CLUSTER, REGULAR, RaftJournal
from liftpy_server.consensus.wire.session import PeerIdentity

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from random import Random

    from liftpy_log.storage.disk import Disk
    from liftpy_server.consensus.machine import Machine
    from liftpy_server.consensus.messages import Message
    from liftpy_server.consensus.proposals import Callback
    from liftpy_server.consensus.settings import RaftSettings, Voter
    from liftpy_server.consensus.wire.transport import RaftTransport

__all__ = ["Raft"]

logger = logging.getLogger(__name__)

_TICK_S: Final = 0.05
_TICK_ALONE_S: Final = 1.0


class Raft:
    """A voter, or a learner, for one thread; `submit`, `hand_over` and `wake` may be called from any.

    Args:
        settings: Settings of this node.
        transport: How it reaches the others.
        machine: What the commands are applied to.
        disk: Where the folder of the settings is.
        random: Source of election timeouts, and of names that nobody had before.
        snapshot_writer: Writes snapshots while the voter goes on.

    Raises:
        JournalError: the journal can not be used.
        SnapshotError: the snapshot can not be used, or the two are not of one history.
        PinnedVersionError: the consensus library is not the one this was written against.
    """

    def __init__(
        self,
        settings: RaftSettings,
        transport: RaftTransport,
        machine: Machine,
        *,
        disk: Disk | None = None,
        random: Random | None = None,
        snapshot_writer: Executor | None = None,
    ) -> None:
        check_pinned()
        disk = disk or OsDisk()
        random = random or SystemRandom()
        path = settings.folder / SNAPSHOT_NAME
        journal = RaftJournal(settings.folder, disk, random)
        try:
            snapshot = load_and_reconcile(disk, path, journal)
            origin = journal.origin(settings.node_id, settings.voters)
            if settings.cluster_id and not journal.cluster_id:
                journal.belong_to(settings.cluster_id)
            journal.flush()
        except BaseException:
            journal.close()
            raise
        membership = Membership(origin)
        membership.record(journal[:])
        self.node_id = settings.node_id
        self._transport = transport
        self._machine = machine
        self._journal = journal
        self._membership = membership
        others = membership.voters().keys() - {settings.node_id}
        self._core = core = Core(settings, others, journal, transport, random)
        self._run = new_name(random)
        self._peers = peers = Peers(settings.node_id, journal, membership, core, transport)
        self._snapshots = snapshots = SnapshotKeeper(
            path, disk, settings.snapshot_every_entries, journal, machine, core, peers, snapshot_writer
        )
        self._leader = leader = RaftLeader(core, journal, peers, transport, snapshots, random)
        self._proposals = proposals = Proposals(settings.node_id, core, journal, machine, leader, peers, transport)
        self._follower = RaftFollower(core, journal, peers, transport, snapshots, proposals)
        self._elections = Elections(settings, core, journal, peers, transport)
        self._duties = LeaderDuties(settings, core, journal, leader, peers, transport)
        self._wire()
        if snapshot is not None:
            snapshots.adopt(snapshot)
        peers.sync()

    def _wire(self) -> None:
        self._core.hooks = Hooks(
            may_stand=self._elections.may_stand,
            elected=self._leader.elected,
            leading=self._leader.leading,
            leader_changed=self._proposals.leader_changed,
            apply_committed=self._apply_committed,
            send_log=self._leader.send_log,
            take_proposals=self._proposals.take,
            keep_snapshot=self._snapshots.keep,
        )
        self._transport.before_send = self._journal.flush
        self._transport.identity = self._identity
        self._transport.on_message = self._receive
        self._transport.on_connected = self._peers.connected.add
        self._transport.on_disconnected = self._disconnected

    def _identity(self) -> PeerIdentity:
        return PeerIdentity(self._journal.cluster_id, self._journal.instance, self._run, self._membership.index)

    @property
    def leader_id(self) -> str | None:
        """Who leads, as far as this node knows."""
        return self._core.leader

    @property
    def is_leader(self) -> bool:
        """Whether this node believes that it leads."""
        return self._core.is_leader

    @property
    def cluster_id(self) -> str:
        """The cluster, by what was committed; empty while this node does not know."""
        return self._journal.cluster_id

    @property
    def voters(self) -> tuple[Voter, ...]:
        """Who votes, by the log of this node."""
        return self._peers.voters

    @property
    def learners(self) -> tuple[Voter, ...]:
        """Who follows the log and does not vote, by the log of this node."""
        return self._peers.learners

    @property
    def wait_s(self) -> float:
        """How long the next tick may wait for messages and proposals."""
        return _TICK_S if self._peers.followers or not self.is_leader else _TICK_ALONE_S

    def unheard_s(self) -> float:
        """Seconds since a leader that a majority follows was heard. May be called from any thread."""
        return self._elections.unheard_s()

    def submit(self, entry: bytes, callback: Callback) -> None:
        """Propose an entry.

        Args:
            entry: Entry, whose first byte says what it is.
            callback: Called once with what the state machine returned and a `Reason`, unless the answer is lost: the
                caller needs a timeout of its own. Called on the tick thread; what it raises stops nothing.
        """

        def guarded(result: Any, reason: int) -> None:
            try:
                callback(result, reason)
            except Exception:
                # The entry is applied by now. Raising from here would end the tick, and the node with it.
                logger.exception("a callback of the metadata failed")

        self._proposals.submit(entry, guarded)

    def hand_over(self) -> None:
        """Begin to hand leadership over, with the next tick. Nothing happens on a follower."""
        self._leader.is_handing_over = True
        self.wake()

    def wake(self) -> None:
        """End the wait of a tick."""
        self._proposals.wake()

    def tick(self, wait_s: float) -> None:
        """Do what there is to do, then wait for messages.

        Raises:
            Exception: the node must stop.
        """
        self._duties.run()
        self._journal.flush()  # below, a leader counts its own log as durable
        self._core.tick(wait_s)

    def close(self) -> None:
        """Close files and connections. What was proposed and not answered stays unanswered."""
        self._proposals.close()
        self._snapshots.close()
        self._transport.destroy()
        self._journal.close()

    def _receive(self, node: str, message: Message) -> None:
        """Take a message of another node.

        One that is no member by this node's log is heard only as a leader: the entry that made it one may come from it.
        """
        kind = message["type"]
        if kind == "append_entries":
            self._elections.heard_leader(message["term"])
            self._follower.receive(node, message)
        elif node not in self._peers.followers:
            return
        elif kind == "next_node_idx":
            self._leader.acknowledged(node, message)
        elif kind == "apply_command":
            self._proposals.receive(node, message)
        elif kind == "apply_command_response":
            self._proposals.receive_answer(message)
        elif kind == "timeout_now":
            self._core.step(node, message)
        else:
            self._elections.receive(node, message)

    def _disconnected(self, node: str) -> None:
        self._peers.connected.discard(node)
        self._leader.disconnected(node)
        if node == self._core.leader:
            self._proposals.leader_changed()
            self._elections.lost_leader(node)

    def _apply_committed(self) -> None:
        first = self._journal.first
        for command, index, term in self._journal[
            self._core.applied_index + 1 - first : self._core.commit_index + 1 - first
        ]:
            result = self._machine.apply(command[1:]) if command[0] == REGULAR else None
            if command[0] == CLUSTER and not self._journal.cluster_id:
                self._journal.belong_to(command[1:].decode())
            self._core.applied_index = index
            self._proposals.applied(index, term, result)
