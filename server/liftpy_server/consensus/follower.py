"""How a voter follows the log of a leader.

Differences from pysyncobj, all of them losses otherwise:

- entries that are here already are skipped, and only a conflict truncates the log, never below what is committed;
- the commit index follows a leader only as far as the log was just verified against that leader's;
- a snapshot keeps the entries after it that agree with it, and acknowledges no more than itself;
- proposers whose entries a snapshot swallowed are told that the outcome is unknown.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import LiftError
from liftpy_server.consensus.storage.snapshot import MetadataSnapshot, SnapshotError

if TYPE_CHECKING:
    from liftpy_server.consensus.messages import Message
    from liftpy_server.consensus.peers import Peers
    from liftpy_server.consensus.proposals import Proposals
    from liftpy_server.consensus.pysyncobj_core import Core
    from liftpy_server.consensus.snapshot_keeper import SnapshotKeeper
    from liftpy_server.consensus.storage.journal import Entry, RaftJournal
    from liftpy_server.consensus.wire.transport import RaftTransport

__all__ = ["RaftBrokenError", "RaftFollower"]

logger = logging.getLogger(__name__)

_SNAPSHOT_BYTES_MAX: Final = 1 << 30


class RaftBrokenError(LiftError):
    """What must never be, is: this node and the others do not agree on what was committed. The node must stop."""


class RaftFollower:
    """Takes the entries and snapshots of a leader, and answers it.

    Args:
        core: Knows term, role and commit index.
        journal: Journal with the entries of the Raft log.
        peers: Told when entries change the members.
        transport: Carries the answers.
        snapshots: Installs a leader's snapshot.
        proposals: Told which entries a snapshot swallowed.
    """

    def __init__(
        self,
        core: Core,
        journal: RaftJournal,
        peers: Peers,
        transport: RaftTransport,
        snapshots: SnapshotKeeper,
        proposals: Proposals,
    ) -> None:
        self._core = core
        self._journal = journal
        self._peers = peers
        self._transport = transport
        self._snapshots = snapshots
        self._proposals = proposals
        self._incoming: tuple[str, int, bytearray] | None = None  # the leader, its term, and its snapshot so far

    def receive(self, node: str, message: Message) -> None:
        """Handle an append_entries message.

        Raises:
            RaftBrokenError: this node must stop.
            JournalError, SnapshotError: likewise.
        """
        term = message["term"]
        if term < self._core.term:  # a leader that never hears of the newer term would go on, and never be followed
            self._answer(node, self._journal.last + 1, success=False)
            return
        if self._core.is_leader and term == self._core.term:
            raise RaftBrokenError(f"{node} and this node both lead term {term}")
        self._core.hear_leader(node, term)
        if "serialized" in message:
            self._take_chunk(node, message)
        else:
            self._take_entries(node, message)

    def _answer(self, node: str, next_index: int, *, success: bool) -> None:
        """Tell the leader what is here; `success` says that all below `next_index` is durable and the leader's."""
        fields = {"term": self._core.term, "next_node_idx": next_index}
        self._transport.send(node, {"type": "next_node_idx", "reset": not success, "success": success} | fields)

    def _take_entries(self, node: str, message: Message) -> None:
        previous, previous_term, entries = message["prevLogIdx"], message["prevLogTerm"], message["entries"]
        end = previous + len(entries)
        if end > self._journal.first:
            if previous < self._journal.first:  # what lies before the log is committed, and so is its first entry
                entries = entries[self._journal.first - previous :]
                previous, previous_term = self._journal.first, self._journal[0][2]
            found = self._journal.term_at(previous)
            if found is None:
                self._answer(node, self._journal.last + 1, success=False)
                return
            if found != previous_term:
                self._answer(node, self._disagreeing_from(previous, found), success=False)
                return
            self._store(entries)
        self._answer(node, end + 1, success=True)
        self._core.commit_to(min(message["commit_index"], end))

    def _disagreeing_from(self, index: int, term: int) -> int:
        """The first entry of the term that is not the leader's, so that the leader goes back a term at a time."""
        self._check_uncommitted(index)
        while index - 1 > self._core.commit_index and self._journal.term_at(index - 1) == term:
            index -= 1
        return index

    def _check_uncommitted(self, index: int) -> None:
        if index <= max(self._core.commit_index, self._core.applied_index):
            raise RaftBrokenError(f"the leader has another entry {index}, which was committed here")

    def _store(self, entries: list[Entry]) -> None:
        for position, (_, index, term) in enumerate(entries):
            found = self._journal.term_at(index)
            if found == term:
                continue
            if found is not None:
                self._check_uncommitted(index)
                self._journal.truncate(index)
                self._peers.membership.truncate(index)
            for entry in entries[position:]:
                self._journal.add(*entry)
            self._peers.membership.record(entries[position:])
            self._peers.sync()
            return

    def _take_chunk(self, node: str, message: Message) -> None:
        data, is_first, is_last = message["serialized"]
        if is_first:
            self._incoming = (node, message["term"], bytearray())
        if self._incoming is None or self._incoming[:2] != (node, message["term"]):
            return
        self._incoming[2].extend(data)
        if len(self._incoming[2]) > _SNAPSHOT_BYTES_MAX:
            raise SnapshotError(f"the leader's snapshot is larger than {_SNAPSHOT_BYTES_MAX} bytes")
        if not is_last:
            self._answer(node, 2, success=True)  # says no more than that this node is there
        else:
            data, self._incoming = bytes(self._incoming[2]), None
            try:
                snapshot = MetadataSnapshot.decode(data)
            except SnapshotError as error:
                logger.warning("the snapshot that %s sent can not be used: %s", node, error)
                return
            if snapshot.index > self._core.applied_index:
                is_log_kept = self._snapshots.install(snapshot, data)
                self._proposals.snapshot_installed(snapshot.index, is_log_kept=is_log_kept)
            self._answer(node, snapshot.index + 1, success=True)
