"""Requests and results of the pull protocol, checked on arrival.

APIs are numbered for ever. Every body is a msgpack array in the order of the fields of its class, so that old and
new peers agree on what stands where; a version adds fields at the end.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_envelope.errors import ErrorCode, FrameError, SubjectInvalidError
from liftpy_envelope.limits import FETCH_BYTES_MAX, FETCH_PARTITIONS_MAX, FETCH_WAIT_MS_MAX
from liftpy_envelope.subject import check_patterns

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "API_VERSIONS",
    "EARLIEST",
    "LATEST",
    "Api",
    "EpochEndQuery",
    "EpochEndResult",
    "FetchPartition",
    "FetchRequest",
    "FetchResult",
    "HelloRequest",
    "HelloResult",
    "OffsetQuery",
    "OffsetResult",
    "PartitionKey",
    "check_answers",
]

EARLIEST: Final = -2
LATEST: Final = -1
_I64: Final = range(-(2**63), 2**63)


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


API_VERSIONS: Final = dict.fromkeys(Api, 1) | {Api.FETCH: 3}


class PartitionKey(NamedTuple):
    """One partition of one incarnation of a stream."""

    uuid: bytes
    partition: int


def _check(condition: object, what: str) -> None:
    if not condition:
        raise FrameError(f"malformed {what}")


def _is(value: object, *kinds: type) -> bool:
    return type(value) in kinds and (type(value) is not int or value in _I64)


def _key(item: Any, what: str) -> PartitionKey:
    _check(_is(item[0], bytes) and len(item[0]) == 16 and _is(item[1], int) and 0 <= item[1] < 2**31, what)
    return PartitionKey(item[0], item[1])


def _rows(body: Any, widths: tuple[int, ...], what: str) -> list[Any]:
    _check(isinstance(body, list) and len(body) <= FETCH_PARTITIONS_MAX, what)
    _check(all(isinstance(row, list) and len(row) in widths for row in body), what)
    return list(body)


class HelloRequest(NamedTuple):
    """The first request on a connection: who is there, and the token that admits it."""

    client: str
    token: str

    @classmethod
    def from_body(cls, body: Any) -> HelloRequest:
        """Check and take apart a request's body."""
        _check(isinstance(body, list) and len(body) == 2 and all(_is(item, str) for item in body), "hello")
        return cls(*body)


class HelloResult(NamedTuple):
    """Who answers, and the highest version of every API it speaks."""

    node_id: str
    incarnation: int
    versions: dict[int, int]

    @classmethod
    def from_result(cls, result: Any) -> HelloResult:
        """Check and take apart a response's result."""
        _check(isinstance(result, list) and len(result) == 3, "hello result")
        node_id, incarnation, versions = result
        _check(_is(node_id, str) and _is(incarnation, int), "hello result")
        pairs = _rows(versions, (2,), "hello result")
        _check(all(_is(number, int) for pair in pairs for number in pair), "hello result")
        return cls(node_id, incarnation, dict(pairs))

    def to_result(self) -> list[Any]:
        """The result as it crosses the wire."""
        return [self.node_id, self.incarnation, [[int(api), int(top)] for api, top in self.versions.items()]]


class FetchPartition(NamedTuple):
    """A partition that enters a fetch session, or whose position changes in it.

    Attributes:
        offset: the next offset wanted.
        epoch: newest leader epoch the reader knows, -1 for none; an older one than the leader's is no error.
        durable_end: a follower's durable log end offset; -1 for consumers.
    """

    key: PartitionKey
    offset: int
    epoch: int = -1
    durable_end: int = -1


class FetchRequest(NamedTuple):
    """One round of a fetch session; the session is the connection.

    Partitions stay in the session until they are forgotten, and their positions advance past what was sent, so a
    reader that takes everything in order sends no partition twice.

    Attributes:
        bytes_max: about how many bytes of record batches the response may hold; at least one batch always fits.
        wait_ms_max: how long to wait for the first record.
        verify: check every batch on disk before sending it, because the reader got a damaged one.
        incarnation: of the following node; -1 for consumers.
        any_replica: the partitions that enter may be read from a replica that follows and is in sync (version 2).
        subjects: of the partitions that enter, only records are wanted whose subject one of these NATS patterns
            matches; () for all (version 3). The node leaves out what it can cheaply: who reads filters as well.
    """

    bytes_max: int
    wait_ms_max: int
    partitions: tuple[FetchPartition, ...] = ()
    forget: tuple[PartitionKey, ...] = ()
    verify: bool = False
    incarnation: int = -1
    any_replica: bool = False
    subjects: tuple[str, ...] = ()

    def to_body(self, version: int = 3) -> list[Any]:
        """The request's body as it crosses the wire to a peer that speaks this version."""
        body = [
            self.bytes_max,
            self.wait_ms_max,
            [[*entry.key, *entry[1:]] for entry in self.partitions],
            [list(key) for key in self.forget],
            self.verify,
            self.incarnation,
        ]
        newer = [self.any_replica, list(self.subjects)]
        return [*body, *newer[: version - 1]]

    @classmethod
    def from_body(cls, body: Any) -> FetchRequest:
        """Check and take apart a request's body, of any version."""
        _check(isinstance(body, list) and len(body) in {6, 7, 8}, "fetch")
        bytes_max, wait_ms_max, partitions, forget, verify, incarnation, *more = body
        any_replica = more[0] if more else False
        subjects = more[1] if len(more) > 1 else []
        _check(
            _is(bytes_max, int) and 0 < bytes_max <= FETCH_BYTES_MAX,
            f"fetch: bytes_max is 1 to {FETCH_BYTES_MAX}",
        )
        _check(_is(wait_ms_max, int) and 0 <= wait_ms_max <= FETCH_WAIT_MS_MAX, "fetch: wait_ms_max")
        _check(_is(verify, bool) and _is(incarnation, int) and _is(any_replica, bool), "fetch")
        entries = []
        for row in _rows(partitions, (5,), "fetch: partitions"):
            key = _key(row, "fetch: partitions")
            _check(all(_is(number, int) for number in row[2:]) and row[2] >= 0, "fetch: partitions")
            entries.append(FetchPartition(key, *row[2:]))
        forgotten = tuple(_key(row, "fetch: forget") for row in _rows(forget, (2,), "fetch: forget"))
        patterns = _patterns(subjects)
        return cls(bytes_max, wait_ms_max, tuple(entries), forgotten, verify, incarnation, any_replica, patterns)


