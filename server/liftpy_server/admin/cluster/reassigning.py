"""Where the replicas of a stream shall be, computed from the metadata. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from liftpy_envelope.errors import ErrorCode
from liftpy_server.metadata.placement import place, too_few_nodes
from liftpy_server.requests.errors import AdminError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from liftpy_server.admin.cluster.requests import ReassignRequest
    from liftpy_server.metadata.state import MetadataState, PartitionInfo, StreamInfo

__all__ = ["Move", "plan_reassignment", "targeted"]

Move = tuple[int, list[str], list[str]]
"""A partition, its nodes afterwards with the preferred leader first, and those of them that are observers."""


def plan_reassignment(state: MetadataState, stream: StreamInfo, request: ReassignRequest) -> list[Move]:
    """The moves that a request asks for; partitions that are as they shall be are left out.

    Raises:
        AdminError: there is no such partition, or there are not enough nodes.
    """
    if request.partitions is None:
        moves = _chosen(state, stream, request)
    else:
        moves = _named(stream, request.partitions, request.observers)
    return [move for move in moves if _changes(stream.partitions[move[0]], move)]


def targeted(partition: PartitionInfo, move: Move) -> PartitionInfo:
    """The partition as it would be while it is moved, as far as it can be shown."""
    if partition.target is not None:
        return partition
    _, nodes, observers = move
    return replace(
        partition,
        target=tuple(nodes),
        target_observers=tuple(observers),
        origin=partition.replicas,
        origin_observers=partition.observers,
    )


def _changes(partition: PartitionInfo, move: Move) -> bool:
    _, nodes, observers = move
    if partition.target is not None:  # the metadata refuses another target, and takes the same again
        return True
    return (partition.replicas, partition.observers) != (tuple(nodes), tuple(observers))


def _named(stream: StreamInfo, wanted: dict[int, tuple[str, ...]], observers: int | None) -> list[Move]:
    moves: list[Move] = []
    for number, nodes in sorted(wanted.items()):
        if number >= len(stream.partitions):
            text = f"stream {stream.name!r} has no partition {number}; its last one is {len(stream.partitions) - 1}"
            raise AdminError(ErrorCode.INVALID_REQUEST, text)
        if observers is not None and observers >= len(nodes):
            text = (
                f"partition {number}: of {len(nodes)} nodes, {observers} can not be observers; one at least must lead"
            )
            raise AdminError(ErrorCode.INVALID_REQUEST, text)
        if observers is None:
            apart = [node for node in nodes if node in stream.partitions[number].observers]
        else:
            apart = list(nodes[len(nodes) - observers :])
        moves.append((number, list(nodes), apart))
    return moves


def _chosen(state: MetadataState, stream: StreamInfo, request: ReassignRequest) -> list[Move]:
    """Nodes that have a copy keep it where they can; only as many are moved as must be."""
    config = stream.config
    replicas = config.replicas if request.replicas is None else request.replicas
    observers = config.observers if request.observers is None else request.observers
    wanted = replace(config, replicas=replicas, observers=observers, min_isr=None)
    if replicas + observers > len(state.nodes):
        raise AdminError(ErrorCode.INVALID_REQUEST, too_few_nodes(wanted, len(state.nodes)))
    placed = place(state, wanted)
    moves: list[Move] = []
    for number, partition in enumerate(stream.partitions):
        others = [*placed[number], *sorted(state.nodes)]
        voters = _kept_and_added(state, partition, partition.voters, others, replicas)
        free = [node for node in others if node not in voters]
        apart = _kept_and_added(state, partition, partition.observers, free, observers, barred=voters)
        moves.append((number, [*voters, *apart], apart))
    return moves


def _kept_and_added(
    state: MetadataState,
    partition: PartitionInfo,
    known: Iterable[str],
    others: Sequence[str],
    count: int,
    barred: Sequence[str] = (),
) -> list[str]:
    """`count` nodes: those that are known and well first, then others; the order of those that stay is kept."""
    order = [node for node in dict.fromkeys((*known, *others)) if node not in barred and node in state.nodes]
    kept = set(known)

    def rank(node: str) -> tuple[bool, bool, bool, bool]:
        info = state.nodes[node]
        return info.draining, node not in kept, info.expired, node not in partition.isr

    best = set(sorted(order, key=rank)[:count])
    return [node for node in order if node in best]
