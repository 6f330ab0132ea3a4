"""The metadata of a node from before there were clusters: its `metadata.db` becomes the first snapshot of a cluster.

    metadata.db            the old journal: a snapshot and the commands after it
    metadata.new/          journal and snapshot for the cluster, while they are made
    metadata.db.migrated   the old journal afterwards; kept, and never read again
    metadata/              the metadata from then on

First `metadata.new` is made complete and durable, then the old file is renamed, then the folder. So whichever of the
two names is there tells, after a crash at any moment, what is still to be done.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import LiftError
from liftpy_envelope.unpacking import OWN_FILE, unpack
from liftpy_log.errors import DataDirError
from liftpy_log.storage.disk import OsDisk
from liftpy_server.consensus.journal import FIRST_ENTRY, NO_OP, RaftJournal
from liftpy_server.consensus.snapshot import Snapshot, store_snapshot
from liftpy_server.consensus.snapshot_keeper import SNAPSHOT_NAME
from liftpy_server.metadata.commands import Command, apply_command
from liftpy_server.metadata.errors import JournalError
from liftpy_server.metadata.state import MetadataState

if TYPE_CHECKING:
    from pathlib import Path

    from liftpy_server.consensus.settings import Voter

__all__ = ["has_old_metadata", "migrate", "read_old_metadata"]

logger = logging.getLogger(__name__)

_OLD: Final = "metadata.db"
_OLD_FORMAT: Final = 1
_DONE: Final = "metadata.db.migrated"
_MAKING: Final = "metadata.new"
_TERM: Final = 1


def has_old_metadata(root: Path) -> bool:
    """Whether a data directory was last used by a node from before there were clusters."""
    return (root / _OLD).exists()


def migrate(root: Path, folder: Path, voter: Voter) -> None:
    """Bring the metadata of a data directory to its present form. Nothing happens if it has it, or has none.

    Args:
        root: the data directory.
        folder: in it, where the metadata is from now on.
        voter: this node, the only voter.

    Raises:
        JournalError: the old file can not be used.
        DataDirError: an older liftpy has run since the migration, or the new folder was removed.
        OSError: the disk is full, or worse.
    """
    old, making = root / _OLD, root / _MAKING
    if old.exists():
        if folder.exists():
            raise DataDirError(
                f"{root} holds both {_OLD} and {folder.name}: an older liftpy ran here after a newer one. Move {_OLD} "
                "away to go on with what the newer one had; what the older one changed since is lost then"
            )
        _make(making, read_old_metadata(old), voter)
        logger.info("the metadata in %s is brought to the form of liftpy with clusters", old)
        OsDisk().rename(old, root / _DONE)
        OsDisk().sync_directory(root)
    if (root / _DONE).exists() and not folder.exists():
        if not making.exists():
            raise DataDirError(
                f"{folder} is missing, although {_DONE} says that it was made: restore it from a backup; "
                f"or rename {_DONE} to {_OLD} to go back to the metadata of that time"
            )
        OsDisk().rename(making, folder)
        OsDisk().sync_directory(root)


def _make(making: Path, state: MetadataState, voter: Voter) -> None:
    if making.exists():  # of an attempt that was cut short
        shutil.rmtree(making)
    OsDisk().make_directory(making)
    last = (bytes((NO_OP,)), FIRST_ENTRY[1] + 1, _TERM)
    snapshot = Snapshot(previous=FIRST_ENTRY, last=last, voters=(voter,), state=state.to_plain())
    with closing(RaftJournal(making)) as journal:
        journal.set_term(_TERM, voter.node_id)
        journal.restart(FIRST_ENTRY, last)
        journal.flush()
    store_snapshot(OsDisk(), making / SNAPSHOT_NAME, snapshot.encode())


def read_old_metadata(path: Path) -> MetadataState:
    """The state that a journal from before there were clusters holds.

    Raises:
        JournalError: it can not be used.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version != _OLD_FORMAT:
                raise JournalError(f"{path} is in format {version}; this liftpy reads format {_OLD_FORMAT}")
            (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise JournalError(f"{path} is damaged: {found}")
            row = db.execute("SELECT idx, state, sha256 FROM snapshot").fetchone()
            entries = db.execute(
                "SELECT idx, command FROM entries WHERE idx > ? ORDER BY idx", (0 if row is None else row[0],)
            ).fetchall()
    except sqlite3.Error as error:
        raise JournalError(f"the metadata in {path} can not be read: {error}") from error
    if row is not None and hashlib.sha256(row[1]).digest() != row[2]:
        raise JournalError(f"the snapshot in {path} is damaged")
    for expected, (index, _) in enumerate(entries, 1 if row is None else row[0] + 1):
        if index != expected:
            raise JournalError(f"{path} has no entry {expected}")
    try:
        state = MetadataState() if row is None else MetadataState.from_plain(unpack(row[1], OWN_FILE))
        for _, command in entries:
            state, _ = apply_command(state, Command.decode(command))
    except (LiftError, ValueError, LookupError, TypeError) as error:
        raise JournalError(f"the metadata in {path} can not be used: {error}") from error
    return state
