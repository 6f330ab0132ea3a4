"""Commands about nodes: one starts, or its session ends.

A node that starts says whether it can prove that its log holds all it ever counted as durable. If it can not (its
disk was replaced, or the kernel lost what was never synced), it is taken out of every in-sync replica set before it
serves anything. It must keep the doubt on disk until this command has been applied: a second start before that would
otherwise look clean.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode
from liftpy_server.metadata.changes import RefusedError
from liftpy_server.metadata.elections import elect, leaderships, led_by, without
from liftpy_server.metadata.state import NodeInfo

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from liftpy_server.metadata.changes import Change
    from liftpy_server.metadata.state import MetadataState, PartitionInfo

__all__ = ["NODE_OPERATIONS"]


def _register_node(state: MetadataState, _now: int, *, node: dict[str, Any], is_log_proven: bool = True) -> Change:
    """A node starts: it gets its next incarnation, and every partition it leads a new leader epoch."""
    known = state.nodes.get(node["node_id"])
    incarnation = 1 if known is None else known.incarnation + 1
    info = NodeInfo(**node | {"incarnation": incarnation, "expired": False})
    state = replace(state, nodes=state.nodes | {info.node_id: info})
    loads = leaderships(state)
    started = _started_proven if is_log_proven else _started_unproven
    return _for_each_partition(state, info.node_id, loads, started), info.incarnation


def _for_each_partition(
    state: MetadataState,
    node_id: str,
    loads: Counter[str],
    change: Callable[[MetadataState, PartitionInfo, int, str, Counter[str]], PartitionInfo],
) -> MetadataState:
    streams = {}
    for name, stream in state.streams.items():
        min_isr = stream.config.min_isr_effective
        partitions = tuple(change(state, partition, min_isr, node_id, loads) for partition in stream.partitions)
        streams[name] = stream if partitions == stream.partitions else replace(stream, partitions=partitions)
    return replace(state, streams=streams)


def _started_proven(
    _state: MetadataState, partition: PartitionInfo, _min_isr: int, node_id: str, loads: Counter[str]
) -> PartitionInfo:
    if partition.leader == node_id:
        return led_by(partition, node_id)
    if partition.leader is None and node_id in partition.isr:
        loads[node_id] += 1
        return led_by(partition, node_id)
    return partition


def _started_unproven(
    state: MetadataState, partition: PartitionInfo, _min_isr: int, node_id: str, loads: Counter[str]
) -> PartitionInfo:
    if node_id not in partition.isr:
        return partition
    left = replace(
        partition,
        isr=tuple(node for node in partition.isr if node != node_id),
        unproven=(*(node for node in partition.unproven if node != node_id), node_id),
        version=partition.version + 1,
    )
    if partition.leader not in {node_id, None}:
        return left
    if partition.leader == node_id:
        loads[node_id] -= 1
    return elect(state, left, left.isr, loads)


def _expire_node(state: MetadataState, _now: int, *, node_id: str, incarnation: int) -> Change:
    """A node's session ended: it loses its leaderships, and its places in the ISRs that can do without it."""
    known = state.nodes.get(node_id)
    if known is None or known.incarnation != incarnation:
        raise RefusedError(ErrorCode.CONFLICT, f"node {node_id!r} is not in incarnation {incarnation}")
    state = replace(state, nodes=state.nodes | {node_id: replace(known, expired=True)})
    loads = leaderships(state)
    return _for_each_partition(state, node_id, loads, _lost), None


def _lost(
    state: MetadataState, partition: PartitionInfo, min_isr: int, node_id: str, loads: Counter[str]
) -> PartitionInfo:
    left = without(partition, node_id, min_isr)
    if partition.leader != node_id:
        return left
    loads[node_id] -= 1
    return elect(state, left, left.isr, loads)


NODE_OPERATIONS: Final[dict[str, Callable[..., Change]]] = {
    "register_node": _register_node,
    "expire_node": _expire_node,
}
