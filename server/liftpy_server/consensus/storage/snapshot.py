"""The state up to one log entry, as a file, and as the chunks in which a leader sends that file.

    magic 8 bytes | version u32 | reserved u32 | body length u64 | SHA-256 of all before and of the body, 32 bytes
    then the body
    body = msgpack [previous entry, last entry, [voter...], [learner...], cluster id, state]

A snapshot is written beside the old one, fsynced, renamed over it, and the folder is fsynced; only then may the log
be truncated. One that can not be read stops the node: without it the log below it is gone, and an empty state would be
a lie.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgpack

from liftpy_envelope.errors import LiftError
from liftpy_envelope.unpacking import OWN_FILE, unpack
from liftpy_log.storage.disk import read_whole, write_atomically
from liftpy_server.consensus.settings import Voter

if TYPE_CHECKING:
    from pathlib import Path

    from liftpy_log.storage.disk import Disk
    from liftpy_server.consensus.storage.journal import Entry

__all__ = ["MetadataSnapshot", "SnapshotError", "load_snapshot", "read_snapshot", "store_snapshot"]

_MAGIC: Final = b"LIFTSNAP"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sIIQ")
_SHA256_BYTES: Final = 32


class SnapshotError(LiftError):
    """A snapshot is damaged, or can not be read or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSnapshot:
    """State after `last` was applied.

    Attributes:
        previous: The entry before `last`, which the core keeps at the head of its log.
        last: The newest entry in the state.
        voters: Nodes that vote after `last`.
        state: State that msgpack can encode.
        learners: Nodes that follow after `last`, and do not vote.
        cluster_id: 32 hex digits; empty while the cluster has none.
    """

    previous: Entry
    last: Entry
    voters: tuple[Voter, ...]
    state: Any
    learners: tuple[Voter, ...] = ()
    cluster_id: str = ""

    @property
    def index(self) -> int:
        """Index of the newest entry in the state."""
        return self.last[1]

    def encode(self) -> bytes:
        """The bytes of the file."""
        members = [[voter.to_plain() for voter in some] for some in (self.voters, self.learners)]
        body = msgpack.packb([self.previous, self.last, *members, self.cluster_id, self.state])
        head = _HEAD.pack(_MAGIC, _VERSION, 0, len(body))
        return b"".join((head, hashlib.sha256(head + body).digest(), body))

    @classmethod
    def decode(cls, data: bytes) -> MetadataSnapshot:
        """Read a snapshot that `encode` wrote.

        Raises:
            SnapshotError: it is damaged, or of a newer version.
        """
        try:
            previous, last, voters, learners, cluster_id, state = unpack(_body(data), OWN_FILE, int_keys=True)
            found = cls(
                previous=_entry(previous),
                last=_entry(last),
                voters=tuple(map(Voter.from_plain, voters)),
                learners=tuple(map(Voter.from_plain, learners)),
                cluster_id=str(cluster_id),
                state=state,
            )
        except (ValueError, TypeError) as error:
            raise SnapshotError(f"it is malformed: {error}") from error
        if found.previous[1] + 1 != found.last[1]:
            raise SnapshotError("its two entries do not follow each other")
        return found


def _body(data: bytes) -> bytes:
    """What the head says is sound."""
    if len(data) < _HEAD.size + _SHA256_BYTES:
        raise SnapshotError("it is too short")
    magic, version, _, length = _HEAD.unpack_from(data)
    body = data[_HEAD.size + _SHA256_BYTES :]
    digest = data[_HEAD.size : _HEAD.size + _SHA256_BYTES]
    if magic != _MAGIC or length != len(body) or hashlib.sha256(data[: _HEAD.size] + body).digest() != digest:
        raise SnapshotError("its checksum does not match")
    if version > _VERSION:
        raise SnapshotError(f"it is of version {version}, written by a newer liftpy")
    return body


def _entry(given: object) -> Entry:
    match given:
        case [bytes(command), int(index), int(term)] if command and index > 0 and term >= 0:
            return command, index, term
        case _:
            raise ValueError(f"not an entry: {given!r:.100}")


def store_snapshot(disk: Disk, path: Path, data: bytes) -> None:
    """Put the bytes of a snapshot in the place of the one before; on disk when this returns.

    Raises:
        SnapshotError: it could not be written; the one before is still there.
    """
    try:
        write_atomically(disk, path, data)
    except OSError as error:
        raise SnapshotError(f"the metadata snapshot {path} can not be written: {error}") from error


def load_snapshot(disk: Disk, path: Path) -> MetadataSnapshot | None:
    """The snapshot in a file; None when there is no file.

    Raises:
        SnapshotError: it can not be read. The message names the file.
    """
    try:
        data = read_whole(disk, path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SnapshotError(f"the metadata snapshot {path} can not be read: {error}") from error
    try:
        return MetadataSnapshot.decode(data)
    except SnapshotError as error:
        raise SnapshotError(f"the metadata snapshot {path} can not be used: {error}") from error


def read_snapshot(disk: Disk, path: Path) -> bytes:
    """The bytes of a snapshot, to be sent to another node.

    Raises:
        SnapshotError: there is none, or it is damaged. The message names the file.
    """
    try:
        data = read_whole(disk, path)
        _body(data)
    except (OSError, SnapshotError) as error:
        raise SnapshotError(f"the metadata snapshot {path} can not be sent: {error}") from error
    return data
