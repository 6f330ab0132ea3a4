"""Bodies of the pull protocol's APIs for consumer groups: membership.

Those for offsets stand in `group_offsets`, those that find the coordinator in `group_routing`.

A member joins, and heartbeats from then on. Every heartbeat says which assignment the member has adopted: the newest
generation it was told, after it has stopped everything that is not in that assignment any more. The answer brings a
newer assignment when there is one. Nothing else is said in either direction: partitions that a member keeps are
untouched by all that.
"""

from enum import IntEnum
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from liftpy_envelope.bodies import Number, PartitionNumber, Uuid
from liftpy_envelope.errors import FrameError
from liftpy_envelope.limits import FETCH_WAIT_MS_MAX
from liftpy_envelope.names import check_name

__all__ = [
    "ASSIGNED_PARTITIONS_MAX",
    "CLIENT_BYTES_MAX",
    "GROUP_BYTES_MAX",
    "MEMBER_BYTES_MAX",
    "MESSAGE_LENGTH_MAX",
    "NONCE_BYTES",
    "REBALANCE_TIMEOUTS_MS",
    "SESSION_TIMEOUTS_MS",
    "SUBSCRIPTIONS_MAX",
    "AssignedStream",
    "GroupError",
    "HeartbeatRequest",
    "JoinRequest",
    "LeaveRequest",
    "MembershipResult",
    "Message",
    "check_group",
    "check_member",
    "check_text",
]

GROUP_BYTES_MAX: Final = 255
MEMBER_BYTES_MAX: Final = 128
CLIENT_BYTES_MAX: Final = 255
NONCE_BYTES: Final = 16
SUBSCRIPTIONS_MAX: Final = 1_000
ASSIGNED_PARTITIONS_MAX: Final = 100_000
SESSION_TIMEOUTS_MS: Final = range(1_000, 1_800_001)
REBALANCE_TIMEOUTS_MS: Final = range(1_000, 3_600_001)
MESSAGE_LENGTH_MAX: Final = 4_096

Message = Annotated[str, Meta(max_length=MESSAGE_LENGTH_MAX)]
_Wait = Annotated[int, Meta(ge=0, le=FETCH_WAIT_MS_MAX)]
_SessionTimeout = Annotated[int, Meta(ge=SESSION_TIMEOUTS_MS.start, lt=SESSION_TIMEOUTS_MS.stop)]
_RebalanceTimeout = Annotated[int, Meta(ge=REBALANCE_TIMEOUTS_MS.start, lt=REBALANCE_TIMEOUTS_MS.stop)]


