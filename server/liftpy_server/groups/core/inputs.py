"""What a coordinator takes, beside the requests of the wire, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_envelope.group_offsets import CommitRequest, CommitResult, OffsetFetchRequest, OffsetFetchResult
    from liftpy_envelope.groups import HeartbeatRequest, JoinRequest, LeaveRequest, MembershipResult
    from liftpy_server.groups.core.assignment import StreamShape
    from liftpy_server.groups.core.records import GroupRecord

__all__ = ["Answer", "DeleteGroup", "Effects", "GroupTick", "Input", "Now", "StreamsChanged"]


class Now(NamedTuple):
    """The time of a step.

    Attributes:
        s: Monotonic seconds; timeouts are measured with it.
        ns: Nanoseconds since the epoch; commits are stamped with it.
    """

    s: float
    ns: int


@dataclass(frozen=True, slots=True)
class StreamsChanged:
    """The streams there are; the first thing a coordinator must be told, and then whenever they change.

    Attributes:
        revision: Revision of the metadata they were taken from; read from its leader, not from what this node has
            heard.
        streams: Streams, by name.
    """

    revision: int
    streams: Mapping[str, StreamShape]


@dataclass(frozen=True, slots=True)
class GroupTick:
    """Time has passed; due at `next_s` at the latest.

    Attributes:
        paused_s: Time that this node stood still since the last tick and could hear nobody, seconds: no fault of the
            members.
    """

    paused_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Delete the group and all it has committed, when it has no members.

    Attributes:
        idle_ns: Only delete it when it has had no members, and nothing was committed, for so long, ns.
    """

    idle_ns: int = 0


Input: TypeAlias = (
    "JoinRequest | HeartbeatRequest | LeaveRequest | CommitRequest | OffsetFetchRequest"
    " | StreamsChanged | GroupTick | DeleteGroup"
)
Answer: TypeAlias = "MembershipResult | CommitResult | OffsetFetchResult"


class Effects(NamedTuple):
    """What a step wants done.

    Attributes:
        records: Records to append to the log as one batch. If that fails, or its outcome is unknown, this coordinator
            is thrown away and another one is made from the log.
        answer: Answer to the request; to be sent when these records and those of all earlier steps are committed.
        told: Members whose parked heartbeat is to be answered, then also: give the same heartbeat to a step again.
    """

    records: tuple[GroupRecord, ...] = ()
    answer: Answer | None = None
    told: tuple[str, ...] = ()