def _patterns(subjects: Any) -> tuple[str, ...]:
    _check(isinstance(subjects, list), "fetch: subjects")
    try:
        return check_patterns(subjects)
    except SubjectInvalidError as error:
        raise FrameError(f"malformed fetch: subjects: {error}") from error


class FetchResult(NamedTuple):
    """What a round of a session brought for one partition; partitions without news are left out.

    Attributes:
        epoch: the leader's epoch.
        high_watermark: offset after the last committed record.
        log_start: first offset there is.
        body_bytes: size of the partition's record batches in the response's body, in the order of the results.
        next_offset: where to go on, when that is beyond what the batches say, because what follows them did not match
            the subjects that are wanted; its records are of no later leader epoch than `epoch`. -1 when nothing was
            skipped there (version 3).
        delete_horizon: tombstones below this offset may be gone: who missed them reads anew. 0 when none are (version
            3).
    """

    key: PartitionKey
    error: ErrorCode
    message: str
    epoch: int
    high_watermark: int
    log_start: int
    body_bytes: int
    next_offset: int = -1
    delete_horizon: int = 0

    def to_row(self, version: int = 2) -> list[Any]:
        """The result as it crosses the wire to a peer that speaks this version."""
        return [*self.key, int(self.error), *(self[2:] if version >= 3 else self[2:7])]

    @classmethod
    def from_rows(cls, rows: Any) -> list[FetchResult]:
        """Check and take apart a response's result, of any version."""
        results = []
        for row in _rows(rows, (8, 10), "fetch result"):
            numbers = (row[2], *row[4:])
            _check(_is(row[3], str) and all(_is(number, int) for number in numbers), "fetch result")
            _check(row[7] >= 0, "fetch result: body_bytes")
            _check(len(row) == 8 or (row[8] >= -1 and row[9] >= 0), "fetch result: next_offset or delete_horizon")
            results.append(cls(_key(row, "fetch result"), error_code(row[2]), row[3], *row[4:]))
        return results


def check_answers(body: Sequence[Sequence[Any]], rows: Any) -> None:
    """See that each question about a partition has one answer, in the order of the questions.

    Raises:
        FrameError: it has not.
    """
    asked = [[*question[:2]] for question in body]
    _check(
        isinstance(rows, list) and asked == [row[:2] if isinstance(row, list) else None for row in rows],
        f"answers: {len(asked)} partitions were asked for, and the answer is not about these",
    )


class OffsetQuery(NamedTuple):
    """Where is `EARLIEST`, `LATEST`, or the first record not before a time (ns since the epoch)."""

    key: PartitionKey
    timestamp: int

    @classmethod
    def from_body(cls, body: Any) -> list[OffsetQuery]:
        """Check and take apart a request's body."""
        queries = []
        for row in _rows(body, (3,), "list_offsets"):
            _check(_is(row[2], int) and row[2] >= EARLIEST, "list_offsets")
            queries.append(cls(_key(row, "list_offsets"), row[2]))
        return queries


class OffsetResult(NamedTuple):
    """The answer to an `OffsetQuery`."""

    key: PartitionKey
    error: ErrorCode
    message: str
    offset: int
    epoch: int

    def to_row(self) -> list[Any]:
        """The result as it crosses the wire."""
        return [*self.key, int(self.error), *self[2:]]

    @classmethod
    def from_rows(cls, rows: Any) -> list[OffsetResult]:
        """Check and take apart a response's result."""
        results = []
        for row in _rows(rows, (6,), "list_offsets result"):
            _check(
                _is(row[3], str) and all(_is(number, int) for number in (row[2], *row[4:])),
                "list_offsets result",
            )
            results.append(cls(_key(row, "list_offsets result"), error_code(row[2]), row[3], *row[4:]))
        return results


class EpochEndQuery(NamedTuple):
    """Where did the leader's log leave the largest epoch that is not above `epoch`."""

    key: PartitionKey
    epoch: int

    @classmethod
    def from_body(cls, body: Any) -> list[EpochEndQuery]:
        """Check and take apart a request's body."""
        queries = []
        for row in _rows(body, (3,), "epoch_end_offset"):
            _check(_is(row[2], int) and row[2] >= 0, "epoch_end_offset")
            queries.append(cls(_key(row, "epoch_end_offset"), row[2]))
        return queries


class EpochEndResult(NamedTuple):
    """The answer to an `EpochEndQuery`: that epoch, and the offset after its last record."""

    key: PartitionKey
    error: ErrorCode
    message: str
    epoch: int
    end_offset: int

    def to_row(self) -> list[Any]:
        """The result as it crosses the wire."""
        return [*self.key, int(self.error), *self[2:]]


def error_code(number: int) -> ErrorCode:
    """The error with this number; one that a newer peer invented counts as `INTERNAL`."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.INTERNAL
