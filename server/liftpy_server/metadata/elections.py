"""Who leads a partition next. Pure functions of the metadata.

A leader comes from the in-sync replica set: its members have every committed record. The one exception is a set whose
members have all lost the proof of that (`unproven`): then the longest log of the latest epoch wins, and is counted.
A node that is being drained leads only what nobody else can lead.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from liftpy_server.metadata.state import NodeInfo, PartitionInfo, StreamInfo

__all__ = ["able_to_lead", "elect", "elect_unclean", "leaderships", "led_by", "spread_over", "taken_out", "without"]


def leaderships(streams: Mapping[str, StreamInfo]) -> Counter[str]:
    """How many partitions each node leads."""
    return Counter(
        partition.leader
        for stream in streams.values()
        for partition in stream.partitions
        if partition.leader is not None
    )


def elect(
    nodes: Mapping[str, NodeInfo], partition: PartitionInfo, candidates: Container[str], loads: Counter[str]
) -> PartitionInfo:
    """Give a partition another leader.

    Args:
        nodes: as they are registered; they say who has a session.
        partition: its leader is given up.
        candidates: those of them that are in the ISR and have a session may lead.
        loads: how many partitions each node leads; kept up to date.

    Returns:
        The partition with the least loaded candidate as leader, in a new epoch; without any, with no leader.
    """
    able = able_to_lead(nodes, partition, candidates)
    if not able:
        return replace(partition, leader=None, version=partition.version + 1, suspicions=())
    leader = min(able, key=lambda node: loads[node])  # the first of equals, in the order of the replicas
    loads[leader] += 1
    return led_by(partition, leader)


def able_to_lead(nodes: Mapping[str, NodeInfo], partition: PartitionInfo, candidates: Container[str]) -> list[str]:
    """Those of the candidates that are in the ISR and have a session, in the order of the replicas.

    Nodes that are being drained are among them only when all are.
    """
    able = [
        info
        for node in partition.replicas
        if node in partition.isr and node in candidates and (info := nodes.get(node)) is not None and not info.expired
    ]
    staying = [info.node_id for info in able if not info.draining]
    return staying or [info.node_id for info in able]


def spread_over(able: list[str], uuid: str, number: int, leader_epoch: int) -> str:
    """One of those who may lead, evenly over partitions, without counting what everybody leads.

    When a node falls silent its followers depose it once per partition; to count all leaderships each time would
    make thousands of elections take seconds.
    """
    return able[(crc32(uuid.encode()) + number + leader_epoch) % len(able)]


def without(partition: PartitionInfo, node_id: str, min_isr: int) -> PartitionInfo:
    """The partition with a silent node out of its ISR, so that nobody waits for it; but never below `min_isr`.

    It has every committed record still: where its place is needed to keep `min_isr`, it stays and may be elected.
    """
    left = tuple(node for node in partition.isr if node != node_id)
    if len(left) == len(partition.isr) or len(left) < min_isr:
        return partition
    return replace(partition, isr=left, version=partition.version + 1)


def taken_out(partition: PartitionInfo, node_id: str) -> PartitionInfo:
    """The partition with a node out of its ISR that can not prove its log; also below `min_isr`.

    What it has may lack committed records, so its place in the set would keep nothing electable.
    """
    if node_id not in partition.isr:
        return partition
    return replace(
        partition,
        isr=tuple(node for node in partition.isr if node != node_id),
        unproven=(*(node for node in partition.unproven if node != node_id), node_id),
        version=partition.version + 1,
    )


def led_by(partition: PartitionInfo, leader: str) -> PartitionInfo:
    """The partition with this leader, in a new epoch."""
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        version=partition.version + 1,
        suspicions=(),
        departed=(),
    )


def elect_unclean(nodes: Mapping[str, NodeInfo], partition: PartitionInfo) -> PartitionInfo:
    """Where no clean member is left, and all members of the last ISR have told how far they are: the longest wins."""
    current = {
        report[0]: report
        for report in partition.reports
        if report[0] in nodes and nodes[report[0]].incarnation == report[1]
    }
    if partition.isr or not partition.unproven or any(node not in current for node in partition.unproven):
        return partition
    winner = max(partition.unproven, key=lambda node: current[node][2:])
    if nodes[winner].expired:  # it registers again, reports again, and is waited for
        return partition
    chosen = replace(
        partition, isr=(winner,), unproven=(), reports=(), unclean_elections=partition.unclean_elections + 1
    )
    return led_by(chosen, winner)
