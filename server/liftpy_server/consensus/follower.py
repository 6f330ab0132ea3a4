"""What a voter does with the messages of the others: the guard, and the following of a leader's log.

Replaces pysyncobj's handling of appended entries and snapshots. Differences from it, all of them losses otherwise:

- an acknowledgement of an older term is dropped, and one of a newer term ends the leadership;
- entries that are here already are skipped, and only a conflict cuts the log, never below what is committed;
- the commit index follows a leader only as far as the log was just verified against that leader's;
- a snapshot keeps the entries after it that agree with it, and acknowledges no more than itself;
- proposers whose entries a snapshot swallowed are told that the outcome is unknown.
"""
# ruff: noqa: N802 - the overridden names are pysyncobj's

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pysyncobj import FAIL_REASON

from liftpy_server.consensus.inner import FOLLOWER, LEADER, Inner, Node, RaftBrokenError
from liftpy_server.consensus.monotonic import monotonic
from liftpy_server.consensus.snapshot import Snapshot, SnapshotError, load_snapshot, store_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from liftpy_log.disk import Disk
    from liftpy_server.consensus.journal import Entry, RaftJournal
    from liftpy_server.consensus.messages import Message
    from liftpy_server.consensus.settings import Voter

__all__ = ["Follower", "load_and_reconcile"]

logger = logging.getLogger(__name__)

_SNAPSHOT_BYTES_MAX: Final = 1 << 30


def load_and_reconcile(disk: Disk, path: Path, journal: RaftJournal) -> Snapshot | None:
    """Read the snapshot at start, and bring the journal in line with it.

    A crash can fall between the rename of a snapshot and the cut of the journal, at a compaction or at the
    installation of a leader's snapshot. In both cases the entries after the snapshot that agree with it are kept.

    Raises:
        SnapshotError: it can not be read, or it is missing, or it and the journal are not of one history.
    """
    snapshot = load_snapshot(disk, path)
    if snapshot is None:
        if journal.first != 1:
            raise SnapshotError(f"the metadata snapshot {path} is missing: the journal begins at {journal.first}")
        return None
    if journal.getCurrentTerm() < snapshot.last[2]:
        raise SnapshotError(f"the metadata snapshot {path} is of a term that its journal does not know")
    if journal.first > snapshot.previous[1]:
        raise SnapshotError(f"the metadata snapshot {path} ends at {snapshot.index}, the journal is at {journal.first}")
    _reconcile(snapshot, journal)
    return snapshot


def _reconcile(snapshot: Snapshot, journal: RaftJournal) -> bool:
    """Whether the journal agreed with the snapshot, so that what it holds after it was kept."""
    agrees = journal.term_at(snapshot.index) == snapshot.last[2]
    if agrees:
        journal.compact(snapshot.previous[1])
    else:
        journal.restart(snapshot.previous, snapshot.last)
    journal.flush()
    return agrees


