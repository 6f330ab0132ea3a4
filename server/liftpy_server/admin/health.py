"""What orchestrators and monitors ask a node: is something wrong, and is it in step with its cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from liftpy_server.admin.node_parts import NodeParts

__all__ = ["find_problems", "find_waits"]


def find_problems(node: NodeParts) -> list[str]:
    """What is wrong with this node, in words. A restart would mend none of it."""
    problems = []
    if not node.ingest.is_connected:
        problems.append("not connected to NATS")
    if node.maintenance.storage_full:
        problems.append("the disk is full")
    offline = sum(partition.log.failure is not None for partition in node.streams.partitions)
    if offline:
        problems.append(f"{offline} partitions are offline")
    return problems


def find_waits(node: NodeParts) -> list[str]:
    """What this node waits for before another one may be stopped, in words."""
    waits = []
    if node.metadata.leader_id is None:
        waits.append("no majority of the nodes keeps the metadata")
    node_id = node.config.node_id
    behind = sum(
        node_id in partition.replicas and node_id not in {*partition.isr, *partition.observers}
        for stream in node.metadata.state.streams.values()
        for partition in stream.partitions
    )
    if behind:
        waits.append(f"{behind} partitions are not in sync here yet")
    return waits
