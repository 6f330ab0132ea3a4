"""Bodies of the pull protocol's APIs that commit the offsets of a consumer group, and fetch them.

Both speak of many partitions at once, stream by stream, so that a stream's name crosses once. A commit carries who
commits, for which generation, and a sequence number: of two commits of one member for one partition the one with the
higher number stands, in whatever order they arrive.
"""

from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from liftpy_envelope.bodies import Epoch, Mark, Number, PartitionNumber, Uuid
from liftpy_envelope.errors import FrameError
from liftpy_envelope.groups import SUBSCRIPTIONS_MAX, GroupError, Message, check_member
from liftpy_envelope.names import check_name
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
_Metadata = Annotated[bytes, Meta(max_length=METADATA_BYTES_MAX)]
_AT_MOST: Final = Meta(max_length=OFFSETS_MAX)


class CommitOffset(NamedTuple):
    """What is committed for one partition.

    Attributes:
        offset: The next record to read.
        epoch: Leader epoch of the record before it; -1 for unknown.
        metadata: The client's own, up to 1 KiB.
    """

    partition: PartitionNumber
    offset: Number
    epoch: Epoch = -1
    metadata: _Metadata = b""


class CommitStream(NamedTuple):
    """What is committed for one incarnation of a stream."""

    uuid: Uuid
    name: str
    offsets: Annotated[tuple[CommitOffset, ...], _AT_MOST]


class CommitRequest(NamedTuple):
    """A member commits; or, with `NO_MEMBER`, whoever may, while the group has no members.

    Attributes:
        generation: Generation of the assignment that the member has adopted; -1 without a member.
        sequence: Grows with every commit of a process; a repeated request repeats it.
    """

    group: str
    member_id: str
    instance_id: str
    generation: Mark
    sequence: Number
    streams: Annotated[tuple[CommitStream, ...], Meta(max_length=SUBSCRIPTIONS_MAX)]

    def check(self) -> None:
        """Refuse names that are none, too many offsets, and a partition that is there twice."""
        check_member(self.group, self.member_id, self.instance_id)
        for stream in self.streams:
            check_name(stream.name)
        count = sum(len(stream.offsets) for stream in self.streams)
        if count > OFFSETS_MAX:
            raise FrameError(f"streams: at most {OFFSETS_MAX} offsets go into a request, not {count}")
        if len({(stream.uuid, offset.partition) for stream in self.streams for offset in stream.offsets}) < count:
            raise FrameError("streams: a partition is there twice")


class CommitRefusal(NamedTuple):
    """An offset that was not committed, while others of the request were."""

    key: PartitionKey
    error: GroupError


class CommitResult(NamedTuple):
    """The answer to a `CommitRequest`.

    Attributes:
        error: Why nothing was committed, if so.
        message: Message for people; "" when there is no error.
        refusals: What else was not committed.
    """

    error: GroupError
    message: Message = ""
    refusals: Annotated[tuple[CommitRefusal, ...], _AT_MOST] = ()


class OffsetFetchRequest(NamedTuple):
    """What is committed for these partitions?

    Attributes:
        member_id: Member id of the member that is about to read them; `NO_MEMBER` for whoever is curious.
        generation: Generation of the assignment that brought them; a coordinator that does not know of it is one no
            longer.
    """

    group: str
    member_id: str
    instance_id: str
    generation: Mark
    keys: Annotated[tuple[PartitionKey, ...], _AT_MOST]

    def check(self) -> None:
        """Refuse names that are none."""
        check_member(self.group, self.member_id, self.instance_id)


class FetchedOffset(NamedTuple):
    """What is committed for one partition.

    Attributes:
        offset: The next record to read.
        epoch: Leader epoch of the record before it; -1 for unknown.
    """

    key: PartitionKey
    offset: Number
    epoch: Epoch
    metadata: _Metadata


class OffsetFetchResult(NamedTuple):
    """The answer to an `OffsetFetchRequest`: partitions without a committed offset are left out."""

    error: GroupError
    message: Message = ""
    offsets: Annotated[tuple[FetchedOffset, ...], _AT_MOST] = ()