class Follower(Inner):
    """See the module."""

    voters: tuple[Voter, ...] = ()
    learners: tuple[Voter, ...] = ()
    _disk: Disk
    _snapshot_path: Path
    _incoming: tuple[Node, int, bytearray] | None = None

    def _SyncObj__onMessageReceived(self, node: Node, message: Message) -> None:
        """The guard: what reaches the library has passed here, and what touches the log never reaches it."""
        kind = message["type"]
        term = self._SyncObj__raftCurrentTerm
        if kind == "append_entries":
            if message["term"] >= term:
                self._follow(node, message)
            else:  # a leader that never hears of the newer term would go on, and this node never follow it
                self._answer(node, self._journal.last + 1, success=False)
        elif kind == "next_node_idx":
            if message["term"] > term:
                self._enter_term(message["term"])
            # `_lastResponseTime` and the match index belong to one term: an answer of an older one says nothing.
            elif message["term"] == term and message["next_node_idx"] <= self._journal.last + 1:
                message["next_node_idx"] = max(message["next_node_idx"], 2)
                super()._SyncObj__onMessageReceived(node, message)
        else:
            super()._SyncObj__onMessageReceived(node, message)

    def _enter_term(self, term: int) -> None:
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None

    def _answer(self, node: Node, next_index: int, *, success: bool) -> None:
        """Tell the leader what is here; `success` says that all below `next_index` is durable and the leader's."""
        fields = {"term": self._SyncObj__raftCurrentTerm, "next_node_idx": next_index}
        self._transport.send(node, {"type": "next_node_idx", "reset": not success, "success": success} | fields)

    def _follow(self, node: Node, message: Message) -> None:
        if self._SyncObj__raftState == LEADER and message["term"] == self._SyncObj__raftCurrentTerm:
            raise RaftBrokenError(f"{node.id} and this node both lead term {message['term']}")
        # Term, leader, state and deadline are left to the library, by a message that touches neither log nor commits.
        super()._SyncObj__onMessageReceived(
            node, {"type": "append_entries", "term": message["term"], "commit_index": 0, "entries": []}
        )
        self._SyncObj__leaderCommitIndex = message["commit_index"]
        if "serialized" in message:
            self._take_chunk(node, message)
        else:
            self._take_entries(node, message)

    def _take_entries(self, node: Node, message: Message) -> None:
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
        self._commit_to(min(message["commit_index"], end))

    def _disagreeing_from(self, index: int, term: int) -> int:
        """The first entry of the term that is not the leader's, so that the leader goes back a term at a time."""
        self._check_uncommitted(index)
        while index - 1 > self._SyncObj__raftCommitIndex and self._journal.term_at(index - 1) == term:
            index -= 1
        return index

    def _check_uncommitted(self, index: int) -> None:
        if index <= max(self._SyncObj__raftCommitIndex, self._SyncObj__raftLastApplied):
            raise RaftBrokenError(f"the leader has another entry {index}, which was committed here")

    def _store(self, entries: list[Entry]) -> None:
        for position, (_, index, term) in enumerate(entries):
            found = self._journal.term_at(index)
            if found == term:
                continue
            if found is not None:
                self._check_uncommitted(index)
                self._journal.truncate(index)
                self._membership.truncate(index)
            for entry in entries[position:]:
                self._journal.add(*entry)
            self._membership.record(entries[position:])
            self._sync_voters()
            return

    def _commit_to(self, index: int) -> None:
        self._SyncObj__raftCommitIndex = max(self._SyncObj__raftCommitIndex, index)

    def _take_chunk(self, node: Node, message: Message) -> None:
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
                snapshot = Snapshot.decode(data)
            except SnapshotError as error:
                logger.warning("the snapshot that %s sent can not be used: %s", node.id, error)
                return
            if snapshot.index > self._SyncObj__raftLastApplied:
                self._install(snapshot, data)
            self._answer(node, snapshot.index + 1, success=True)

    def _install(self, snapshot: Snapshot, data: bytes) -> None:
        """The snapshot goes to disk before the journal is cut; a crash in between is mended at start."""
        self._journal.flush()  # the term first: at start, a snapshot without its term means that the journal is lost
        store_snapshot(self._disk, self._snapshot_path, data)
        kept = _reconcile(snapshot, self._journal)
        self._adopt(snapshot)
        waiting = self._SyncObj__commandsWaitingCommit
        for index in [index for index in waiting if index <= snapshot.index or not kept]:
            for _, callback in waiting.pop(index):
                callback(None, FAIL_REASON.UNKNOWN_OUTCOME)

    def _adopt(self, snapshot: Snapshot) -> None:
        if snapshot.cluster_id:
            self._journal.belong_to(snapshot.cluster_id)
        self._membership.reset(snapshot.voters, snapshot.learners, snapshot.index)
        self._membership.record(self._journal[:])
        self._machine.restore(snapshot.state)
        self._SyncObj__raftLastApplied = snapshot.index
        self._commit_to(snapshot.index)
        self._sync_voters()

    def _sync_voters(self) -> None:
        """Bring the library's set of nodes, and the transport's, in line with the log."""
        members = self._membership.members()
        wanted = {Node(node_id) for node_id in members.all if node_id != self.node_id}
        for node in self.followers - wanted:
            self._SyncObj__raftNextIndex.pop(node, None)
            self._SyncObj__raftMatchIndex.pop(node, None)
            self._SyncObj__lastResponseTime.pop(node, None)
        for node in wanted - self.followers:
            self._start_counting(node)
            self._SyncObj__lastResponseTime[node] = monotonic()
        self._SyncObj__otherNodes = {node for node in wanted if node.id in members.voters}
        self.followers = wanted
        self.voters = tuple(members.voters.values())
        self.learners = tuple(members.learners.values())
        self._transport.admit(members.all)
