"""Where replicas go. Pure plans, the same for the same state; commands carry them out.

Replicas of a partition go to different racks as far as there are as many; then to the nodes with the fewest replicas,
and leaderships to those that are preferred the least often. Nodes that are being drained, and nodes without a session,
get something only when there are no others. A node without a rack counts as a rack of its own.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from zlib import crc32

from liftpy_envelope.events import EVENTS_STREAM

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_server.metadata.state import MetadataState, NodeInfo, PartitionInfo, StreamInfo

__all__ = ["Placement", "drain_moves", "leader_moves", "place", "shared_racks", "too_few_nodes"]


class _Loads:
    """How much every node has: kept up to date while a plan is made."""

    def __init__(self, streams: Iterable[StreamInfo]) -> None:
        self.replicas: Counter[str] = Counter()
        self.preferred: Counter[str] = Counter()
        self.led: Counter[str] = Counter()
        for stream in streams:
            self.count(stream, 1)

    def count(self, stream: StreamInfo, times: int) -> None:
        """Count a stream; -1 times is to count it no longer.

        That of the events has next to no load, and comes at a time that nobody chose: it moves no other stream.
        """
        if stream.name == EVENTS_STREAM:
            return
        for partition in stream.partitions:
            replicas = _replicas_afterwards(partition)
            for node_id in replicas:
                self.replicas[node_id] += times
            self.preferred[replicas[0]] += times
            if partition.leader is not None:
                self.led[partition.leader] += times

    def copy(self) -> _Loads:
        """The same counts, to make a plan with."""
        other = _Loads(())
        other.replicas, other.preferred, other.led = self.replicas.copy(), self.preferred.copy(), self.led.copy()
        return other


def _replicas_afterwards(partition: PartitionInfo) -> tuple[str, ...]:
    return partition.replicas if partition.target is None else partition.target


class Placement:
    """Places one new stream after another, and counts only what changed in between."""

    def __init__(self) -> None:
        self._loads = _Loads(())
        self._counted: Mapping[str, StreamInfo] = {}

    def place(self, state: MetadataState, config: StreamConfig) -> list[list[str]]:
        """See the function `place`."""
        before, self._counted = self._counted, state.streams
        for name, stream in before.items():
            if state.streams.get(name) is not stream:
                self._loads.count(stream, -1)
        for name, stream in state.streams.items():
            if before.get(name) is not stream:
                self._loads.count(stream, 1)
        return _place(state, config, self._loads.copy())


def too_few_nodes(config: StreamConfig, nodes: int) -> str:
    """Error text for settings of a stream that need more nodes than there are."""
    if not config.observers:
        return f"replicas: {config.replicas} replicas need {config.replicas} nodes; the cluster has {nodes}"
    field, both = ("replicas" if config.replicas > nodes else "observers"), config.replicas + config.observers
    kept = f"replicas = {config.replicas} and observers = {config.observers}"
    return f"{field}: {kept} need {both} nodes; the cluster has {nodes}"


def place(state: MetadataState, config: StreamConfig) -> list[list[str]]:
    """Nodes for every partition of a new stream, the preferred leader first and the observers last.

    With fewer nodes than copies, every partition gets all nodes; to create the stream is then refused.
    """
    return Placement().place(state, config)


def _place(state: MetadataState, config: StreamConfig, loads: _Loads) -> list[list[str]]:
    assignment = []
    for number in range(config.partitions):
        chosen: list[NodeInfo] = []
        for _ in range(min(config.replicas + config.observers, len(state.nodes))):
            # The first one leads, so it is chosen by how many others it leads.
            by = loads.replicas if chosen else loads.preferred
            candidates = (node for node in state.nodes.values() if node not in chosen)
            chosen.append(_best(candidates, chosen, (by, loads.replicas), f"{config.name}/{number}"))
        nodes = [node.node_id for node in chosen]
        loads.replicas.update(nodes)
        loads.preferred.update(nodes[:1])
        assignment.append(nodes)
    return assignment


def _best(
    candidates: Iterable[NodeInfo], beside: list[NodeInfo], loads: tuple[Counter[str], ...], seed: str
) -> NodeInfo:
    """The candidate for one more replica; among equals one by hash, so that no node is every stream's first."""
    racks = Counter(_rack(node) for node in beside)

    def cost(node: NodeInfo) -> tuple[Any, ...]:
        tie = crc32(f"{seed}/{node.node_id}".encode())
        counts = tuple(load[node.node_id] for load in loads)
        return node.draining, node.expired, racks[_rack(node)], *counts, tie, node.node_id

    return min(candidates, key=cost)


