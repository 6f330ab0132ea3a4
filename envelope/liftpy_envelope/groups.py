"""Bodies of the pull protocol's APIs for consumer groups: membership.

Those for offsets stand in `group_offsets`, those that find the coordinator in `group_routing`.

A member joins, and heartbeats from then on. Every heartbeat says which assignment the member has adopted: the newest
generation it was told, after it has stopped everything that is not in that assignment any more. The answer brings a
newer assignment when there is one. Nothing else is said in either direction: partitions that a member keeps are
untouched by all that.

Rows are msgpack arrays in the order of the fields; a version adds fields at their end.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

from liftpy_envelope.errors import FrameError, NameInvalidError
from liftpy_envelope.limits import FETCH_WAIT_MS_MAX
from liftpy_envelope.names import check_name

__all__ = [
    "ASSIGNED_PARTITIONS_MAX",
    "CLIENT_BYTES_MAX",
    "GROUP_BYTES_MAX",
    "I64_END",
    "MEMBER_BYTES_MAX",
    "MESSAGE_LENGTH_MAX",
    "NONCE_BYTES",
    "PARTITIONS_END",
    "REBALANCE_TIMEOUTS_MS",
    "SESSION_TIMEOUTS_MS",
    "SUBSCRIPTIONS_MAX",
    "AssignedStream",
    "GroupError",
    "HeartbeatRequest",
    "JoinRequest",
    "LeaveRequest",
    "MembershipResult",
    "check_group",
    "check_stream",
    "is_number",
    "require",
    "require_text",
]

GROUP_BYTES_MAX: Final = 255
MEMBER_BYTES_MAX: Final = 128
CLIENT_BYTES_MAX: Final = 255
NONCE_BYTES: Final = 16
SUBSCRIPTIONS_MAX: Final = 1_000
ASSIGNED_PARTITIONS_MAX: Final = 100_000
SESSION_TIMEOUTS_MS: Final = range(1_000, 1_800_001)
REBALANCE_TIMEOUTS_MS: Final = range(1_000, 3_600_001)
I64_END: Final = 2**63
PARTITIONS_END: Final = 2**31
MESSAGE_LENGTH_MAX: Final = 4_096


class GroupError(IntEnum):
    """Why a request of a group was refused. Numbers below 20 are those of `ErrorCode`, and mean the same.

    They stand in results, so that one request may be refused in part; the error of the response itself is an
    `ErrorCode`, and says that the request could not be read.

    `UNKNOWN_MEMBER`: the member's session ended; drop all partitions and join again. `FENCED_MEMBER`: another process
    joined with the same instance id; stop for good. `STALE_GENERATION`: commit again after the next heartbeat.
    `NOT_ASSIGNED`: the partition is another member's by now; drop what was read of it.
    """

    NONE = 0
    INVALID_REQUEST = 1
    UNKNOWN_STREAM = 4
    STREAM_RECREATED = 5
    NOT_LEADER = 6
    NOT_AVAILABLE = 11
    INTERNAL = 14
    UNKNOWN_MEMBER = 20
    FENCED_MEMBER = 21
    STALE_GENERATION = 22
    NOT_ASSIGNED = 23
    GROUP_NOT_EMPTY = 24
    GROUP_FULL = 25

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later, perhaps at another node."""
        return self in {GroupError.NOT_LEADER, GroupError.NOT_AVAILABLE, GroupError.STALE_GENERATION}

    @classmethod
    def of(cls, number: int) -> GroupError:
        """The error with this number; one that a newer peer invented counts as `INTERNAL`."""
        try:
            return cls(number)
        except ValueError:
            return cls.INTERNAL


def require(condition: object, what: str) -> None:
    """Refuse a malformed body.

    Raises:
        FrameError: the condition does not hold.
    """
    if not condition:
        raise FrameError(f"malformed {what}")


def require_text(value: object, bytes_max: int, what: str) -> None:
    """Refuse what is not printable text of at most `bytes_max` bytes of UTF-8; empty text is allowed.

    Raises:
        FrameError: it is something else.
    """
    require(type(value) is str and value.isprintable() and len(value.encode()) <= bytes_max, what)


def check_group(name: object, what: str = "group") -> None:
    """Refuse what is not a name of a group: 1 to 255 bytes of UTF-8 without control characters.

    Raises:
        FrameError: it is something else.
    """
    require_text(name, GROUP_BYTES_MAX, f"{what}: a group's name is 1 to {GROUP_BYTES_MAX} bytes of printable text")
    require(name, f"{what}: the group's name is empty")


def is_number(value: object, end: int = I64_END, start: int = 0) -> bool:
    """Whether `value` is a whole number from `start` to below `end`."""
    return type(value) is int and start <= value < end


def check_stream(name: object, what: str) -> None:
    """Refuse what is not a stream's name.

    Raises:
        FrameError: it is something else.
    """
    try:
        check_name(name)
    except NameInvalidError as error:
        raise FrameError(f"malformed {what}: {error}") from error


