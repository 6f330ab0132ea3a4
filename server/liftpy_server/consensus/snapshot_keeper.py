"""The snapshot of a voter: loaded at start, written while commands go on, replaced by that of a leader."""

from __future__ import annotations

import logging
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from liftpy_server.consensus.storage.snapshot import (
    MetadataSnapshot,
    SnapshotError,
    load_snapshot,
    read_snapshot,
    store_snapshot,
)

if TYPE_CHECKING:
    from pathlib import Path

    from liftpy_log.storage.disk import Disk
    from liftpy_server.consensus.machine import Machine
    from liftpy_server.consensus.peers import Peers
    from liftpy_server.consensus.pysyncobj_core import Core
    from liftpy_server.consensus.storage.journal import RaftJournal

__all__ = ["SNAPSHOT_NAME", "SnapshotKeeper", "load_and_reconcile"]

logger = logging.getLogger(__name__)

SNAPSHOT_NAME = "raft.snapshot"


def load_and_reconcile(disk: Disk, path: Path, journal: RaftJournal) -> MetadataSnapshot | None:
    """Read the snapshot at start, and bring the journal in line with it.

    A crash can fall between the rename of a snapshot and the truncation of the journal, at a compaction or at the
    installation of a leader's snapshot. In both cases the entries after the snapshot that agree with it are kept.

    Raises:
        SnapshotError: it can not be read, or it is missing, or it and the journal are not of one history.
    """
    snapshot = load_snapshot(disk, path)
    if snapshot is None:
        if journal.first != 1:
            raise SnapshotError(f"the metadata snapshot {path} is missing: the journal begins at {journal.first}")
        return None
    if journal.term < snapshot.last[2]:
        raise SnapshotError(f"the metadata snapshot {path} is of a term that its journal does not know")
    if journal.first > snapshot.previous[1]:
        raise SnapshotError(f"the metadata snapshot {path} ends at {snapshot.index}, the journal is at {journal.first}")
    _reconcile(snapshot, journal)
    return snapshot


def _reconcile(snapshot: MetadataSnapshot, journal: RaftJournal) -> bool:
    """Whether the journal agreed with the snapshot, so that what it holds after it was kept."""
    agrees = journal.term_at(snapshot.index) == snapshot.last[2]
    if agrees:
        journal.compact(snapshot.previous[1])
    else:
        journal.reset(snapshot.previous, snapshot.last)
    journal.flush()
    return agrees


class SnapshotKeeper:
    """Keeps the newest snapshot of the state machine on disk, and the log no longer than it must be.

    Args:
        path: Path of the file.
        disk: Where it is.
        every_entries: Length of the log at which a snapshot replaces its beginning.
        journal: Journal with the entries of the Raft log.
        machine: Has the state.
        core: Knows what is applied.
        peers: Told when a snapshot changes the members.
        writer: Writes snapshots while the voter goes on.

    Attributes:
        index: Index of the newest entry in the snapshot on disk; 0 when there is none.
        is_due: The one on disk can not be used any more: write another one.
    """

    def __init__(
        self,
        path: Path,
        disk: Disk,
        every_entries: int,
        journal: RaftJournal,
        machine: Machine,
        core: Core,
        peers: Peers,
        writer: Executor | None = None,
    ) -> None:
        self._path = path
        self._disk = disk
        self._every_entries = every_entries
        self._journal = journal
        self._machine = machine
        self._core = core
        self._peers = peers
        self._writer = writer or ThreadPoolExecutor(1, "liftpy-snapshot")
        self._written: Future[int] | None = None
        self._retry_at = 0
        self.index = 0
        self.is_due = False

    def read(self) -> bytes:
        """The bytes of the snapshot on disk.

        Raises:
            SnapshotError: there is none, or it is damaged.
        """
        return read_snapshot(self._disk, self._path)

    def adopt(self, snapshot: MetadataSnapshot) -> None:
        """Make the snapshot on disk the state of this node."""
        if snapshot.cluster_id:
            self._journal.belong_to(snapshot.cluster_id)
        self._peers.membership.reset(snapshot.voters, snapshot.learners, snapshot.index)
        self._peers.membership.record(self._journal[:])
        self._machine.restore(snapshot.state)
        self._core.applied_index = snapshot.index
        self._core.commit_to(snapshot.index)
        self._peers.sync()
        self.index = snapshot.index

    def install(self, snapshot: MetadataSnapshot, data: bytes) -> bool:
        """Replace state and log by a leader's snapshot.

        It goes to disk before the journal is truncated; a crash in between is mended at start.

        Returns:
            Whether the log after the snapshot agreed with it, and was kept.
        """
        if self._written is not None:  # it must not replace the newer one later
            self._finish(self._written)
            self._written = None
        self._journal.flush()  # the term first: at start, a snapshot without its term means that the journal is lost
        store_snapshot(self._disk, self._path, data)
        is_log_kept = _reconcile(snapshot, self._journal)
        self.adopt(snapshot)
        return is_log_kept

    def keep(self) -> None:
        """End a snapshot that was written, or begin one that is due. Called with every tick."""
        if self._written is not None:
            if self._written.done():
                self._finish(self._written)
                self._written = None
        elif self.is_due or len(self._journal) > max(self._every_entries, self._retry_at):
            self._begin()

    def close(self) -> None:
        """Wait until a snapshot that is being written is on disk."""
        self._writer.shutdown(wait=True)

    def _begin(self) -> None:
        """The state is immutable, so that a thread can write it down while the next commands are applied."""
        index = self._core.applied_index
        if index - 1 < self._journal.first or (index - 1 == self._journal.first and not self.is_due):
            return
        self.is_due = False
        previous, last = self._journal.entries_from(index - 1)[:2]
        members = self._peers.membership.members(index)
        cluster_id = self._journal.cluster_id
        capture = self._machine.capture()

        def write(path: Path) -> int:
            snapshot = MetadataSnapshot(
                previous=previous,
                last=last,
                voters=tuple(members.voters.values()),
                learners=tuple(members.learners.values()),
                cluster_id=cluster_id,
                state=capture(),
            )
            store_snapshot(self._disk, path, snapshot.encode())
            return index

        self._written = self._writer.submit(write, self._path)

    def _finish(self, written: Future[int]) -> None:
        try:
            index = written.result()
        except SnapshotError as error:
            logger.warning("%s; trying again when the log has grown", error)
            self._retry_at = len(self._journal) + self._every_entries
            return
        self._retry_at = 0
        self.index = index
        self._journal.compact(index - 1)
        self._peers.membership.compact(index)
        self._journal.flush()
