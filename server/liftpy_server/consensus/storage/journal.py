"""Term, vote and entries of one voter, on disk twice.

The log is in memory; what changed since the last `flush` goes to disk as one frame, so term, vote, truncation and
appended entries change together or not at all, and the entries of many proposals share one frame. Nothing that depends
on the log leaves the node before `flush` (see `raft`). The commit index is not kept: it is found again from the others,
and from the snapshot. `journal_frames` says how the two copies prove what was flushed.

    first frame of a file   msgpack [instance, cluster id, origin, term, vote, entries]
    every later one         msgpack [term, vote, index of the last entry that is kept, entries]
    entry                   [command, index, term]; without a gap
    origin                  nil, or [node, voters]: whose journal it is, and the voters the cluster was started with

When the beginning of the log is dropped, both files are rewritten.
"""

from __future__ import annotations

import logging
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final, overload

import msgpack

from liftpy_envelope.unpacking import OWN_FILE, unpack
from liftpy_log.storage.disk import OsDisk, read_whole, write_atomically
from liftpy_server.consensus.settings import Voter
from liftpy_server.consensus.storage.journal_frames import (
    Contents,
    FramesDamagedError,
    FramesNewerError,
    encode_frame,
    read_copies,
)
from liftpy_server.metadata.errors import JournalError, NewerJournalError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from random import Random

    from liftpy_log.storage.disk import Disk, File

__all__ = [
    "CLUSTER",
    "FIRST_ENTRY",
    "JOURNAL_NAMES",
    "MEMBERSHIP",
    "NO_OP",
    "REGULAR",
    "Entry",
    "RaftJournal",
    "has_journal",
]

logger = logging.getLogger(__name__)

Entry = tuple[bytes, int, int]
"""Command, index and term."""

REGULAR: Final = 0
"""First byte of the entry with a command of the state machine."""
NO_OP: Final = 1
"""First byte of the entry that changes nothing."""
MEMBERSHIP: Final = 2
"""First byte of the entry that changes the members."""
CLUSTER: Final = 3
"""First byte of the entry that names the cluster; the first that is committed counts."""

FIRST_ENTRY: Final[Entry] = (b"\x01", 1, 0)
"""Every log begins with this no-op."""

JOURNAL_NAMES: Final = ("raft.journal", "raft.journal.copy")
"""In the order in which they are written."""

_NEVER_RELEASED: Final = "raft.db"


def has_journal(folder: Path, disk: Disk) -> bool:
    """Whether a voter was in this folder before."""
    return not {*JOURNAL_NAMES, _NEVER_RELEASED}.isdisjoint(disk.names(folder))