def shared_racks(state: MetadataState, replicas: Iterable[Sequence[str]]) -> list[str]:
    """The racks that several replicas of one partition share: with such a rack they are lost together.

    Args:
        state: Knows the racks of the nodes.
        replicas: Nodes of the replicas, partition by partition.
    """
    shared: set[str] = set()
    for nodes in replicas:
        racks = Counter(state.nodes[node].rack for node in nodes if node in state.nodes)
        shared.update(rack for rack, count in racks.items() if rack is not None and count > 1)
    return sorted(shared)


def _rack(node: NodeInfo) -> tuple[str, str]:
    return ("node", node.node_id) if node.rack is None else ("rack", node.rack)


def drain_moves(state: MetadataState, node_id: str) -> list[dict[str, Any]]:
    """What makes a node keep no replica: the arguments of one `reassign_partitions` for every stream it has one of.

    Partitions that are being moved already, and those for which no other node is left, are not in the plan. The stream
    of the events does without the replica then: nobody chose to have it, so it keeps no node in the cluster.
    """
    loads = _Loads(state.streams.values())
    plan: list[dict[str, Any]] = []
    for stream in state.streams.values():
        moves = []
        for number, partition in enumerate(stream.partitions):
            if node_id not in partition.replicas or partition.target is not None:
                continue
            successor = _successor(state, partition, node_id, loads, f"{stream.name}/{number}")
            if successor is None and stream.name == EVENTS_STREAM:
                left = [node for node in partition.replicas if node != node_id]
                if any(node in state.nodes and not state.nodes[node].draining for node in left):
                    moves.append([number, left, [node for node in partition.observers if node != node_id]])
            elif successor is not None:
                nodes = [successor if node == node_id else node for node in partition.replicas]
                observers = [successor if node == node_id else node for node in partition.observers]
                moves.append([number, nodes, observers])
                loads.replicas[successor] += 1
                loads.preferred[nodes[0]] += nodes[0] == successor
        if moves:
            plan.append({"name": stream.name, "uuid": stream.uuid, "moves": moves})
    return plan


def _successor(state: MetadataState, partition: PartitionInfo, node_id: str, loads: _Loads, seed: str) -> str | None:
    """Who takes a node's place in a partition."""
    candidates = [
        node
        for node in state.nodes.values()
        if node.node_id not in partition.replicas and not node.draining and not node.expired
    ]
    if not candidates:
        return None
    beside = [state.nodes[node] for node in partition.replicas if node != node_id and node in state.nodes]
    by = loads.preferred if partition.replicas[0] == node_id else loads.replicas
    return _best(candidates, beside, (by, loads.replicas), seed).node_id


def leader_moves(state: MetadataState, node_id: str) -> list[dict[str, Any]]:
    """What makes a node lead nothing that another can lead: the arguments of a `move_leader` for each partition."""
    loads = _Loads(state.streams.values())
    plan: list[dict[str, Any]] = []
    for stream in state.streams.values():
        for number, partition in enumerate(stream.partitions):
            able = [
                node
                for node in partition.isr
                if node != node_id
                and node in state.nodes
                and not (state.nodes[node].expired or state.nodes[node].draining)
            ]
            if partition.leader == node_id and able:
                leader = min(able, key=lambda node: loads.led[node])  # the first of equals is the preferred one
                loads.led[leader] += 1
                plan.append(
                    {
                        "name": stream.name,
                        "uuid": stream.uuid,
                        "partition": number,
                        "leader": leader,
                        "leader_epoch": partition.leader_epoch,
                        "version": partition.version,
                    }
                )
    return plan
