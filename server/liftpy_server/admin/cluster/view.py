"""The cluster as it is shown: its nodes, and the partitions that need attention. Pure functions of the metadata."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from liftpy_server.admin.stream_view import partition_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from liftpy_server.consensus.settings import Voter
    from liftpy_server.metadata.state import MetadataState, NodeInfo, PartitionInfo, StreamInfo

__all__ = [
    "Quorum",
    "leaderless",
    "partitions_of",
    "reassignments",
    "replicas_on",
    "show_nodes",
    "show_partitions",
    "under_replicated",
    "with_progress",
]


class Quorum(NamedTuple):
    """Who keeps the metadata.

    Attributes:
        leader_id: Id of the node that leads it, as far as this node knows.
        voters: Ids of the voters.
    """

    leader_id: str | None
    voters: tuple[Voter, ...]


def partitions_of(state: MetadataState) -> Iterator[tuple[StreamInfo, int, PartitionInfo]]:
    """Every partition with its stream and number, in the order of the streams' names."""
    for _, stream in sorted(state.streams.items()):
        for number, partition in enumerate(stream.partitions):
            yield stream, number, partition


def replicas_on(state: MetadataState, node_id: str) -> int:
    """How many partitions have a replica on a node."""
    return sum(node_id in partition.replicas for _, _, partition in partitions_of(state))


def show_nodes(state: MetadataState, quorum: Quorum) -> dict[str, dict[str, Any]]:
    """The nodes by id, as the metadata has them. The token of their pull servers is not for everybody."""
    leads: Counter[str] = Counter()
    keeps: Counter[str] = Counter()
    out_of_sync: Counter[str] = Counter()
    for _, _, partition in partitions_of(state):
        keeps.update(partition.replicas)
        out_of_sync.update(node for node in partition.voters if node not in partition.isr)
        if partition.leader is not None:
            leads[partition.leader] += 1
    votes = {voter.node_id for voter in quorum.voters}
    return {
        node_id: {name: value for name, value in node.for_clients().items() if name != "pull_token"}
        | {
            "state": _node_state(node),
            "leaderships": leads[node_id],
            "replicas": keeps[node_id],
            "out_of_sync": out_of_sync[node_id],
            "metadata_leader": node_id == quorum.leader_id,
            "metadata_voter": node_id in votes,
        }
        for node_id, node in sorted(state.nodes.items())
    }


def _node_state(node: NodeInfo) -> str:
    if node.expired:
        return "expired"
    return "draining" if node.draining else "up"


def _is_under_replicated(partition: PartitionInfo) -> bool:
    """Whether a replica that counts is not in sync; those that a reassignment adds do not count yet."""
    if len(partition.isr) == len(partition.replicas):
        return False
    settled, observers = partition.replicas, partition.observers
    if partition.origin is not None:
        settled, observers = partition.origin, partition.origin_observers
    return any(node not in partition.isr for node in settled if node not in observers)


def _show_partition(stream: StreamInfo, number: int, partition: PartitionInfo) -> dict[str, Any]:
    """A partition that needs attention."""
    missing = [node for node in partition.voters if node not in partition.isr]
    return {"stream": stream.name} | partition_place(number, partition) | {"missing": missing}


def reassignments(state: MetadataState) -> list[tuple[StreamInfo, int, PartitionInfo]]:
    """The partitions whose replicas are being moved."""
    return [found for found in partitions_of(state) if found[2].target is not None]


def with_progress(
    stream: StreamInfo, number: int, partition: PartitionInfo, numbers: Mapping[str, Any]
) -> dict[str, Any]:
    """A reassignment, and how far the nodes that it adds have come.

    Args:
        stream: Stream of the partition.
        number: Number of the partition.
        partition: Partition that has a target.
        numbers: What its leader told of the partition.
    """
    target = partition.target or ()
    before = partition.replicas if partition.origin is None else partition.origin
    adding = [node for node in target if node not in before]
    states = {replica["node"]: replica for replica in numbers.get("replica_states") or ()}
    shares = [_share(states.get(node), numbers) for node in adding]
    return _show_partition(stream, number, partition) | {
        "target_observers": list(partition.target_observers),
        "adding": [states.get(node, {"node": node}) for node in adding],
        "removing": [node for node in before if node not in target],
        "progress": round(sum(shares) / len(shares), 4) if shares else 1.0,
    }


def _share(replica: Mapping[str, Any] | None, numbers: Mapping[str, Any]) -> float:
    """How much of the log a new replica has, between 0 and 1."""
    if replica is None or numbers.get("log_end") is None:
        return 0.0
    if replica["in_sync"]:
        return 1.0
    first, end = numbers.get("local_start", numbers["log_start"]), numbers["log_end"]  # the bucket is not copied
    if end <= first:
        return 1.0
    have: int = (replica["log_end"] or first) - first
    return min(max(float(have / (end - first)), 0.0), 1.0)


def under_replicated(state: MetadataState) -> list[tuple[StreamInfo, int, PartitionInfo]]:
    """The partitions that have a leader, and too few replicas in sync."""
    return [found for found in partitions_of(state) if found[2].leader is not None and _is_under_replicated(found[2])]


def leaderless(state: MetadataState) -> list[tuple[StreamInfo, int, PartitionInfo]]:
    """The partitions that nobody leads: they take no messages and serve nobody."""
    return [found for found in partitions_of(state) if found[2].leader is None]


def show_partitions(found: Iterable[tuple[StreamInfo, int, PartitionInfo]], limit: int) -> list[dict[str, Any]]:
    """The first of them, as JSON."""
    return [_show_partition(*each) for each in list(found)[:limit]]
