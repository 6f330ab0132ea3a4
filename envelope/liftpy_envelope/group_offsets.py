"""Bodies of the pull protocol's APIs that commit the offsets of a consumer group, and fetch them.

Both speak of many partitions at once, stream by stream, so that a stream's name crosses once. A commit carries who
commits, for which generation, and a sequence number: of two commits of one member for one partition the one with the
higher number stands, in whatever order they arrive.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from liftpy_envelope.errors import FrameError
from liftpy_envelope.groups import (
    CLIENT_BYTES_MAX,
    I64_END,
    MEMBER_BYTES_MAX,
    MESSAGE_LENGTH_MAX,
    PARTITIONS_END,
    SUBSCRIPTIONS_MAX,
    GroupError,
    check_group,
    check_stream,
    is_number,
    require,
    require_text,
)
from liftpy_envelope.pull import PartitionKey

__all__ = [
    "METADATA_BYTES_MAX",
    "NO_MEMBER",
    "OFFSETS_MAX",
    "CommitOffset",
    "CommitRefusal",
    "CommitRequest",
    "CommitResult",
    "CommitStream",
    "FetchedOffset",
    "OffsetFetchRequest",
    "OffsetFetchResult",
]

METADATA_BYTES_MAX: Final = 1_024
OFFSETS_MAX: Final = 2_000  # with metadata of that size an answer still fits into a response's header
NO_MEMBER: Final = ""


class CommitOffset(NamedTuple):
    """What is committed for one partition.

    Attributes:
        offset: the next record to read.
        epoch: leader epoch of the record before it; -1 for unknown.
        metadata: the client's own, up to 1 KiB.
    """

    partition: int
    offset: int
    epoch: int = -1
    metadata: bytes = b""


class CommitStream(NamedTuple):
    """What is committed for one incarnation of a stream."""

    uuid: bytes
    name: str
    offsets: tuple[CommitOffset, ...]


class CommitRequest(NamedTuple):
    """A member commits; or, with `NO_MEMBER`, whoever may, while the group has no members.

    Attributes:
        generation: of the assignment that the member has adopted; -1 without a member.
        sequence: grows with every commit of a process; a repeated request repeats it.
    """

    group: str
    member_id: str
    instance_id: str
    generation: int
    sequence: int
    streams: tuple[CommitStream, ...]

    def to_body(self) -> list[Any]:
        """The request's body as it crosses the wire."""
        streams = [[uuid, name, [list(offset) for offset in offsets]] for uuid, name, offsets in self.streams]
        return [*self[:5], streams]

    @classmethod
    def from_body(cls, body: Any) -> CommitRequest:
        """Check and take apart a request's body.

        Raises:
            FrameError: it is malformed.
        """
        what = "offset_commit"
        require(type(body) is list and len(body) == 6, what)
        group, member_id, instance_id, generation, sequence, streams = body
        check_group(group, what)
        require_text(member_id, MEMBER_BYTES_MAX, f"{what}: member")
        require_text(instance_id, CLIENT_BYTES_MAX, f"{what}: instance")
        require(is_number(generation, I64_END, -1) and is_number(sequence), what)
        require(type(streams) is list and len(streams) <= SUBSCRIPTIONS_MAX, f"{what}: streams")
        taken, count = [], 0
        for row in streams:
            require(type(row) is list and len(row) == 3 and type(row[2]) is list, f"{what}: streams")
            require(type(row[0]) is bytes and len(row[0]) == 16, f"{what}: uuid")
            check_stream(row[1], what)
            count += len(row[2])
            require(count <= OFFSETS_MAX, f"{what}: at most {OFFSETS_MAX} offsets go into a request")
            taken.append(CommitStream(row[0], row[1], tuple([_commit_offset(entry) for entry in row[2]])))
        keys = {(stream.uuid, offset.partition) for stream in taken for offset in stream.offsets}
        require(len(keys) == count, f"{what}: a partition is there twice")
        return cls(group, member_id, instance_id, generation, sequence, tuple(taken))


def _commit_offset(row: Any) -> CommitOffset:
    if type(row) is list and len(row) == 4:
        partition, offset, epoch, metadata = row
        if (
            type(partition) is type(offset) is type(epoch) is int
            and 0 <= partition < PARTITIONS_END
            and 0 <= offset < I64_END
            and -1 <= epoch < PARTITIONS_END
            and type(metadata) is bytes
            and len(metadata) <= METADATA_BYTES_MAX
        ):
            return CommitOffset(partition, offset, epoch, metadata)
    raise FrameError("malformed offset_commit: offsets")


