"""What a leader does with its log: it appends entries, and sends each follower what it lacks.

Group commit: all commands that wait are appended together; one flush makes them durable, and one message takes them to
each follower.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from liftpy_server.consensus.membership import decode_change
from liftpy_server.consensus.storage.journal import CLUSTER
from liftpy_server.consensus.storage.snapshot import SnapshotError

if TYPE_CHECKING:
    from random import Random

    from liftpy_server.consensus.messages import Message
    from liftpy_server.consensus.peers import Peers
    from liftpy_server.consensus.pysyncobj_core import Core
    from liftpy_server.consensus.snapshot_keeper import SnapshotKeeper
    from liftpy_server.consensus.storage.journal import RaftJournal
    from liftpy_server.consensus.wire.transport import RaftTransport

__all__ = ["RaftLeader", "new_name"]

logger = logging.getLogger(__name__)

_BATCH_BYTES: Final = 1 << 20
_CHUNK_BYTES: Final = 1 << 20
_BACKLOG_BYTES_MAX: Final = 4 << 20
_QUORUM_CHANGES: Final = frozenset({"add", "rem"})


def new_name(random: Random) -> str:
    """32 hex digits that nobody had before."""
    return f"{random.getrandbits(128):032x}"


class RaftLeader:
    """Appends to the log and sends it, while this node leads.

    Args:
        core: Knows whether this node leads, and where each follower is in the log.
        journal: Journal with the entries of the Raft log.
        peers: Followers.
        transport: Takes messages to them.
        snapshots: Sent to those that are behind the beginning of the log.
        random: Makes up the id of a new cluster.

    Attributes:
        is_handing_over: This node takes no commands, so that its successor can catch up.
    """

    def __init__(
        self,
        core: Core,
        journal: RaftJournal,
        peers: Peers,
        transport: RaftTransport,
        snapshots: SnapshotKeeper,
        random: Random,
    ) -> None:
        self._core = core
        self._journal = journal
        self._peers = peers
        self._transport = transport
        self._snapshots = snapshots
        self._random = random
        self._outgoing: dict[str, tuple[bytes, int]] = {}  # the snapshot that a follower is sent, and how far it is
        self._changed_voters_at: int | None = None
        self.is_handing_over = False

    def elected(self) -> None:
        """This node leads from now on, and has done nothing yet."""
        self._outgoing.clear()
        self._changed_voters_at = None  # a change of the last leader is applied before the no-op of this one

    def leading(self) -> None:
        """The no-op of this node's term is in its log."""
        for node in self._peers.followers - self._core.other_voters:  # the core knows only of those that vote
            self._core.track(node)
        if not self._journal.cluster_id:
            self.append(bytes((CLUSTER,)) + new_name(self._random).encode())
            self._journal.flush()  # a leader counts nothing of its own before

    def append(self, command: bytes) -> None:
        """Append an entry to the log; it is durable, and sent, later."""
        index = self._journal.last + 1
        self._journal.add(command, index, self._core.term)
        change = decode_change(command)
        if change is not None:
            self._peers.membership.record(self._journal[-1:])
            if change[0] in _QUORUM_CHANGES:
                self._changed_voters_at = index
            self._peers.sync()

    def may_change_voters(self) -> bool:
        """One change at a time: the last one, and an entry of this leader's own term, are applied."""
        applied, no_op, change = self._core.applied_index, self._core.no_op_index, self._changed_voters_at
        return no_op is not None and applied >= no_op and (change is None or applied >= change)

    def acknowledged(self, node: str, message: Message) -> None:
        """Take what a follower says of its log. What it says of another term's log says nothing of this one."""
        term = message["term"]
        if term > self._core.term:
            self._core.enter_term(term)
        elif term == self._core.term and message["next_node_idx"] <= self._journal.last + 1:
            self._core.step(node, message | {"next_node_idx": max(message["next_node_idx"], 2)})

    def disconnected(self, node: str) -> None:
        """A follower lost its connection: a snapshot that it was sent must begin again."""
        self._outgoing.pop(node, None)

    def send_log(self) -> None:
        """Send each follower what it lacks, or a heartbeat."""
        self._journal.flush()
        for node in self._peers.followers & self._peers.connected:
            self._send_to(node)

    def _send_to(self, node: str) -> None:
        """Send no more than the connection takes in reasonable time."""
        is_first = True
        while self._transport.backlog_bytes(node) < _BACKLOG_BYTES_MAX:
            next_index = self._core.next_index(node)
            is_through = next_index > self._journal.last or not self._is_compared(node)
            if not is_first and next_index > self._journal.first and is_through:
                return
            is_first = False
            message: Message = {
                "type": "append_entries",
                "term": self._core.term,
                "commit_index": self._core.commit_index,
            }
            message |= self._entries_for(node) if next_index > self._journal.first else self._chunk_for(node)
            if not self._transport.send(node, message):
                return

    def _is_compared(self, node: str) -> bool:
        """Whether a follower has taken entries or a snapshot of this leader's term.

        Before, it gets the same message until it answers: its answers to later ones ("that is all I have") would undo
        what it answered to the first ("go back").
        """
        return self._core.match_index(node) > 1

    def _entries_for(self, node: str) -> Message:
        self._outgoing.pop(node, None)
        next_index = self._core.next_index(node)
        entries = self._journal.entries_from(next_index, _BATCH_BYTES)
        if self._is_compared(node):
            self._core.set_next_index(node, next_index + len(entries))
        previous = next_index - 1
        return {"prevLogIdx": previous, "prevLogTerm": self._journal.term_at(previous), "entries": entries}

    def _chunk_for(self, node: str) -> Message:
        """The next piece of the snapshot; the file is read once, so that a newer one does not mix in."""
        is_first = node not in self._outgoing
        if is_first:
            try:
                self._outgoing[node] = (self._snapshots.read(), 0)
            except SnapshotError as error:
                logger.error("%s. It is written again; check the disk", error)  # noqa: TRY400 - says all there is
                self._snapshots.is_due = True
                self._core.set_next_index(node, self._journal.last + 1)  # is refused, and so asked for again
                return self._entries_for(node)
        data, position = self._outgoing[node]
        end = position + _CHUNK_BYTES
        is_last = end >= len(data)
        if is_last:
            self._outgoing.pop(node, None)
            self._core.set_next_index(node, self._snapshots.index + 1)
        else:
            self._outgoing[node] = (data, end)
        return {"serialized": [data[position:end], is_first, is_last]}
