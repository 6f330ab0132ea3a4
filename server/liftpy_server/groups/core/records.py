"""Records of the stream of the groups: keys, values, and how the log holds them.

    key of an offset    kind u8 (1) | stream uuid 16 bytes | partition u32 | group
    key of a group      kind u8 (2) | group
    key of a member     kind u8 (3) | group_length u8 | group | member id

Big-endian, so that keys sort as they read; groups and members in UTF-8. A newer layout of a key is another kind. The
value of an offset, little-endian:

      0  version u8 (1)        1  name_length u8        2  reserved u16       4  leader_epoch i32
      8  offset i64           16  commit_time i64 (ns) 24  generation i64    32  sequence i64
     40  stream name, then the client's metadata up to the end

Values of groups and members are msgpack arrays that begin with their version; see `images`. A null value deletes.
What one step of a coordinator writes is one record batch: all of it is there after a crash, or nothing.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.batch import BatchBody, encode_body
from liftpy_envelope.columns import Column
from liftpy_envelope.errors import BatchVersionError
from liftpy_envelope.group_routing import GROUPS_STREAM
from liftpy_envelope.ipc import nullable_column, repeated_column, values_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_envelope.pull import PartitionKey

__all__ = [
    "OFFSET_HEAD",
    "OFFSET_KEY_AT",
    "OFFSET_SUFFIX",
    "OFFSET_VERSION",
    "TOKEN_AT",
    "CommittedOffset",
    "GroupRecord",
    "RecordKind",
    "decode_offset",
    "encode_offset",
    "encode_records",
    "group_key",
    "member_key",
    "offset_key",
    "offset_suffix",
    "split_member_key",
]

OFFSET_VERSION: Final = 1
OFFSET_KEY_AT: Final = 21  # where the group begins in the key of an offset
TOKEN_AT: Final = 24  # where generation and sequence stand in the value of an offset
OFFSET_HEAD: Final = struct.Struct("<BBHiqqqq")  # of the value of an offset
OFFSET_SUFFIX: Final = struct.Struct(">16sI")  # uuid and partition in its key
_SUBJECT: Final = GROUPS_STREAM.encode()


class RecordKind:
    """First byte of a key. Persisted numbers."""

    OFFSET: Final = 1
    GROUP: Final = 2
    MEMBER: Final = 3


class GroupRecord(NamedTuple):
    """One record; a null value deletes what the key stands for."""

    key: bytes
    value: bytes | None


class CommittedOffset(NamedTuple):
    """What a group committed for a partition.

    Attributes:
        offset: The next record to read.
        epoch: Leader epoch of the record before it; -1 for unknown.
        commit_time_ns: Time of the commit, ns since the epoch.
        generation: Generation of the member that committed it.
        sequence: Sequence that the member gave the commit; with the generation it orders the commits of a partition.
        stream: Name of the stream, for people.
        metadata: The client's own.
    """

    offset: int
    epoch: int
    commit_time_ns: int
    generation: int
    sequence: int
    stream: str
    metadata: bytes


def offset_suffix(key: PartitionKey) -> bytes:
    """The part of an offset's key that tells the partitions of a group apart; 20 bytes."""
    return OFFSET_SUFFIX.pack(*key)


def offset_key(group: bytes, suffix: bytes) -> bytes:
    """The key of an offset of a group."""
    return b"\x01" + suffix + group


def group_key(group: str) -> bytes:
    """The key of a group."""
    return b"\x02" + group.encode()


def member_key(group: str, member_id: str) -> bytes:
    """The key of a member of a group."""
    name = group.encode()
    return b"\x03" + bytes((len(name),)) + name + member_id.encode()


def split_member_key(key: bytes) -> tuple[str, str]:
    """Group and member id of a member's key."""
    end = 2 + key[1]
    return key[2:end].decode(), key[end:].decode()


def encode_offset(committed: CommittedOffset) -> bytes:
    """The value of an offset."""
    offset, epoch, time_ns, generation, sequence, stream, metadata = committed
    name = stream.encode()
    head = OFFSET_HEAD.pack(OFFSET_VERSION, len(name), 0, epoch, offset, time_ns, generation, sequence)
    return head + name + metadata


def decode_offset(value: bytes) -> CommittedOffset:
    """Decode a record that `encode_offset` wrote.

    Raises:
        BatchVersionError: a newer liftpy wrote it.
    """
    version, name_length, _reserved, epoch, offset, time_ns, generation, sequence = OFFSET_HEAD.unpack_from(value)
    if version != OFFSET_VERSION:
        raise BatchVersionError(
            f"a committed offset has version {version}; this liftpy reads version {OFFSET_VERSION}: upgrade the node"
        )
    at = OFFSET_HEAD.size + name_length
    name = value[OFFSET_HEAD.size : at].decode()
    return CommittedOffset(offset, epoch, time_ns, generation, sequence, name, value[at:])


def encode_records(records: Sequence[GroupRecord]) -> BatchBody:
    """The body of the record batch that holds these records, at least one, in their order."""
    keys, values = zip(*records, strict=True)
    columns = [
        repeated_column(_SUBJECT, len(records)),
        values_column(keys),
        nullable_column(values) if None in values else values_column(values),
    ]
    return encode_body(len(records), Column.SUBJECT | Column.KEY | Column.VALUE, columns)
