"""Bodies of the pull protocol's `follow`, by which replicas fetch from the leader of their partitions.

A session over the connection, like `fetch`, with two differences: a follower says after every answer where it goes on,
for what it has on disk is what the leader counts; and an answer takes the partition out of the line until the follower
fetches it again. Rows are msgpack arrays in the order of the fields; a version adds fields at their end.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import chain
from typing import Any, Final, NamedTuple

from liftpy_envelope.errors import FrameError, NameInvalidError
from liftpy_envelope.limits import FETCH_BYTES_MAX, FETCH_PARTITIONS_MAX, FETCH_WAIT_MS_MAX, LEAPS_MAX
from liftpy_envelope.names import check_name
from liftpy_envelope.pull import PartitionKey

__all__ = [
    "FollowEnd",
    "FollowFetch",
    "FollowQuestion",
    "FollowRefusal",
    "FollowRequest",
    "FollowResponse",
    "FollowResult",
    "FollowWhole",
]

_I64_END: Final = 2**63
_PARTITIONS_END: Final = 2**31


class FollowRefusal(IntEnum):
    """Why a leader does not answer with what was asked for."""

    NONE = 0
    NOT_LEADER = 1  # or not in this epoch, or not known here yet
    STALE_INCARNATION = 2  # the follower has restarted or renewed its log, or is not known here yet
    BELOW_START = 3  # the leader no longer has what follows the follower's log
    DIVERGED = 4  # the follower's log is no prefix of the leader's

    @classmethod
    def of(cls, number: int) -> FollowRefusal:
        """The refusal with this number; one that a newer peer invented is `NOT_LEADER`: ask again later."""
        return _REFUSALS.get(number, cls.NOT_LEADER)


_REFUSALS: Final = {int(refusal): refusal for refusal in FollowRefusal}


def _check(condition: object, what: str) -> None:
    if not condition:
        raise FrameError(f"malformed {what}")


def _rows(rows: Any, width: int, what: str, width_max: int = 0) -> list[Any]:
    """Rows that begin with a partition's key, followed by whole numbers from -1 on."""
    _check(type(rows) is list and len(rows) <= FETCH_PARTITIONS_MAX, what)
    width_max = width_max or width
    for row in rows:  # thousands of them, many times a second: no calls
        if (
            type(row) is not list
            or not width <= len(row) <= width_max
            or type(row[0]) is not bytes
            or len(row[0]) != 16
        ):
            raise FrameError(f"malformed {what}")
        for number in row[1:]:
            if type(number) is not int or not -1 <= number < _I64_END:
                raise FrameError(f"malformed {what}")
        if not 0 <= row[1] < _PARTITIONS_END:
            raise FrameError(f"malformed {what}")
    return list(rows)


class FollowFetch(NamedTuple):
    """A follower fetches one partition from its log end. What it says of itself is what the leader counts.

    Attributes:
        key: the partition.
        incarnation: of the follower.
        leader_epoch: in which it follows.
        offset: its log end offset.
        last_epoch: of its last record; -1 when it has none.
        durable_end: the offset after its last record that is on disk.
        high_watermark: that it knows of; a leader that knows more answers at once.
        seen: correlation id of the newest response it had seen when it made up its mind; 0 for none. Records that
            were sent after that are not sent again for the same offset.
        verify: 1: it got a damaged batch here; check what is on disk before sending it. Else 0.
        version: of the partition in the metadata, as the follower knows it; it tells a new copy's fetches from those
            of the one before.
    """

    key: PartitionKey
    incarnation: int
    leader_epoch: int
    offset: int
    last_epoch: int
    durable_end: int
    high_watermark: int
    seen: int = 0
    verify: int = 0
    version: int = 0

    @classmethod
    def from_rows(cls, rows: Any) -> tuple[FollowFetch, ...]:
        """Check and take apart rows of a request."""
        fetches = []
        for row in _rows(rows, 11, "follow: fetches"):
            (
                uuid,
                partition,
                incarnation,
                leader_epoch,
                offset,
                _,
                durable_end,
                high_watermark,
                seen,
                verify,
                version,
            ) = row
            if min(incarnation, leader_epoch, seen, version) < 0 or not 0 <= verify <= 1:
                raise FrameError("malformed follow: fetches")
            if not (0 <= durable_end <= offset and 0 <= high_watermark <= offset):
                raise FrameError("malformed follow: fetches: durable end, high watermark")
            fetches.append(cls(PartitionKey(uuid, partition), *row[2:]))
        return tuple(fetches)

    def not_led(self) -> FollowResult:
        """The answer of a node that does not lead the partition, or not in this epoch."""
        return FollowResult(self.key, FollowRefusal.NOT_LEADER, self.incarnation, -1, self.offset, 0, 0)


