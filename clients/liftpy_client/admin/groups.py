"""What admin requests about consumer groups answer with."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from typing import Any

__all__ = ["GroupDetails", "GroupMember", "GroupOffset", "GroupSummary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """A line of the list of groups.

    Attributes:
        state: `active` while it has members, else `empty`.
        members: How many.
        partitions: How many the members have, or something is committed for.
        coordinator: The node that coordinates it.
        generation: Generation of the newest assignment.
        size_bytes: About what it takes of the coordinator's memory.
    """

    group: str
    state: str
    members: int
    partitions: int
    coordinator: str
    generation: int
    size_bytes: int = 0

    @classmethod
    def from_answer(cls, group: dict[str, Any]) -> GroupSummary:
        """Read what a node said."""
        return cls(**{name: group[name] for name in cls.__slots__ if name in group})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group.

    Attributes:
        member_id: Given by the coordinator.
        instance_id: Instance id of a static member; "" for others.
        client: Name that the client calls itself.
        rack: "" for none.
        subscriptions: Names of streams.
        assigned: Numbers of partitions by stream.
        session_timeout_ms: Time without a heartbeat after which it is out, ms.
    """

    member_id: str
    instance_id: str
    client: str
    rack: str
    subscriptions: tuple[str, ...]
    assigned: dict[str, tuple[int, ...]]
    session_timeout_ms: int

    @classmethod
    def from_answer(cls, member: dict[str, Any]) -> GroupMember:
        """Read what a node said."""
        return cls(
            member_id=member["member_id"],
            instance_id=member["instance_id"],
            client=member["client"],
            rack=member.get("rack", ""),
            subscriptions=tuple(member.get("subscriptions", ())),
            assigned={row["stream"]: tuple(row["partitions"]) for row in member["assigned"]},
            session_timeout_ms=member["session_timeout_ms"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """What a group has committed for a partition.

    Attributes:
        stream: The stream's name when it was committed.
        uuid: UUID of the stream, 32 hex digits. A stream that is created again has another one.
        offset: The next record to read.
        committed_ns: When, since the epoch.
        metadata: The client's own.
    """

    stream: str
    uuid: str
    partition: int
    offset: int
    committed_ns: int
    metadata: bytes = b""

    @classmethod
    def from_answer(cls, offset: dict[str, Any]) -> GroupOffset:
        """Read what a node said."""
        known = {name: offset[name] for name in cls.__slots__}
        return cls(**known | {"metadata": b64decode(offset["metadata"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetails:
    """One group.

    Attributes:
        state: `active` while it has members, else `empty`.
        coordinator: The node that coordinates it.
        generation: Generation of the newest assignment.
        members: Members in no order.
        offsets: What it has committed, by stream and partition.
    """

    group: str
    state: str
    coordinator: str
    generation: int
    members: tuple[GroupMember, ...]
    offsets: tuple[GroupOffset, ...]

    @classmethod
    def from_answer(cls, group: dict[str, Any]) -> GroupDetails:
        """Read what a node said."""
        known = {name: group[name] for name in ("group", "state", "coordinator", "generation")}
        offsets = sorted(map(GroupOffset.from_answer, group["offsets"]), key=lambda row: (row.stream, row.partition))
        return cls(
            **known,
            members=tuple(map(GroupMember.from_answer, group["members"])),
            offsets=tuple(offsets),
        )
