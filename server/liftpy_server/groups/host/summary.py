"""What a node tells of the consumer groups that it coordinates, as JSON."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liftpy_server.groups.core.member import Member
    from liftpy_server.groups.host.coordinators import Coordinators

__all__ = ["describe_group", "summarize_group"]


def summarize_group(coordinators: Coordinators, group: str, node_id: str) -> dict[str, Any]:
    """One line of a list: `partitions` counts those that members have, or for which something is committed."""
    coordinator = coordinators.find(group)
    members = {} if coordinator is None else coordinator.members
    held = {key for member in members.values() for key in member.assigned}
    if not held:
        partitions = coordinators.table.count(group)
    else:
        partitions = len(held | {key for key, _ in coordinators.table.of_group(group)})
    return {
        "group": group,
        "state": "active" if members else "empty",
        "members": len(members),
        "partitions": partitions,
        "coordinator": node_id,
        "generation": coordinators.generation(group),
        "size_bytes": coordinators.size_bytes(group),
    }


def describe_group(
    coordinators: Coordinators, group: str, node_id: str, names: dict[str, str], offsets_from: int, offsets_max: int
) -> dict[str, Any]:
    """All of a group.

    Args:
        coordinators: Coordinators of the partition in which it lives.
        group: Name of the group.
        node_id: Id of this node.
        names: Names of the streams there are, by uuid.
        offsets_from: How many of the offsets were told before; the members are told with the first ones.
        offsets_max: How many to tell.
    """
    coordinator = coordinators.find(group)
    members = {} if coordinator is None else coordinator.members
    offsets = sorted(coordinators.table.of_group(group))
    told = offsets[offsets_from : offsets_from + offsets_max]
    return {
        "group": group,
        "state": "active" if members else "empty",
        "coordinator": node_id,
        "generation": coordinators.generation(group),
        "members": [] if offsets_from else [_member(member, names) for member in members.values()],
        "offsets": [
            {
                "stream": committed.stream,
                "uuid": key.uuid.hex(),
                "partition": key.partition,
                "offset": committed.offset,
                "committed_ns": committed.commit_time_ns,
                "metadata": b64encode(committed.metadata).decode(),
            }
            for key, committed in told
        ],
        "offsets_total": len(offsets),
    }


def _member(member: Member, names: dict[str, str]) -> dict[str, Any]:
    numbers: dict[str, list[int]] = {}
    for key in member.assigned:
        uuid = key.uuid.hex()
        numbers.setdefault(names.get(uuid, uuid), []).append(key.partition)
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client": member.client_id,
        "rack": member.rack,
        "subscriptions": list(member.subscriptions),
        "assigned": [{"stream": stream, "partitions": partitions} for stream, partitions in numbers.items()],
        "session_timeout_ms": member.session_timeout_ms,
    }
