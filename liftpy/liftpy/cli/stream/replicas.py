"""How well partitions are replicated, read from what their leaders tell of them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_client.errors import NodeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_client.admin.details import PartitionDetails, ReplicaDetails, StreamDetails

__all__ = ["end_of", "in_sync_wanted", "is_replicated", "is_under_replicated", "lag_of", "replica_state", "role_of"]


def end_of(stream: str, part: PartitionDetails) -> int:
    """The offset after the last committed message.

    Raises:
        NodeUnavailableError: nobody knows it.
    """
    if part.high_watermark is None:
        raise NodeUnavailableError(
            f"stream {stream} partition {part.partition}: the leader does not answer, so its end is unknown; retry"
        )
    return part.high_watermark


def in_sync_wanted(stream: StreamDetails, part: PartitionDetails) -> int:
    """How many in-sync replicas there should be; while replicas are moved, those that come do not count yet."""
    counting = sum(node not in part.observers for node in part.replicas)
    return counting if part.target is None else min(stream.config.replicas, counting)


def is_under_replicated(stream: StreamDetails, part: PartitionDetails) -> bool:
    """Whether fewer replicas are in sync than there should be."""
    return len(part.isr) < in_sync_wanted(stream, part)


def is_replicated(streams: Iterable[StreamDetails]) -> bool:
    """Whether any of the streams has, wants or gets more than one copy."""
    return any(
        stream.config.replicas > 1 or any(len(part.replicas) > 1 for part in stream.partitions) for stream in streams
    )


def replica_state(part: PartitionDetails, node: str) -> ReplicaDetails | None:
    """What the leader knows of a follower; None when it told nothing of it."""
    return next((state for state in part.replica_states if state.node == node), None)


def lag_of(part: PartitionDetails) -> int | None:
    """Messages that the slowest follower that counts is behind; None when that is not known, or there is none."""
    lags = (state.lag_messages for state in part.replica_states if state.node not in (part.leader, *part.observers))
    return max((lag for lag in lags if lag is not None), default=None)


def role_of(part: PartitionDetails, node: str) -> str:
    """What a node is to the partition: leader, observer, in sync, joining, leaving or behind."""
    if node == part.leader:
        return "leader"
    if part.target is not None and node not in part.target:
        return "leaving"
    if node in part.isr:
        return "in sync"
    if node in part.observers:
        return "observer"
    return "behind" if part.target is None else "joining"
