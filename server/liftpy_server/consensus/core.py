"""One voter: pysyncobj's core with every part that could lose an acknowledged command replaced.

The order that makes it safe: nothing leaves the node, and a leader counts nothing of its own, before the journal is
flushed; the state takes a command only after it is committed; a proposer is called after the state took it; the
snapshot is on disk before the log is cut. Any exception out of `tick` means that this order may be broken, and the
node must stop: it is never logged and survived.
"""
# ruff: noqa: N802 - the overridden names are pysyncobj's

from __future__ import annotations

import logging
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final

from pysyncobj import FAIL_REASON

from liftpy_log.disk import OsDisk
from liftpy_server.consensus.elections import Elections
from liftpy_server.consensus.follower import load_and_reconcile
from liftpy_server.consensus.journal import RaftJournal
from liftpy_server.consensus.leader import CLUSTER, REGULAR
from liftpy_server.consensus.membership import Membership
from liftpy_server.consensus.pinned import check_pinned
from liftpy_server.consensus.session import Identity
from liftpy_server.consensus.snapshot import Snapshot, SnapshotError, store_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

    from liftpy_log.disk import Disk
    from liftpy_server.consensus.inner import Machine
    from liftpy_server.consensus.settings import RaftSettings
    from liftpy_server.consensus.transport import RaftTransport

__all__ = ["SNAPSHOT_NAME", "RaftCore"]

logger = logging.getLogger(__name__)

SNAPSHOT_NAME = "raft.snapshot"

_TICK_S: Final = 0.05
_TICK_ALONE_S: Final = 1.0


class RaftCore(Elections):
    """See the module. One thread at a time; `submit` may be called from any.

    Args:
        settings: this voter's.
        transport: how it reaches the others.
        machine: what the commands are applied to.
        disk: where the folder of the settings is.
        random: for election timeouts, and for names that nobody had before.
        snapshot_writer: writes snapshots while the voter goes on.

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
        self._disk: Disk = disk or OsDisk()
        random = random or SystemRandom()
        self._snapshot_path = settings.folder / SNAPSHOT_NAME
        journal = RaftJournal(settings.folder, self._disk, random)
        try:
            snapshot = load_and_reconcile(self._disk, self._snapshot_path, journal)
            origin = journal.origin(settings.node_id, settings.voters)
            if settings.cluster_id and not journal.cluster_id:
                journal.belong_to(settings.cluster_id)
            journal.flush()
        except BaseException:
            journal.close()
            raise
        membership = Membership(origin)
        membership.record(journal[:])
        self._prepare_leading()
        self._snapshot_writer = snapshot_writer or ThreadPoolExecutor(1, "liftpy-snapshot")
        self._snapshot_written: Future[int] | None = None
        self._retry_snapshot_at = 0
        super().__init__(settings, journal, membership, transport, machine, random)
        self._run = self._new_name()
        transport.before_send = journal.flush
        transport.identity = self._identity
        if snapshot is not None:
            self._adopt(snapshot)
            self._snapshot_index = snapshot.index
        self._sync_voters()

    def _identity(self) -> Identity:
        return Identity(self._journal.cluster_id, self._journal.instance, self._run, self._membership.index)

    def submit(self, entry: bytes, callback: Callable[[Any, int], None]) -> None:
        """Propose an entry.

        Args:
            entry: its first byte says what it is.
            callback: called once with what the state machine returned and a FAIL_REASON, unless the answer is lost:
                the caller needs a timeout of its own. Called on the tick thread; what it raises stops nothing.
        """

        def guarded(result: Any, reason: int) -> None:
            try:
                callback(result, reason)
            except Exception:
                # The entry is applied by now. Raising from here would make the library apply it once more.
                logger.exception("a callback of the metadata failed")

        self._applyCommand(entry, guarded)

    @property
    def wait_s(self) -> float:
        """How long the next tick may wait for messages and proposals."""
        return _TICK_S if self.followers or not self.is_leader else _TICK_ALONE_S

    def tick(self, wait_s: float) -> None:
        """Do what there is to do, then wait for messages.

        Raises:
            Exception: the node must stop.
        """
        self._keep_house()
        self._journal.flush()  # below, a leader counts its own log as durable
        self.doTick(wait_s)

    def close(self) -> None:
        """Close files and connections. What was proposed and not answered stays unanswered."""
        with self._waiting_lock:
            self._is_closed = True
        self._snapshot_writer.shutdown(wait=True)
        self.destroy()
        self._journal.close()

    def _SyncObj__applyLogEntries(self) -> bool:
        """Returns whether followers have something to learn at once."""
        applied, committed = self._SyncObj__raftLastApplied, self._SyncObj__raftCommitIndex
        if committed <= applied:
            return False
        for command, index, term in self._journal[
            applied + 1 - self._journal.first : committed + 1 - self._journal.first
        ]:
            result = self._machine.apply(command[1:]) if command[0] == REGULAR else None
            if command[0] == CLUSTER and not self._journal.cluster_id:
                self._journal.belong_to(command[1:].decode())
            self._SyncObj__raftLastApplied = index
            for expected_term, callback in self._SyncObj__commandsWaitingCommit.pop(index, []):
                if expected_term == term:
                    callback(result, FAIL_REASON.SUCCESS)
                else:
                    callback(None, FAIL_REASON.DISCARDED)
        return True

    def _SyncObj__tryLogCompaction(self) -> None:
        if self._snapshot_written is not None:
            if self._snapshot_written.done():
                self._finish_snapshot(self._snapshot_written)
                self._snapshot_written = None
        elif self._is_snapshot_due or len(self._journal) > max(
            self._settings.snapshot_every_entries, self._retry_snapshot_at
        ):
            self._begin_snapshot()

    def _begin_snapshot(self) -> None:
        """The state is immutable, so that a thread can write it down while the next commands are applied."""
        index = self._SyncObj__raftLastApplied
        if index - 1 < self._journal.first or (index - 1 == self._journal.first and not self._is_snapshot_due):
            return
        self._is_snapshot_due = False
        previous, last = self._journal.entries_from(index - 1)[:2]
        members = self._membership.members(index)
        cluster_id = self._journal.cluster_id
        capture = self._machine.capture()

        def write(path: Path) -> int:
            snapshot = Snapshot(
                previous=previous,
                last=last,
                voters=tuple(members.voters.values()),
                learners=tuple(members.learners.values()),
                cluster_id=cluster_id,
                state=capture(),
            )
            store_snapshot(self._disk, path, snapshot.encode())
            return index

        self._snapshot_written = self._snapshot_writer.submit(write, self._snapshot_path)

    def _install(self, snapshot: Snapshot, data: bytes) -> None:
        if self._snapshot_written is not None:  # it must not replace the newer one later
            self._finish_snapshot(self._snapshot_written)
            self._snapshot_written = None
        super()._install(snapshot, data)
        self._snapshot_index = snapshot.index

    def _finish_snapshot(self, written: Future[int]) -> None:
        try:
            index = written.result()
        except SnapshotError as error:
            logger.warning("%s; trying again when the log has grown", error)
            self._retry_snapshot_at = len(self._journal) + self._settings.snapshot_every_entries
            return
        self._retry_snapshot_at = 0
        self._snapshot_index = index
        self._journal.compact(index - 1)
        self._membership.compact(index)
        self._journal.flush()
