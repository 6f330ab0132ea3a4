"""Requests and results of the pull protocol that every client uses.

APIs are numbered for ever. Bodies are arrays of the fields of their classes: see `bodies`.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Final, NamedTuple, Protocol

from msgspec import Meta

from liftpy_envelope.bodies import Mark, Number, PartitionNumber, Signed, Uuid
from liftpy_envelope.errors import ErrorCode, FrameError, SubjectInvalidError
from liftpy_envelope.limits import (
    FETCH_BYTES_MAX,
    FETCH_PARTITIONS_MAX,
    FETCH_WAIT_MS_MAX,
    STRANGER_FRAME_BYTES_MAX,
)
from liftpy_envelope.subject import SUBJECT_PATTERNS_MAX, check_patterns

__all__ = [
    "API_VERSIONS",
    "EARLIEST",
    "LATEST",
    "Api",
    "EpochEndQuery",
    "EpochEndRequest",
    "EpochEndResponse",
    "EpochEndResult",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchResult",
    "HelloRequest",
    "HelloResult",
    "OffsetQuery",
    "OffsetResult",
    "OffsetsRequest",
    "OffsetsResponse",
    "PartitionKey",
    "check_answers",
]

EARLIEST: Final = -2
LATEST: Final = -1
_Text = Annotated[str, Meta(max_length=STRANGER_FRAME_BYTES_MAX)]
_AT_MOST: Final = Meta(max_length=FETCH_PARTITIONS_MAX)


class Api(IntEnum):
    """What a request asks for.

    Bodies of 5 and 6 stand in `group_offsets`, of 7 to 9 in `groups`, of 10 in `group_routing`, of 12 in `follow`.
    """

    HELLO = 0
    METADATA = 1
    FETCH = 2
    LIST_OFFSETS = 3
    EPOCH_END_OFFSET = 4
    OFFSET_COMMIT = 5
    OFFSET_FETCH = 6
    GROUP_JOIN = 7
    GROUP_HEARTBEAT = 8
    GROUP_LEAVE = 9
    FIND_COORDINATOR = 10
    FOLLOW = 12


API_VERSIONS: Final = dict.fromkeys(Api, 1)


class PartitionKey(NamedTuple):
    """One partition of one incarnation of a stream."""

    uuid: Uuid
    partition: PartitionNumber


class HelloRequest(NamedTuple):
    """The first request on a connection: who is there, and the token that admits it."""

    client: _Text
    token: _Text


class HelloResult(NamedTuple):
    """Who answers, and the highest version of every API it speaks."""

    node_id: _Text
    incarnation: Signed
    versions: Annotated[dict[Number, Number], Meta(max_length=1_000)]


class FetchPartition(NamedTuple):
    """A partition that enters a fetch session, or whose position changes in it.

    Attributes:
        offset: The next offset wanted.
        epoch: Newest leader epoch the reader knows, -1 for none; an older one than the leader's is no error.
        durable_end: A follower's durable log end offset; -1 for consumers.
    """

    key: PartitionKey
    offset: Number
    epoch: Signed = -1
    durable_end: Signed = -1


class FetchRequest(NamedTuple):
    """One round of a fetch session; the session is the connection.

    Partitions stay in the session until they are forgotten, and their positions advance past what was sent, so a
    reader that takes everything in order sends no partition twice.

    Attributes:
        bytes_max: About how many bytes of record batches the response may hold; at least one batch always fits.
        wait_ms_max: How long to wait for the first record.
        verify: Check every batch on disk before sending it, because the reader got a damaged one.
        incarnation: Incarnation of the following node; -1 for consumers.
        any_replica: The partitions that enter may be read from a replica that follows and is in sync.
        subjects: NATS patterns: of the partitions that enter, only records are wanted whose subject matches one of
            them; () for all. The node leaves out what it can cheaply, so the client filters as well.
    """

    bytes_max: Annotated[int, Meta(ge=1, le=FETCH_BYTES_MAX)]
    wait_ms_max: Annotated[int, Meta(ge=0, le=FETCH_WAIT_MS_MAX)]
    partitions: Annotated[tuple[FetchPartition, ...], _AT_MOST] = ()
    forget: Annotated[tuple[PartitionKey, ...], _AT_MOST] = ()
    verify: bool = False
    incarnation: Signed = -1
    any_replica: bool = False
    subjects: Annotated[tuple[str, ...], Meta(max_length=SUBJECT_PATTERNS_MAX)] = ()

    def check(self) -> None:
        """Refuse subjects that are no patterns."""
        try:
            check_patterns(self.subjects)
        except SubjectInvalidError as error:
            raise FrameError(f"subjects: {error}") from error


class FetchResult(NamedTuple):
    """What a round of a session brought for one partition.

    Attributes:
        epoch: The leader's epoch.
        high_watermark: Offset after the last committed record.
        log_start: First offset there is.
        body_bytes: Size of the partition's record batches in the response's body, in the order of the results.
        next_offset: Where to go on, when that is beyond what the batches say, because what follows them did not match
            the subjects that are wanted; its records are of no later leader epoch than `epoch`. -1 when nothing was
            skipped there.
        delete_horizon: Tombstones below this offset may be gone: who missed them reads anew. 0 when none are.
    """

    key: PartitionKey
    error: ErrorCode
    message: str
    epoch: Signed
    high_watermark: Signed
    log_start: Signed
    body_bytes: Number
    next_offset: Mark = -1
    delete_horizon: Number = 0


class FetchResponse(NamedTuple):
    """What a round brought; partitions without news are left out."""

    results: Annotated[tuple[FetchResult, ...], _AT_MOST] = ()


class OffsetQuery(NamedTuple):
    """Where is `EARLIEST`, `LATEST`, or the first record not before a time (ns since the epoch)."""

    key: PartitionKey
    timestamp: Annotated[int, Meta(ge=EARLIEST, le=2**63 - 1)]


class OffsetsRequest(NamedTuple):
    """Questions about offsets."""

    queries: Annotated[tuple[OffsetQuery, ...], _AT_MOST]


class OffsetResult(NamedTuple):
    """The answer to an `OffsetQuery`."""

    key: PartitionKey
    error: ErrorCode
    message: str
    offset: Signed
    epoch: Signed


class OffsetsResponse(NamedTuple):
    """The answers to an `OffsetsRequest`, in its order."""

    results: Annotated[tuple[OffsetResult, ...], _AT_MOST]


class EpochEndQuery(NamedTuple):
    """Where did the leader's log leave the largest epoch that is not above `epoch`."""

    key: PartitionKey
    epoch: Number


class EpochEndRequest(NamedTuple):
    """Questions about the ends of epochs."""

    queries: Annotated[tuple[EpochEndQuery, ...], _AT_MOST]


class EpochEndResult(NamedTuple):
    """The answer to an `EpochEndQuery`: that epoch, and the offset after its last record."""

    key: PartitionKey
    error: ErrorCode
    message: str
    epoch: Signed
    end_offset: Signed


class EpochEndResponse(NamedTuple):
    """The answers to an `EpochEndRequest`, in its order."""

    results: Annotated[tuple[EpochEndResult, ...], _AT_MOST]


class _Keyed(Protocol):
    @property
    def key(self) -> PartitionKey: ...


def check_answers(queries: Sequence[_Keyed], results: Sequence[_Keyed]) -> None:
    """See that each question about a partition has one answer, in the order of the questions.

    Raises:
        FrameError: it has not.
    """
    if [query.key for query in queries] != [result.key for result in results]:
        raise FrameError(f"{len(queries)} partitions were asked for, and the answer is not about these")
