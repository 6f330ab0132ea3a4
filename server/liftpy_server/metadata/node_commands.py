"""Commands about nodes: one starts, its session ends, it is drained, it is gone for good.

A node that starts says whether it can prove that its log holds all it ever counted as durable. If it can not (its
disk was replaced, or the kernel lost what was never synced), it is taken out of every in-sync replica set before it
serves anything. It must keep the doubt on disk until this command has been applied: a second start before that would
otherwise look clean. If single logs are gone or have failed, or their ends had to be cut (what was cut may have been
damaged rather than never whole), it is taken out of the sets of those partitions. It tells of them whether the metadata
counts on them or not: a proposal to count on its earlier incarnation may be under way. What is applied before this
command is undone by it; what comes after is refused for the incarnation.
"""

from __future__ import annotations

from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode
from liftpy_server.metadata.changes import RefusedError
from liftpy_server.metadata.elections import (
    elect,
    elect_by_reports,
    given_up,
    healed,
    knowing,
    leaderships,
    led_by,
    taken_out,
    without,
)
from liftpy_server.metadata.state import NodeInfo

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Container, Iterable, Sequence

    from liftpy_server.metadata.changes import Draft
    from liftpy_server.metadata.state import PartitionInfo, StreamInfo

__all__ = ["NODE_OPERATIONS"]

_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "node_id": (str,),
    "pull_host": (str,),
    "pull_port": (int,),
    "pull_tls": (bool,),
    "pull_token": (str,),
    "follow_token": (str,),
    "rack": (str, NoneType),
    "metadata_host": (str, NoneType),
    "metadata_port": (int, NoneType),
    "level": (int,),
}


def _register_node(
    draft: Draft,
    _now: int,
    *,
    node: dict[str, Any],
    is_log_proven: bool = True,
    lost: Sequence[tuple[str, int]] = (),
    failed: Sequence[tuple[str, int]] = (),
    cut: Sequence[tuple[str, int]] = (),
    known_ends: Sequence[tuple[str, int, int]] = (),
) -> int:
    """A node starts: it gets its next incarnation, and every partition it leads a new leader epoch.

    `lost` are [uuid, partition] of those whose log is not there any more, or has failed; `failed` those that have;
    `cut` those of which the end did not read well and was cut; `known_ends` are [uuid, partition, offset] of those up
    to where the node knows for certain that they held committed records.
    """
    known = draft.nodes.get(node["node_id"])
    info = NodeInfo(
        **node
        | {
            "incarnation": (draft.incarnation_floor if known is None else known.incarnation) + 1,
            "expired": False,
            "draining": known is not None and known.draining,
        }
    )
    wrong = [name for name, kinds in _KINDS.items() if type(getattr(info, name)) not in kinds]
    if wrong or not info.node_id:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"a node can not register with such {', '.join(wrong) or 'a name'}"
        )
    if info.level < draft.level:
        raise RefusedError(
            ErrorCode.CONFLICT,
            f"node {info.node_id!r} runs a liftpy that is older than the cluster's metadata (it understands level "
            f"{info.level}, needed is {draft.level}); upgrade it",
        )
    others = (other for other in draft.nodes.values() if other.node_id != info.node_id)
    draft.put_node(info, level=_level(draft, (info, *others)))
    have_failed = {(uuid, number) for uuid, number in failed}
    without_log = {(uuid, number) for uuid, number in lost} - have_failed
    unproven = {(uuid, number) for uuid, number in cut} | have_failed
    held = {(uuid, number): end for uuid, number, end in known_ends}

    def started(stream: StreamInfo, number: int, partition: PartitionInfo, loads: Counter[str]) -> PartitionInfo:
        partition = knowing(partition, info.node_id, held.get((stream.uuid, number), 0))
        is_lost = (stream.uuid, number) in without_log
        if is_log_proven and not is_lost and (stream.uuid, number) not in unproven:
            return _started_proven(partition, info.node_id, loads)
        return _started_unproven(draft, stream, partition, info.node_id, loads, is_lost=is_lost)

    _change_partitions(draft, info.node_id, started)
    _mark_failed(draft, info.node_id, have_failed)
    return info.incarnation


def _mark_failed(draft: Draft, node_id: str, failed: Container[tuple[str, int]]) -> None:
    """What a node that starts says of its logs takes the place of all that was said of them before."""
    for stream in [draft.stream(name) for name in draft.streams]:
        if stream is None:
            continue
        partitions = tuple(
            _marked(partition, node_id, has_failed=(stream.uuid, number) in failed)
            if node_id in partition.replicas
            else partition
            for number, partition in enumerate(stream.partitions)
        )
        if any(new is not old for new, old in zip(partitions, stream.partitions, strict=True)):
            draft.put_stream(replace(stream, partitions=partitions))