class FollowQuestion(NamedTuple):
    """Where does the largest epoch end that is not above `last_epoch`?

    Attributes:
        incarnation: of the follower.
        leader_epoch: in which it follows.
        question: a number that the answer repeats.
        last_epoch: of the follower's last record.
    """

    key: PartitionKey
    incarnation: int
    leader_epoch: int
    question: int
    last_epoch: int

    @classmethod
    def from_rows(cls, rows: Any) -> tuple[FollowQuestion, ...]:
        """Check and take apart rows of a request."""
        questions = []
        for row in _rows(rows, 6, "follow: questions"):
            question = cls(PartitionKey(row[0], row[1]), *row[2:])
            _check(min(question[1:4]) >= 0, "follow: questions")
            questions.append(question)
        return tuple(questions)

    def not_led(self) -> FollowEnd:
        """The answer of a node that does not lead the partition, or not in this epoch."""
        return FollowEnd(self.key, FollowRefusal.NOT_LEADER, self.incarnation, -1, self.question, -1, 0)


class FollowRequest(NamedTuple):
    """One round of a session.

    Attributes:
        node_id: the follower.
        bytes_max: about how many bytes of record batches the response may hold; at least one batch always fits.
        wait_ms_max: how long to wait for news.
        fetches: partitions that enter the session, or go on in it.
        questions: they are answered at once; a partition that is asked about is fetched no longer.
        forget: partitions that leave the session; before others enter it.
        hears: 1: the follower hears NATS, and could lead; else 0.
    """

    node_id: str
    bytes_max: int
    wait_ms_max: int
    fetches: tuple[FollowFetch, ...] = ()
    questions: tuple[FollowQuestion, ...] = ()
    forget: tuple[PartitionKey, ...] = ()
    hears: int = 0

    def to_body(self) -> list[Any]:
        """The request's body as it crosses the wire."""
        fetches = [[*fetch.key, *fetch[1:]] for fetch in self.fetches]
        questions = [[*question.key, *question[1:]] for question in self.questions]
        return [*self[:3], fetches, questions, [list(key) for key in self.forget], self.hears]

    @classmethod
    def from_body(cls, body: Any) -> FollowRequest:
        """Check and take apart a request's body.

        Raises:
            FrameError: it is malformed.
        """
        _check(type(body) is list and len(body) == 7, "follow")
        node_id, bytes_max, wait_ms_max, fetches, questions, forget, hears = body
        _check(type(hears) is int and 0 <= hears <= 1, "follow: hears")
        try:
            check_name(node_id, "node")
        except NameInvalidError as error:
            raise FrameError(f"malformed follow: {error}") from error
        _check(
            type(bytes_max) is int and 0 < bytes_max <= FETCH_BYTES_MAX, f"follow: bytes_max is 1 to {FETCH_BYTES_MAX}"
        )
        _check(type(wait_ms_max) is int and 0 <= wait_ms_max <= FETCH_WAIT_MS_MAX, "follow: wait_ms_max")
        return cls(
            *(node_id, bytes_max, wait_ms_max),
            FollowFetch.from_rows(fetches),
            FollowQuestion.from_rows(questions),
            tuple(PartitionKey(*row) for row in _rows(forget, 2, "follow: forget")),
            hears,
        )


