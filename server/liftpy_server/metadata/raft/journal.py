"""Term, vote and log entries of one voter, in SQLite, behind the interface that pysyncobj's core reads its log through.

The log is in memory; what changed since the last `flush` goes to disk in one transaction (`synchronous = FULL`), so
term, vote, truncation and appended entries change together or not at all, and the entries of many proposals share one
sync. Nothing that depends on the log leaves the node before `flush` (see `core`). The commit index is not kept:
it is found anew from the others, and from the snapshot.

    hard_state   term, vote, and the checksum of both
    entries      idx, term, command, and the checksum of all three; without a gap
    origin       the voters the cluster was started with, by which the membership entries are understood
    identity     a name for this file that no other has, and the id of the cluster, once that is committed
"""

from __future__ import annotations

import sqlite3
import struct
from typing import TYPE_CHECKING, Any, Final, overload
from uuid import uuid4

import google_crc32c
import msgpack

from liftpy_envelope.unpacking import OWN_FILE, unpack
from liftpy_log.disk import OsDisk
from liftpy_server.metadata.errors import JournalError, NewerJournalError
from liftpy_server.metadata.raft.settings import Voter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["FIRST_ENTRY", "Entry", "RaftJournal"]

Entry = tuple[bytes, int, int]
"""Command, index and term, in pysyncobj's order."""

FIRST_ENTRY: Final[Entry] = (b"\x01", 1, 0)
"""Every log begins with this no-op."""