class CommitRefusal(NamedTuple):
    """An offset that was not committed, while others of the request were."""

    key: PartitionKey
    error: GroupError


class CommitResult(NamedTuple):
    """The answer to a `CommitRequest`.

    Attributes:
        error: why nothing was committed, if so.
        message: for people; "" when there is no error.
        refusals: what else was not committed.
    """

    error: GroupError
    message: str = ""
    refusals: tuple[CommitRefusal, ...] = ()

    def to_result(self) -> list[Any]:
        """The response's result as it crosses the wire."""
        return [int(self.error), self.message, [[*row.key, int(row.error)] for row in self.refusals]]

    @classmethod
    def from_result(cls, result: Any) -> CommitResult:
        """Check and take apart a response's result.

        Raises:
            FrameError: it is malformed.
        """
        what = "offset_commit result"
        error, message, rows = _result(result, what)
        refusals = []
        for row in rows:
            key = _key(row, 3, what)
            require(is_number(row[2]), what)
            refusals.append(CommitRefusal(key, GroupError.of(row[2])))
        return cls(error, message, tuple(refusals))


class OffsetFetchRequest(NamedTuple):
    """What is committed for these partitions?

    Attributes:
        member_id: of the member that is about to read them; `NO_MEMBER` for whoever is curious.
        generation: of the assignment that brought them; a coordinator that does not know of it is one no longer.
    """

    group: str
    member_id: str
    instance_id: str
    generation: int
    keys: tuple[PartitionKey, ...]

    def to_body(self) -> list[Any]:
        """The request's body as it crosses the wire."""
        return [*self[:4], [list(key) for key in self.keys]]

    @classmethod
    def from_body(cls, body: Any) -> OffsetFetchRequest:
        """Check and take apart a request's body.

        Raises:
            FrameError: it is malformed.
        """
        what = "offset_fetch"
        require(type(body) is list and len(body) == 5, what)
        group, member_id, instance_id, generation, rows = body
        check_group(group, what)
        require_text(member_id, MEMBER_BYTES_MAX, f"{what}: member")
        require_text(instance_id, CLIENT_BYTES_MAX, f"{what}: instance")
        require(is_number(generation, I64_END, -1), what)
        require(type(rows) is list and len(rows) <= OFFSETS_MAX, f"{what}: at most {OFFSETS_MAX} partitions")
        return cls(group, member_id, instance_id, generation, tuple([_key(row, 2, what) for row in rows]))


class FetchedOffset(NamedTuple):
    """What is committed for one partition.

    Attributes:
        offset: the next record to read.
        epoch: leader epoch of the record before it; -1 for unknown.
    """

    key: PartitionKey
    offset: int
    epoch: int
    metadata: bytes


class OffsetFetchResult(NamedTuple):
    """The answer to an `OffsetFetchRequest`: partitions without a committed offset are left out."""

    error: GroupError
    message: str = ""
    offsets: tuple[FetchedOffset, ...] = ()

    def to_result(self) -> list[Any]:
        """The response's result as it crosses the wire."""
        return [int(self.error), self.message, [[*row.key, *row[1:]] for row in self.offsets]]

    @classmethod
    def from_result(cls, result: Any) -> OffsetFetchResult:
        """Check and take apart a response's result.

        Raises:
            FrameError: it is malformed.
        """
        what = "offset_fetch result"
        error, message, rows = _result(result, what)
        offsets = []
        for row in rows:
            key = _key(row, 5, what)
            require(is_number(row[2]) and is_number(row[3], PARTITIONS_END, -1), what)
            require(type(row[4]) is bytes and len(row[4]) <= METADATA_BYTES_MAX, what)
            offsets.append(FetchedOffset(key, *row[2:]))
        return cls(error, message, tuple(offsets))


def _result(result: Any, what: str) -> tuple[GroupError, str, list[Any]]:
    require(type(result) is list and len(result) == 3, what)
    error, message, rows = result
    require(is_number(error) and type(message) is str and len(message) <= MESSAGE_LENGTH_MAX, what)
    require(type(rows) is list and len(rows) <= OFFSETS_MAX, what)
    return GroupError.of(error), message, rows


def _key(row: Any, width: int, what: str) -> PartitionKey:
    require(type(row) is list and len(row) == width, what)
    require(type(row[0]) is bytes and len(row[0]) == 16 and is_number(row[1], PARTITIONS_END), what)
    return PartitionKey(row[0], row[1])
