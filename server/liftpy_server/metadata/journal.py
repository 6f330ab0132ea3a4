"""Where commands are durable before they are applied: a SQLite file with the tables that Raft needs.

Term, vote, entries and snapshot stand in one database, so that whatever must change together changes in one
transaction. `synchronous = FULL` makes a commit return when it is on disk. A cluster of one uses term 1 for ever.
"""

from __future__ import annotations

import hashlib
import sqlite3
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Journal", "JournalError"]

_FORMAT: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS hard_state (id INTEGER PRIMARY KEY CHECK (id = 0), term INTEGER NOT NULL, vote TEXT);
CREATE TABLE IF NOT EXISTS entries (idx INTEGER PRIMARY KEY, term INTEGER NOT NULL, command BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS snapshot (
    id INTEGER PRIMARY KEY CHECK (id = 0), idx INTEGER NOT NULL, term INTEGER NOT NULL,
    state BLOB NOT NULL, sha256 BLOB NOT NULL
);
"""


class JournalError(LiftError):
    """The metadata journal can not be read or written."""


class Journal:
    """An open journal. Its methods block; one thread at a time may use it.

    Raises:
        JournalError: from every method, when the file can not be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > _FORMAT:
                self._db.close()
                raise JournalError(f"{path} was written by a newer liftpy (format {version})")
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_FORMAT}; COMMIT;")
        except sqlite3.Error as error:
            raise self._failure("opening", error) from error

    def _failure(self, doing: str, error: sqlite3.Error) -> JournalError:
        return JournalError(f"{doing} the metadata journal {self._path} failed: {error}")

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """The snapshot, if there is one, and the commands after it."""
        try:
            row = self._db.execute("SELECT idx, state, sha256 FROM snapshot").fetchone()
            first = 0 if row is None else row[0]
            entries = self._db.execute(
                "SELECT idx, command FROM entries WHERE idx > ? ORDER BY idx", (first,)
            ).fetchall()
        except sqlite3.Error as error:
            raise self._failure("reading", error) from error
        if row is not None and hashlib.sha256(row[1]).digest() != row[2]:
            raise JournalError(f"the snapshot in {self._path} is damaged")
        for expected, (index, _) in enumerate(entries, first + 1):
            if index != expected:
                raise JournalError(f"{self._path} has no entry {expected}")
        return (None if row is None else row[1]), [command for _, command in entries]

    def append(self, commands: Sequence[bytes]) -> None:
        """Add commands; they are on disk when this returns."""
        try:
            self._db.execute("BEGIN")
            try:
                self._db.executemany(
                    "INSERT INTO entries (term, command) VALUES (1, ?)", [(entry,) for entry in commands]
                )
                self._db.execute("COMMIT")
            except sqlite3.Error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._failure("writing", error) from error

    def compact(self, state: bytes) -> None:
        """Replace every entry by a snapshot of the state after them."""
        try:
            self._db.execute("BEGIN")
            try:
                (last,) = self._db.execute("SELECT MAX(idx) FROM entries").fetchone()
                if last is not None:
                    row = (last, state, hashlib.sha256(state).digest())
                    self._db.execute("INSERT OR REPLACE INTO snapshot VALUES (0, ?, 1, ?, ?)", row)
                    # The newest entry stays, so that the numbering goes on from it.
                    self._db.execute("DELETE FROM entries WHERE idx < ?", (last,))
                self._db.execute("COMMIT")
            except sqlite3.Error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._failure("compacting", error) from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()