class JoinRequest(NamedTuple):
    """A process becomes a member, or changes what it subscribes to. Sending it twice is the same as once.

    Attributes:
        group: its name.
        nonce: 16 random bytes that the process chose when it started; they make it one member, however often it asks.
        revision: grows with every change of the subscriptions, and whenever the process gave up what it had and joins
            anew: commits it sent before do not count any more. A join with an older revision changes nothing.
        instance_id: of a static member, which takes the place of its predecessor of that name; "" for others.
        client_id: for people.
        rack: partitions with a replica there are preferred; "" for none.
        session_timeout_ms: without a heartbeat for so long the member is out.
        rebalance_timeout_ms: so long it may take to let go of partitions that are taken from it.
        subscriptions: names of streams; they need not exist yet.
    """

    group: str
    nonce: bytes
    revision: int
    instance_id: str
    client_id: str
    rack: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscriptions: tuple[str, ...]

    def to_body(self) -> list[Any]:
        """The request's body as it crosses the wire."""
        return [*self[:8], list(self.subscriptions)]

    @classmethod
    def from_body(cls, body: Any) -> JoinRequest:
        """Check and take apart a request's body.

        Raises:
            FrameError: it is malformed.
        """
        require(type(body) is list and len(body) == 9, "join")
        group, nonce, revision, instance_id, client_id, rack, session_ms, rebalance_ms, subscriptions = body
        check_group(group, "join")
        require(type(nonce) is bytes and len(nonce) == NONCE_BYTES, "join: nonce")
        require(is_number(revision), "join: revision")
        for text in (instance_id, client_id, rack):
            require_text(text, CLIENT_BYTES_MAX, "join: instance, client or rack")
        require(type(session_ms) is int and session_ms in SESSION_TIMEOUTS_MS, "join: session_timeout_ms")
        require(type(rebalance_ms) is int and rebalance_ms in REBALANCE_TIMEOUTS_MS, "join: rebalance_timeout_ms")
        require(type(subscriptions) is list and len(subscriptions) <= SUBSCRIPTIONS_MAX, "join: subscriptions")
        for name in subscriptions:
            check_stream(name, "join")
        require(len(set(subscriptions)) == len(subscriptions), "join: a stream is subscribed to twice")
        wishes = (revision, instance_id, client_id, rack, session_ms, rebalance_ms, tuple(subscriptions))
        return cls(group, nonce, *wishes)


class HeartbeatRequest(NamedTuple):
    """A member lives.

    Attributes:
        generation: of the assignment it has adopted: it has stopped, and committed, what is not in it.
        wait_ms_max: how long the answer may wait for a newer assignment.
    """

    group: str
    member_id: str
    instance_id: str
    generation: int
    wait_ms_max: int = 0

    def to_body(self) -> list[Any]:
        """The request's body as it crosses the wire."""
        return list(self)

    @classmethod
    def from_body(cls, body: Any) -> HeartbeatRequest:
        """Check and take apart a request's body.

        Raises:
            FrameError: it is malformed.
        """
        require(type(body) is list and len(body) == 5, "heartbeat")
        check_group(body[0], "heartbeat")
        require_text(body[1], MEMBER_BYTES_MAX, "heartbeat: member")
        require_text(body[2], CLIENT_BYTES_MAX, "heartbeat: instance")
        require(is_number(body[3]) and is_number(body[4], FETCH_WAIT_MS_MAX + 1), "heartbeat")
        return cls(*body)


class LeaveRequest(NamedTuple):
    """A member goes for good. A static member that will be back in time just falls silent instead."""

    group: str
    member_id: str
    instance_id: str

    def to_body(self) -> list[Any]:
        """The request's body as it crosses the wire."""
        return list(self)

    @classmethod
    def from_body(cls, body: Any) -> LeaveRequest:
        """Check and take apart a request's body.

        Raises:
            FrameError: it is malformed.
        """
        require(type(body) is list and len(body) == 3, "leave")
        check_group(body[0], "leave")
        require_text(body[1], MEMBER_BYTES_MAX, "leave: member")
        require_text(body[2], CLIENT_BYTES_MAX, "leave: instance")
        return cls(*body)


class AssignedStream(NamedTuple):
    """Partitions of one incarnation of a stream that a member has."""

    uuid: bytes
    name: str
    partitions: tuple[int, ...]


class MembershipResult(NamedTuple):
    """The answer to a join, a heartbeat and a leave.

    Attributes:
        message: for people; "" when there is no error.
        generation: of the member's newest assignment.
        assignment: all of it; None when it is the one that the member has adopted.
    """

    error: GroupError
    message: str = ""
    member_id: str = ""
    generation: int = 0
    assignment: tuple[AssignedStream, ...] | None = None

    def to_result(self) -> list[Any]:
        """The response's result as it crosses the wire."""
        rows = None
        if self.assignment is not None:
            rows = [[stream.uuid, stream.name, list(stream.partitions)] for stream in self.assignment]
        return [int(self.error), *self[1:4], rows]

    @classmethod
    def from_result(cls, result: Any) -> MembershipResult:
        """Check and take apart a response's result.

        Raises:
            FrameError: it is malformed.
        """
        what = "membership result"
        require(type(result) is list and len(result) == 5, what)
        error, message, member_id, generation, rows = result
        require(is_number(error) and is_number(generation), what)
        require(type(message) is str and len(message) <= MESSAGE_LENGTH_MAX, what)
        require_text(member_id, MEMBER_BYTES_MAX, what)
        assignment = None if rows is None else tuple(_assigned(rows, f"{what}: assignment"))
        return cls(GroupError.of(error), message, member_id, generation, assignment)


def _assigned(rows: Any, what: str) -> list[AssignedStream]:
    require(type(rows) is list and len(rows) <= SUBSCRIPTIONS_MAX, what)
    streams, count = [], 0
    for row in rows:
        require(type(row) is list and len(row) == 3 and type(row[2]) is list, what)
        require(type(row[0]) is bytes and len(row[0]) == 16, what)
        check_stream(row[1], what)
        count += len(row[2])
        require(count <= ASSIGNED_PARTITIONS_MAX, what)
        require(all(is_number(number, PARTITIONS_END) for number in row[2]), what)
        streams.append(AssignedStream(row[0], row[1], tuple(row[2])))
    return streams