def _marked(partition: PartitionInfo, node_id: str, *, has_failed: bool) -> PartitionInfo:
    renewed = tuple(each for each in partition.renewed if each[0] != node_id)
    if has_failed is (node_id in partition.failed) and renewed == partition.renewed:
        return partition
    left = healed(partition, node_id) if node_id in partition.failed else partition
    if has_failed:
        left = replace(partition, failed=(*left.failed, node_id))
    return replace(left, renewed=renewed, version=partition.version + 1)


def _level(draft: Draft, nodes: Iterable[NodeInfo]) -> int:
    """What all of these nodes understand; the level of the metadata never falls."""
    return max(draft.level, min((node.level for node in nodes), default=draft.level))


def _change_partitions(
    draft: Draft,
    node_id: str,
    change: Callable[[StreamInfo, int, PartitionInfo, Counter[str]], PartitionInfo],
) -> None:
    """Change the partitions of which a node keeps a copy."""
    loads = leaderships(draft.streams)
    for stream in draft.streams.values():
        partitions = tuple(
            change(stream, number, partition, loads) if node_id in partition.replicas else partition
            for number, partition in enumerate(stream.partitions)
        )
        if any(new is not old for new, old in zip(partitions, stream.partitions, strict=True)):
            draft.put_stream(replace(stream, partitions=partitions))


def _started_proven(partition: PartitionInfo, node_id: str, loads: Counter[str]) -> PartitionInfo:
    if partition.leader == node_id:
        return led_by(partition, node_id)
    if partition.leader is None and node_id in partition.isr:
        loads[node_id] += 1
        return led_by(partition, node_id)
    return partition


def _started_unproven(
    draft: Draft, stream: StreamInfo, partition: PartitionInfo, node_id: str, loads: Counter[str], *, is_lost: bool
) -> PartitionInfo:
    left = taken_out(partition, node_id, is_lost=is_lost)
    if left is partition:
        return partition
    if not left.isr:
        return elect_by_reports(draft.nodes, stream.config, left)
    if partition.leader not in {node_id, None}:
        return left
    if partition.leader == node_id:
        loads[node_id] -= 1
    return elect(draft.nodes, left, left.isr, loads)


def _find_node(draft: Draft, node_id: str) -> NodeInfo:
    known = draft.nodes.get(node_id)
    if known is None:
        raise RefusedError(ErrorCode.CONFLICT, f"there is no node {node_id!r}")
    return known


def _expire_node(draft: Draft, _now: int, *, node_id: str, incarnation: int) -> None:
    """A node's session ended: it loses its leaderships, and its places in the ISRs that can do without it."""
    known = draft.nodes.get(node_id)
    if known is None or known.incarnation != incarnation:
        raise RefusedError(ErrorCode.CONFLICT, f"node {node_id!r} is not in incarnation {incarnation}")
    draft.put_node(replace(known, expired=True))

    def expired(stream: StreamInfo, _number: int, partition: PartitionInfo, loads: Counter[str]) -> PartitionInfo:
        min_isr = stream.config.min_isr_effective
        left = without(partition, node_id, min_isr)
        if partition.leader != node_id:
            return elect_by_reports(draft.nodes, stream.config, given_up(draft.nodes, left, min_isr))
        loads[node_id] -= 1
        return given_up(draft.nodes, elect(draft.nodes, left, left.isr, loads), min_isr)

    _change_partitions(draft, node_id, expired)


def _drain_node(draft: Draft, _now: int, *, node_id: str, draining: bool) -> None:
    """A node gets no further replicas and leaderships, or does so again. What it has stays until it is moved."""
    known = _find_node(draft, node_id)
    if type(draining) is not bool:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"draining is true or false, not {draining!r}")
    if known.draining != draining:
        draft.put_node(replace(known, draining=draining))


def _remove_node(draft: Draft, _now: int, *, node_id: str) -> None:
    """A node is gone for good. It must keep no replica: what it alone may have is not to be forgotten."""
    known = _find_node(draft, node_id)
    kept = [
        f"{stream.name}/{number}"
        for stream in draft.streams.values()
        for number, partition in enumerate(stream.partitions)
        if node_id in partition.replicas
    ]
    if kept:
        some = ", ".join(kept[:3]) + (", ..." if len(kept) > 3 else "")
        raise RefusedError(
            ErrorCode.CONFLICT, f"node {node_id!r} keeps replicas of {len(kept)} partitions ({some}); drain it first"
        )
    left = [node for node in draft.nodes.values() if node.node_id != node_id]
    draft.remove_node(known, level=_level(draft, left))


NODE_OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "register_node": _register_node,
    "expire_node": _expire_node,
    "drain_node": _drain_node,
    "remove_node": _remove_node,
}