class FollowResult(NamedTuple):
    """The answer to a `FollowFetch`.

    Attributes:
        refusal: why there are no records, if so.
        incarnation: of the follower that asked.
        leader_epoch: of the leader; -1 when it leads not.
        offset: that was asked for.
        high_watermark: offset after the last committed record.
        log_start: first offset there is.
        body_bytes: size of the partition's record batches in the response's body, in the order of the results. The
            first batch holds `offset`.
        delete_horizon: tombstones below this offset may be missing in the leader's log. It is on the wire only where it
            is not 0, and so only for streams that nodes which do not know of it do not know either.
        leaps: of the log's time, that the leader knows of: the log's time after it, and how much was leapt over, in ns.
            They are on the wire, one number after the other, only where there are any.
    """

    key: PartitionKey
    refusal: FollowRefusal
    incarnation: int
    leader_epoch: int
    offset: int
    high_watermark: int
    log_start: int
    body_bytes: int = 0
    delete_horizon: int = 0
    leaps: tuple[tuple[int, int], ...] = ()


class FollowEnd(NamedTuple):
    """The answer to a `FollowQuestion`.

    Attributes:
        refusal: why there is no answer, if so.
        incarnation: of the follower that asked.
        leader_epoch: of the leader; -1 when it leads not.
        question: the number of the question.
        epoch: the largest epoch of the leader's log that is not above the asked one; -1 when there is none.
        end: the offset after its last record; for -1 the leader's first known offset.
    """

    key: PartitionKey
    refusal: FollowRefusal
    incarnation: int
    leader_epoch: int
    question: int
    epoch: int
    end: int


class FollowWhole(NamedTuple):
    """The leader's logs hold everything that was published up to some time ago.

    Attributes:
        ago_ns: for how long that has been so when the response was made.
        ends: of each log the end below which it is, -1 where that is not certain any more. A log that is left out has
            the end that was told last on the connection; one of which none was told is not meant.
    """

    ago_ns: int
    ends: tuple[tuple[PartitionKey, int], ...] = ()


class FollowResponse(NamedTuple):
    """What a round brought; partitions without news are left out."""

    results: tuple[FollowResult, ...] = ()
    ends: tuple[FollowEnd, ...] = ()
    whole: FollowWhole | None = None

    def to_result(self) -> list[Any]:
        """The response's result as it crosses the wire."""
        results = [
            [
                *result.key,
                int(result.refusal),
                *(result[2:-1] if result.delete_horizon or result.leaps else result[2:-2]),
            ]
            for result in self.results
        ]
        for row, result in zip(results, self.results, strict=True):
            if result.leaps:
                row.extend(chain.from_iterable(result.leaps))
        told: list[Any] = [results, [[*end.key, int(end.refusal), *end[2:]] for end in self.ends]]
        if self.whole is not None:
            told.append([self.whole.ago_ns, [[*key, end] for key, end in self.whole.ends]])
        return told

    @classmethod
    def from_result(cls, result: Any) -> FollowResponse:
        """Check and take apart a response's result.

        Raises:
            FrameError: it is malformed.
        """
        _check(type(result) is list and 2 <= len(result) <= 3, "follow result")
        results, ends = [], []
        for row in _rows(result[0], 9, "follow result", 10 + 2 * LEAPS_MAX):
            uuid, partition, refusal, incarnation, _, *marks = row
            if incarnation < 0 or min(marks) < 0 or (len(row) > 10 and len(row) % 2):
                raise FrameError("malformed follow result")
            told = FollowResult(PartitionKey(uuid, partition), FollowRefusal.of(refusal), *row[3:10])
            if len(row) > 10:
                told = told._replace(leaps=tuple(zip(row[10::2], row[11::2], strict=True)))
            results.append(told)
        for row in _rows(result[1], 8, "follow result: ends"):
            end = FollowEnd(PartitionKey(row[0], row[1]), FollowRefusal.of(row[2]), *row[3:])
            _check(min(end.incarnation, end.question, end.end) >= 0, "follow result: ends")
            ends.append(end)
        return cls(tuple(results), tuple(ends), _read_whole(result[2]) if len(result) == 3 else None)


def _read_whole(given: Any) -> FollowWhole:
    _check(type(given) is list and len(given) == 2, "follow result: whole")
    ago_ns, rows = given
    _check(type(ago_ns) is int and 0 <= ago_ns < _I64_END, "follow result: whole")
    ends = tuple((PartitionKey(uuid, number), end) for uuid, number, end in _rows(rows, 3, "follow result: whole"))
    return FollowWhole(ago_ns, ends)