_FORMAT: Final = 2
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS hard_state (
    id INTEGER PRIMARY KEY CHECK (id = 0), term INTEGER NOT NULL, vote TEXT, crc INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS entries (
    idx INTEGER PRIMARY KEY, term INTEGER NOT NULL, command BLOB NOT NULL, crc INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS origin (id INTEGER PRIMARY KEY CHECK (id = 0), node TEXT NOT NULL, voters BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS identity (
    id INTEGER PRIMARY KEY CHECK (id = 0), instance TEXT NOT NULL, cluster_id TEXT NOT NULL
);
"""


def _crc(index: int, term: int, data: bytes) -> int:
    return int(google_crc32c.value(struct.pack("<QQ", index, term) + data))


class RaftJournal:
    """An open journal, for one thread.

    Args:
        path: the file; made when it is not there.

    Attributes:
        instance: 32 hex digits that no other journal has; a copy of the file has them too.
        cluster_id: the cluster it belongs to; empty while that is not known.
        flushes: transactions so far.

    Raises:
        JournalError: from every method, when the file can not be used; it says which file. What was asked for may or
            may not be on disk then, and the node must stop.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._term = 0
        self._vote: str | None = None
        self._is_hard_state_dirty = False
        self._entries: list[Entry] = []
        self._durable_last = 0  # entries above this index are not on disk
        self._cut_from: int | None = None  # entries on disk from here on are to be deleted
        self._cut_below = 0  # entries on disk below this are to be deleted
        self.flushes = 0
        self.instance = ""
        self.cluster_id = ""
        self._is_cluster_id_dirty = False
        try:
            if not path.exists():
                self._create()
            self._db = self._connect(path)
            try:
                self._load()
            except BaseException:
                self._db.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise self._failure("opening", error) from error

    def _create(self) -> None:
        """Make the file complete under another name, so that one that is empty later was damaged."""
        path = self._path.with_name(self._path.name + ".new")
        path.unlink(missing_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None)
        try:
            self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_FORMAT}; COMMIT;")
            self._db.execute("INSERT INTO identity VALUES (0, ?, '')", (uuid4().hex,))
            self.setCurrentTerm(0, None)
            self.add(*FIRST_ENTRY)
            self.flush()
        finally:
            self._db.close()
        self._entries = []
        OsDisk().rename(path, self._path)
        OsDisk().sync_directory(self._path.parent)

    def _connect(self, path: Path) -> sqlite3.Connection:
        db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > _FORMAT:
            raise NewerJournalError(
                f"{self._path} was written by a newer liftpy (format {version}); this one reads format {_FORMAT}"
            )
        if version != _FORMAT:
            raise JournalError(f"{self._path} is in format {version}; this liftpy reads format {_FORMAT}")
        (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise JournalError(f"the metadata journal {self._path} is damaged: {found}")

    def _failure(self, doing: str, error: Exception) -> JournalError:
        return JournalError(f"{doing} the metadata journal {self._path} failed: {error}")

    def _load(self) -> None:
        row = self._db.execute("SELECT term, vote, crc FROM hard_state").fetchone()
        if row is None:
            raise JournalError(f"{self._path} has no term")
        self._term, self._vote, crc = row
        if crc != self._hard_state_crc():
            raise JournalError(f"term and vote in {self._path} are damaged")
        identity = self._db.execute("SELECT instance, cluster_id FROM identity").fetchone()
        if identity is None:
            raise JournalError(f"{self._path} has no identity")
        self.instance, self.cluster_id = identity
        for index, term, command, crc in self._db.execute("SELECT idx, term, command, crc FROM entries ORDER BY idx"):
            if self._entries and index != self._entries[-1][1] + 1:
                raise JournalError(f"{self._path} has no entry {self._entries[-1][1] + 1}")
            if crc != _crc(index, term, command):
                raise JournalError(f"entry {index} in {self._path} is damaged")
            self._entries.append((command, index, term))
        if not self._entries or self._entries[-1][2] > self._term:
            raise JournalError(f"{self._path} has no entry, or one of a term that it does not know")
        self._durable_last = self.last

    def _hard_state_crc(self) -> int:
        return _crc(self._term, 0 if self._vote is None else 1, (self._vote or "").encode())

    def origin(self, node_id: str, voters: Sequence[Voter]) -> tuple[Voter, ...]:
        """The voters the cluster was started with: kept at the first start, read at later ones.

        Raises:
            JournalError: the journal belongs to another node, or can not be used.
        """
        try:
            row = self._db.execute("SELECT node, voters FROM origin").fetchone()
            if row is None:
                blob = msgpack.packb([voter.to_plain() for voter in voters])
                self._db.execute("INSERT INTO origin VALUES (0, ?, ?)", (node_id, blob))
                return tuple(voters)
        except sqlite3.Error as error:
            raise self._failure("reading", error) from error
        if row[0] != node_id:
            raise JournalError(f"{self._path} is the journal of node {row[0]!r}, and this is {node_id!r}")
        try:
            return tuple(map(Voter.from_plain, unpack(row[1], OWN_FILE)))
        except (ValueError, TypeError) as error:
            raise JournalError(f"the first voters in {self._path} are damaged: {error}") from error

    def belong_to(self, cluster_id: str) -> None:
        """Keep the id of the cluster, with the next flush."""
        self.cluster_id = cluster_id
        self._is_cluster_id_dirty = True

    @property
    def first(self) -> int:
        """Index of the oldest entry."""
        return self._entries[0][1]

    @property
    def last(self) -> int:
        """Index of the newest entry."""
        return self._entries[-1][1]

    def term_at(self, index: int) -> int | None:
        """The term of an entry; None when it is not here."""
        return self._entries[index - self.first][2] if self.first <= index <= self.last else None

    def entries_from(self, index: int, bytes_max: int | None = None) -> list[Entry]:
        """Entries from `index` on; at least one if there is one, and no more than `bytes_max` of commands else."""
        assert index >= self.first, f"entry {index} was compacted; the log begins at {self.first}"
        found: list[Entry] = []
        size = 0
        for position in range(index - self.first, len(self._entries)):
            entry = self._entries[position]
            size += len(entry[0])
            if bytes_max is not None and found and size > bytes_max:
                break
            found.append(entry)
        return found

    def truncate(self, index: int) -> None:
        """Drop the entries from `index` on."""
        assert index > self.first, "the oldest entry is committed"
        del self._entries[index - self.first :]
        if index <= self._durable_last:
            self._cut_from = index
            self._durable_last = index - 1

    def compact(self, index: int) -> None:
        """Drop the entries below `index`."""
        assert self.first <= index <= self.last
        del self._entries[: index - self.first]
        self._cut_below = index

    def restart(self, previous: Entry, last: Entry) -> None:
        """Replace the whole log by the two last entries of a snapshot that goes beyond it, or contradicts it."""
        assert previous[1] + 1 == last[1]
        self._cut_from = 0
        self._durable_last = 0
        self._entries = []
        self.add(*previous)
        self.add(*last)

    def flush(self) -> None:
        """Make everything durable, in one transaction; nothing to do is no I/O."""
        new = self._entries[max(self._durable_last + 1 - self.first, 0) :]
        is_dirty = self._is_hard_state_dirty or self._is_cluster_id_dirty
        if not (new or is_dirty or self._cut_from is not None or self._cut_below):
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._write(new)
                self._db.execute("COMMIT")
            except sqlite3.Error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._failure("writing", error) from error
        self._is_hard_state_dirty = self._is_cluster_id_dirty = False
        self._cut_from, self._cut_below = None, 0
        self._durable_last = self.last
        self.flushes += 1

    def _write(self, new: Sequence[Entry]) -> None:
        if self._is_hard_state_dirty:
            row = (self._term, self._vote, self._hard_state_crc())
            self._db.execute("INSERT OR REPLACE INTO hard_state VALUES (0, ?, ?, ?)", row)
        if self._is_cluster_id_dirty:
            self._db.execute("UPDATE identity SET cluster_id = ?", (self.cluster_id,))
        if self._cut_from is not None:
            self._db.execute("DELETE FROM entries WHERE idx >= ?", (self._cut_from,))
        if self._cut_below:
            self._db.execute("DELETE FROM entries WHERE idx < ?", (self._cut_below,))
        self._db.executemany(
            "INSERT INTO entries VALUES (?, ?, ?, ?)",
            [(index, term, command, _crc(index, term, command)) for command, index, term in new],
        )

    # What follows is the interface that pysyncobj's core calls.

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Append an entry."""
        assert not self._entries or idx == self.last + 1, f"entry {idx} after {self.last}"
        self._entries.append((command, idx, term))

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Any:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803 - pysyncobj's names
        """Set term and vote."""
        assert term >= self._term, "a term never goes back"
        self._term, self._vote = term, votedForNodeId
        self._is_hard_state_dirty = True

    def getCurrentTerm(self) -> int:  # noqa: N802 - pysyncobj's name
        """The newest term this node has seen."""
        return self._term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802 - pysyncobj's name
        """Whom this node voted for in that term."""
        return self._vote

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803 - pysyncobj's names
        """Nothing: a commit index from before a crash may lie beyond the log that is left."""

    def onOneSecondTimer(self) -> None:  # noqa: N802 - pysyncobj's name
        """Nothing: no write is put off."""

    def _destroy(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()