class RaftJournal:
    """An open journal, for one thread.

    Args:
        folder: Where its two files are; they are made when there is none. The caller sees to it that no other process
            uses it.
        disk: Where the folder is.
        random: Makes up the name of a new journal.

    Attributes:
        instance: 32 hex digits that no other journal has; a copy of the folder has them too.
        cluster_id: The cluster it belongs to; empty while that is not known.
        flushes: Number of flushes that wrote something, so far.

    Raises:
        JournalError: from every method, when the files can not be used; it says which. What was asked for may or may
            not be on disk then, and the node must stop.
    """

    def __init__(self, folder: Path, disk: Disk | None = None, random: Random | None = None) -> None:
        self._disk: Disk = disk or OsDisk()
        self._paths = tuple(folder / name for name in JOURNAL_NAMES)
        self._files: list[File] = []
        self._failure: JournalError | None = None
        self._term = 0
        self._vote: str | None = None
        self._is_hard_state_dirty = False
        self._entries: list[Entry] = []
        self._durable_last = 0  # entries above this index are not on disk
        self._is_truncated = False  # entries above that index are on disk, and no longer here
        self._is_rewrite_due = False
        self._origin: tuple[str, tuple[Voter, ...]] | None = None
        self._generation = self._size = self._crc = 0
        self.flushes = 0
        self.instance = ""
        self.cluster_id = ""
        try:
            self._open(folder, random or SystemRandom())
        except OSError as error:
            raise JournalError(f"opening the metadata journal {self._paths[0]} failed: {error}") from error

    def _open(self, folder: Path, random: Random) -> None:
        if not has_journal(folder, self._disk):
            self.instance = f"{random.getrandbits(128):032x}"
            self._entries.append(FIRST_ENTRY)
            self._is_rewrite_due = True
            self.flush()
            return
        if _NEVER_RELEASED in self._disk.names(folder):
            raise JournalError(
                f"{folder / _NEVER_RELEASED} is the metadata journal of a liftpy from before the first release, and "
                "this one does not read it"
            )
        copies = [self._read(path) for path in self._paths]
        try:
            contents = read_copies(*copies)
        except FramesNewerError as error:
            raise NewerJournalError(
                f"{self._paths[0]} was written by a newer liftpy (format {error.version}); upgrade this node"
            ) from error
        except FramesDamagedError as error:
            both = " and ".join(map(str, self._paths))
            raise JournalError(
                f"the metadata journal is damaged: both copies, {both}, lack what stood at byte {error.position}"
            ) from error
        self._load(contents.bodies)
        self._generation, self._size, self._crc = contents.generation, len(contents.sound), contents.crc
        if all(copy == contents.sound for copy in copies):
            self._files = [self._disk.open(path) for path in self._paths]
            self._files[1].sync()  # a process that was killed may have written without
        else:
            self._tell_repair(copies, contents)
            self._is_rewrite_due = True
            self.flush()

    def _read(self, path: Path) -> bytes | None:
        try:
            return read_whole(self._disk, path)
        except FileNotFoundError:
            return None

    def _tell_repair(self, copies: Sequence[bytes | None], contents: Contents) -> None:
        for number, (path, copy) in enumerate(zip(self._paths, copies, strict=True)):
            if copy == contents.sound:
                continue
            if contents.is_unfinished(copy, is_first=number == 0):
                logger.info("%s ends with an unfinished write, which is left out or finished", path)
            else:
                what = "is missing" if copy is None else f"is damaged at byte {_first_difference(copy, contents.sound)}"
                logger.warning(
                    "%s %s; nothing is lost, it is restored from %s. Check the disk",
                    path,
                    what,
                    self._paths[1 - number].name,
                )

    def _load(self, bodies: Sequence[bytes]) -> None:
        try:
            base, *later = (unpack(body, OWN_FILE) for body in bodies)
            self.instance, self.cluster_id, origin, self._term, self._vote, entries = base
            if origin is not None:
                self._origin = (origin[0], tuple(map(Voter.from_plain, origin[1])))
            self._entries = [_entry(entry) for entry in entries]
            for self._term, self._vote, kept, entries in later:
                del self._entries[max(kept + 1 - self.first, 0) :]
                self._entries += [_entry(entry) for entry in entries]
        except (ValueError, TypeError, IndexError) as error:
            raise JournalError(f"{self._paths[0]} is malformed: {error!r:.200}") from error
        expected = range(self.first, self.first + len(self._entries)) if self._entries else range(0)
        if not expected or [index for _, index, _ in self._entries] != [*expected]:
            raise JournalError(f"{self._paths[0]} is malformed: its entries do not follow each other")
        if self._entries[-1][2] > self._term:
            raise JournalError(f"{self._paths[0]} is malformed: it has an entry of a term that it does not know")
        self._durable_last = self.last

    def origin(self, node_id: str, voters: Sequence[Voter]) -> tuple[Voter, ...]:
        """The voters the cluster was started with: kept, with the next flush, at the first start; read at later ones.

        Raises:
            JournalError: the journal belongs to another node.
        """
        if self._origin is None:
            self._origin = (node_id, tuple(voters))
            self._is_rewrite_due = True
        if self._origin[0] != node_id:
            raise JournalError(f"{self._paths[0]} is the journal of node {self._origin[0]!r}, and this is {node_id!r}")
        return self._origin[1]

    def belong_to(self, cluster_id: str) -> None:
        """Keep the id of the cluster, with the next flush."""
        self._is_rewrite_due |= cluster_id != self.cluster_id
        self.cluster_id = cluster_id

    @property
    def term(self) -> int:
        """The newest term that this node has seen."""
        return self._term

    @property
    def vote(self) -> str | None:
        """Whom this node voted for in that term."""
        return self._vote

    def set_term(self, term: int, vote: str | None) -> None:
        """Set the term, and whom this node votes for in it."""
        assert term >= self._term, "a term never goes back"
        self._term, self._vote = term, vote
        self._is_hard_state_dirty = True

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
            self._is_truncated = True
            self._durable_last = index - 1

    def compact(self, index: int) -> None:
        """Drop the entries below `index`."""
        assert self.first <= index <= self.last
        self._is_rewrite_due |= index > self.first
        del self._entries[: index - self.first]

    def reset(self, previous: Entry, last: Entry) -> None:
        """Replace the whole log by the two last entries of a snapshot that goes beyond it, or contradicts it."""
        assert previous[1] + 1 == last[1]
        self._is_rewrite_due = True
        self._entries = [previous, last]

    def flush(self) -> None:
        """Make everything durable, at once; nothing to do is no I/O."""
        if self._failure is not None:
            raise self._failure
        try:
            if self._is_rewrite_due:
                self._rewrite()
            elif self._is_hard_state_dirty or self._is_truncated or self.last > self._durable_last:
                self._append()
            else:
                return
        except OSError as error:
            self._failure = JournalError(f"writing the metadata journal {self._paths[0]} failed: {error}")
            raise self._failure from error
        self._is_rewrite_due = self._is_hard_state_dirty = self._is_truncated = False
        self._durable_last = self.last
        self.flushes += 1

    def _append(self) -> None:
        new = self._entries[self._durable_last + 1 - self.first :]
        body = msgpack.packb([self._term, self._vote, self._durable_last, new])
        frame, crc = encode_frame(body, generation=self._generation, position=self._size, previous_crc=self._crc)
        for file in self._files:  # the first is on disk before the second is begun
            file.write(self._size, [frame])
            file.sync()
        self._size, self._crc = self._size + len(frame), crc

    def _rewrite(self) -> None:
        origin = None
        if self._origin is not None:
            origin = [self._origin[0], [voter.to_plain() for voter in self._origin[1]]]
        body = msgpack.packb([self.instance, self.cluster_id, origin, self._term, self._vote, self._entries])
        frame, crc = encode_frame(body, generation=self._generation + 1, position=0, previous_crc=0)
        self.close()
        for path in self._paths:
            write_atomically(self._disk, path, frame)
        self._files = [self._disk.open(path) for path in self._paths]
        self._generation, self._size, self._crc = self._generation + 1, len(frame), crc

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append an entry."""
        assert index == self.last + 1, f"entry {index} after {self.last}"
        self._entries.append((command, index, term))

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Any:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
        self._files = []


def _entry(given: Any) -> Entry:
    match given:
        case [bytes(command), int(index), int(term)]:
            return command, index, term
        case _:
            raise ValueError(f"not an entry: {given!r:.100}")


def _first_difference(one: bytes, other: bytes) -> int:
    shorter = min(len(one), len(other))
    return next((position for position in range(shorter) if one[position] != other[position]), shorter)