class GroupError(IntEnum):
    """Why a request of a group was refused. Numbers below 20 are those of `ErrorCode`, and mean the same.

    They stand in results, so that one request may be refused in part; the error of the response itself is an
    `ErrorCode`, and says that the request could not be read.

    `UNKNOWN_MEMBER`: the member's session ended; drop all partitions and join again. `FENCED_MEMBER`: another process
    joined with the same instance id; stop for good. `STALE_GENERATION`: commit again after the next heartbeat.
    `NOT_ASSIGNED`: the partition is another member's by now; drop what was read of it. A number that a newer peer
    invented counts as `INTERNAL`.
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
    def _missing_(cls, value: object) -> "GroupError | None":
        return cls.INTERNAL if isinstance(value, int) else None


def check_text(value: str, bytes_max: int, what: str) -> None:
    """Refuse what is not printable text of at most `bytes_max` bytes of UTF-8; empty text is allowed.

    Raises:
        FrameError: it is something else.
    """
    if not value.isprintable() or len(value.encode()) > bytes_max:
        raise FrameError(f"{what} is at most {bytes_max} bytes of printable text, not {value!r:.80}")


def check_group(name: object) -> None:
    """Refuse what is not a name of a group: 1 to 255 bytes of UTF-8 without control characters.

    Raises:
        FrameError: it is something else.
    """
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name.encode()) <= GROUP_BYTES_MAX:
        raise FrameError(f"a group's name is 1 to {GROUP_BYTES_MAX} bytes of printable text, not {name!r:.80}")


def check_member(group: str, member_id: str, instance_id: str) -> None:
    """Refuse what does not name a member of a group.

    Raises:
        FrameError: one of these is malformed.
    """
    check_group(group)
    check_text(member_id, MEMBER_BYTES_MAX, "member_id")
    check_text(instance_id, CLIENT_BYTES_MAX, "instance_id")


class JoinRequest(NamedTuple):
    """A process becomes a member, or changes what it subscribes to. Sending it twice is the same as once.

    Attributes:
        group: Name of the group.
        nonce: 16 random bytes that the process chose when it started; they make it one member, however often it asks.
        revision: Grows with every change of the subscriptions, and whenever the process gave up what it had and joins
            anew: commits it sent before do not count any more. A join with an older revision changes nothing.
        instance_id: Instance id of a static member, which takes the place of its predecessor of that name; "" for
            others.
        client_id: Client id for people.
        rack: Partitions with a replica there are preferred; "" for none.
        session_timeout_ms: Time without a heartbeat after which the member is out, ms.
        rebalance_timeout_ms: Time that the member has to let go of partitions that are taken from it, ms.
        subscriptions: Names of streams; they need not exist yet.
    """

    group: str
    nonce: Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
    revision: Number
    instance_id: str
    client_id: str
    rack: str
    session_timeout_ms: _SessionTimeout
    rebalance_timeout_ms: _RebalanceTimeout
    subscriptions: Annotated[tuple[str, ...], Meta(max_length=SUBSCRIPTIONS_MAX)]

    def check(self) -> None:
        """Refuse names that are none, and a stream that is subscribed to twice."""
        check_group(self.group)
        for name in ("instance_id", "client_id", "rack"):
            check_text(getattr(self, name), CLIENT_BYTES_MAX, name)
        for stream in self.subscriptions:
            check_name(stream)
        if len(set(self.subscriptions)) < len(self.subscriptions):
            raise FrameError("subscriptions: a stream is there twice")


class HeartbeatRequest(NamedTuple):
    """A member lives.

    Attributes:
        generation: Generation of the assignment it has adopted: it has stopped, and committed, what is not in it.
        wait_ms_max: How long the answer may wait for a newer assignment.
    """

    group: str
    member_id: str
    instance_id: str
    generation: Number
    wait_ms_max: _Wait = 0

    def check(self) -> None:
        """Refuse names that are none."""
        check_member(self.group, self.member_id, self.instance_id)


class LeaveRequest(NamedTuple):
    """A member goes for good. A static member that will be back in time just falls silent instead."""

    group: str
    member_id: str
    instance_id: str

    def check(self) -> None:
        """Refuse names that are none."""
        check_member(self.group, self.member_id, self.instance_id)


class AssignedStream(NamedTuple):
    """Partitions of one incarnation of a stream that a member has."""

    uuid: Uuid
    name: str
    partitions: Annotated[tuple[PartitionNumber, ...], Meta(max_length=ASSIGNED_PARTITIONS_MAX)]


class MembershipResult(NamedTuple):
    """The answer to a join, a heartbeat and a leave.

    Attributes:
        message: Message for people; "" when there is no error.
        generation: Generation of the member's newest assignment.
        assignment: All of it; None when it is the one that the member has adopted.
    """

    error: GroupError
    message: Message = ""
    member_id: str = ""
    generation: Number = 0
    assignment: Annotated[tuple[AssignedStream, ...], Meta(max_length=SUBSCRIPTIONS_MAX)] | None = None

    def check(self) -> None:
        """Refuse names that are none, and more partitions than a member may have."""
        check_text(self.member_id, MEMBER_BYTES_MAX, "member_id")
        streams = self.assignment or ()
        for stream in streams:
            check_name(stream.name)
        if sum(len(stream.partitions) for stream in streams) > ASSIGNED_PARTITIONS_MAX:
            raise FrameError(f"assignment: more than {ASSIGNED_PARTITIONS_MAX} partitions")
