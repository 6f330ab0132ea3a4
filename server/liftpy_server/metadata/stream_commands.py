"""Commands about streams: create, delete, update, pause, purge."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.metadata.changes import RefusedError, find_partition, find_stream, put_partition
from liftpy_server.metadata.elections import elect_by_reports, with_config
from liftpy_server.metadata.placement import too_few_nodes
from liftpy_server.metadata.state import PartitionInfo, StreamInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.metadata.changes import Draft

__all__ = ["STREAM_OPERATIONS", "check_assignment", "new_partition"]


def _create_stream(
    draft: Draft, now: int, *, uuid: str, config: dict[str, Any], assignment: list[list[str]]
) -> dict[str, Any]:
    """Create a stream, or find that it is there with the same settings.

    `assignment` names the replicas of every partition, the preferred leader first and the observers last.
    """
    wanted = StreamConfig.from_plain(config)
    known = draft.stream(wanted.name)
    if known is not None:
        differences = known.config.differences(wanted)
        if differences:
            raise RefusedError(
                ErrorCode.STREAM_EXISTS,
                f"stream {wanted.name!r} exists with another {', '.join(differences)}; change it with "
                "`liftpy stream edit` or `liftpy stream reassign`",
            )
        return {"uuid": known.uuid, "created": False}
    check_assignment(draft, wanted, assignment)
    partitions = tuple(new_partition(draft, tuple(nodes), wanted) for nodes in assignment)
    draft.put_stream(StreamInfo(uuid=uuid, config=wanted, created_ns=now, partitions=partitions))
    return {"uuid": uuid, "created": True}


def check_assignment(draft: Draft, wanted: StreamConfig, assignment: list[list[str]]) -> None:
    """Nodes for every partition of a stream that is to be.

    Raises:
        RefusedError: they are too few, or not those that can keep it.
    """
    copies = wanted.replicas + wanted.observers
    if copies > len(draft.nodes):
        raise RefusedError(ErrorCode.INVALID_CONFIG, too_few_nodes(wanted, len(draft.nodes)))
    if len(assignment) != wanted.partitions or not all(_names_replicas(nodes, copies) for nodes in assignment):
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"stream {wanted.name!r}: the assignment must name {copies} different nodes for each of its "
            f"{wanted.partitions} partitions",
        )
    for node_id in sorted({node_id for nodes in assignment for node_id in nodes}):
        node = draft.nodes.get(node_id)
        if node is None:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"there is no node {node_id!r} to keep {wanted.name!r}")
        if node.draining:
            raise RefusedError(
                ErrorCode.CONFLICT,
                f"node {node_id!r} is being drained and takes no stream; add a node, or end the drain",
            )


def _names_replicas(nodes: object, copies: int) -> bool:
    return (
        isinstance(nodes, (list, tuple))
        and len(nodes) == copies
        and all(isinstance(node, str) and node for node in nodes)
        and len(set(nodes)) == copies
    )


def new_partition(draft: Draft, nodes: tuple[str, ...], config: StreamConfig) -> PartitionInfo:
    """A partition on these nodes whose logs are empty.

    An empty log is in sync anywhere, so nodes without a session need not be waited for.
    """
    voters, observers = nodes[: config.replicas], nodes[config.replicas :]
    present = tuple(node for node in voters if not draft.nodes[node].expired)
    return PartitionInfo(
        replicas=nodes,
        isr=present or voters,
        leader=present[0] if present else None,
        leader_epoch=1,
        observers=observers,
    )


def _delete_stream(draft: Draft, _now: int, *, name: str, uuid: str | None = None) -> dict[str, Any]:
    stream = find_stream(draft, name, uuid)
    draft.remove_stream(stream)
    return {"uuid": stream.uuid}


def _update_stream(
    draft: Draft,
    _now: int,
    *,
    name: str,
    changes: dict[str, Any],
    expected_version: int | None = None,
) -> dict[str, Any]:
    stream = find_stream(draft, name, None)
    if expected_version is not None and stream.version != expected_version:
        raise RefusedError(
            ErrorCode.CONFLICT, f"stream {name!r} is at version {stream.version}, not {expected_version}"
        )
    config = stream.config.updated(changes)
    for field in ("replicas", "observers"):
        if getattr(config, field) != getattr(stream.config, field):
            raise RefusedError(ErrorCode.INVALID_CONFIG, f"{field}: change them by reassigning partitions")
    fewest = min(map(_voters_afterwards, stream.partitions))
    if config.min_isr_effective > fewest:
        raise RefusedError(
            ErrorCode.CONFLICT,
            f"min_isr: {config.min_isr_effective} can not be kept by partitions that have {fewest} replicas, now or "
            "when they are moved",
        )
    changed = with_config(stream, config)
    partitions = tuple(elect_by_reports(draft.nodes, config, partition) for partition in changed.partitions)
    draft.put_stream(replace(changed, partitions=partitions))
    return {"uuid": stream.uuid}


def _voters_afterwards(partition: PartitionInfo) -> int:
    if partition.target is None:
        return len(partition.voters)
    return len(partition.target) - len(partition.target_observers)


def _set_stream_state(
    draft: Draft, _now: int, *, name: str, paused: bool | None = None, read_only: bool | None = None
) -> dict[str, Any]:
    stream = find_stream(draft, name, None)
    changed = replace(
        stream,
        paused=stream.paused if paused is None else bool(paused),
        read_only=stream.read_only if read_only is None else bool(read_only),
    )
    if changed != stream:
        draft.put_stream(replace(changed, version=stream.version + 1))
    return {"uuid": stream.uuid}


def _purge_partition(
    draft: Draft, _now: int, *, name: str, uuid: str, partition: int, log_start: int
) -> dict[str, Any]:
    """Records below `log_start` go; the start of a log never moves back."""
    stream, old = find_partition(draft, name, uuid, partition)
    if log_start < 0:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"stream {name!r}: a log can not start at {log_start}")
    moved = replace(old, log_start=max(old.log_start, log_start), version=old.version + 1)
    draft.put_stream(replace(put_partition(draft, stream, partition, moved), version=stream.version + 1))
    return {"log_start": moved.log_start}


STREAM_OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "create_stream": _create_stream,
    "delete_stream": _delete_stream,
    "update_stream": _update_stream,
    "set_stream_state": _set_stream_state,
    "purge_partition": _purge_partition,
}
