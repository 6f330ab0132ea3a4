"""What admin requests answer with: streams, partitions, nodes and the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from liftpy_envelope.stream_config import StreamConfig

__all__ = [
    "ClusterDetails",
    "MoveDetails",
    "NodeDetails",
    "PartitionDetails",
    "PartitionPlace",
    "ReassignmentDetails",
    "ReplicaDetails",
    "StreamDetails",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDetails:
    """A follower of a partition, as its leader sees it.

    Attributes:
        node: Where it is.
        log_end: Offset after its last durable record; None while the leader does not know.
        lag_messages: How many records it lacks; None while the leader does not know.
        in_sync: Whether it is in the in-sync replica set.
    """

    node: str
    log_end: int | None
    lag_messages: int | None
    in_sync: bool

    @classmethod
    def from_answer(cls, replica: dict[str, Any]) -> ReplicaDetails:
        """Read what a node said; of a replica that its leader has not heard yet it says the node only."""
        return cls(
            node=replica["node"],
            log_end=replica.get("log_end"),
            lag_messages=replica.get("lag_messages"),
            in_sync=bool(replica.get("in_sync")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDetails:
    """One partition, as its leader reports it.

    Attributes:
        replicas: Nodes with a replica; the first is the preferred leader.
        isr: Nodes of the in-sync replica set.
        observers: Nodes whose replica is an observer: no ack waits for it.
        target: Nodes of the replicas after the current reassignment; None without one.
        log_start: First readable offset. This and all other numbers are None if the leader does not answer.
        local_start: First offset on the leader's disk; lower ones are read from the bucket.
        tiered_end: Offset after the last record in the bucket; None if the stream is not tiered.
        high_watermark: Offset after the last committed record.
        log_end: Offset after the last record.
        offline: Why the partition refuses to work; None while it is well.
        replica_states: The followers.
        unreachable: Whether its leader did not answer, or there is none.
        dedupe_window_shortened: Message ids are forgotten before the stream's `dedupe_window_s` is over.
        dedupe_known_s: How long ago a message may be for its id to be remembered surely.
        ordered_producers: Pairs of groups and source partitions whose outputs it remembers.
    """

    partition: int
    leader: str | None
    leader_epoch: int
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    observers: tuple[str, ...] = ()
    target: tuple[str, ...] | None = None
    log_start: int | None
    high_watermark: int | None
    log_end: int | None
    bytes: int | None
    segments: int | None
    offline: str | None
    replica_states: tuple[ReplicaDetails, ...] = ()
    unreachable: bool = False
    local_start: int | None = None
    tiered_end: int | None = None
    dedupe_window_shortened: bool | None = None
    dedupe_known_s: float | None = None
    ordered_producers: int | None = None

    @classmethod
    def from_answer(cls, partition: dict[str, Any]) -> PartitionDetails:
        """Read what a node said."""
        known = {name: partition[name] for name in cls.__slots__ if name in partition}
        target = partition.get("target")
        return cls(
            **known
            | {name: tuple(partition.get(name, ())) for name in ("replicas", "isr", "observers")}
            | {"target": None if target is None else tuple(target)}
            | {"replica_states": tuple(map(ReplicaDetails.from_answer, partition.get("replica_states", ())))}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDetails:
    """One stream.

    Attributes:
        messages: Committed records that are there now, in the partitions whose leaders answered.
        bytes: Size on their disks.
        unreachable_partitions: How many leaders' numbers are missing.
        warnings: What its creator should know.
        raw: Everything that the node said.
    """

    name: str
    uuid: str
    config: StreamConfig
    created: datetime
    version: int
    paused: bool
    read_only: bool
    messages: int
    bytes: int
    partitions: tuple[PartitionDetails, ...]
    unreachable_partitions: int = 0
    warnings: tuple[str, ...] = ()
    raw: dict[str, Any] = field(repr=False, default_factory=dict)

    @classmethod
    def from_answer(cls, stream: dict[str, Any], warnings: list[str] | None = None) -> StreamDetails:
        """Read what a node said."""
        return cls(
            name=stream["name"],
            uuid=stream["uuid"],
            config=StreamConfig.from_plain(stream["config"]),
            created=datetime.fromtimestamp(stream["created_ns"] / 1e9, UTC),
            version=stream["version"],
            paused=stream["paused"],
            read_only=stream["read_only"],
            messages=stream["messages"],
            bytes=stream["bytes"],
            partitions=tuple(PartitionDetails.from_answer(partition) for partition in stream["partitions"]),
            unreachable_partitions=stream.get("unreachable_partitions", 0),
            warnings=tuple(warnings or ()),
            raw=stream,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDetails:
    """One node of the cluster.

    Attributes:
        state: `up`, `draining` or `expired`: its session ended, and it leads nothing until it is back.
        incarnation: Counts its starts.
        leaderships: How many partitions it leads.
        replicas: How many it keeps a copy of.
        out_of_sync: Number of them in which it is not in sync.
        lag_messages: How many records it lacks in all.
        metadata_leader: Whether it leads the cluster's metadata.
        metadata_voter: Whether it votes on the cluster's metadata.
        unreachable: Whether it did not answer.
        free_bytes: Room on the disk of its data directory; None where it does not tell.
        resident_bytes: Memory of its process; likewise.
        cpu_s: Seconds of CPU that its process has used; likewise.
        raw: Everything that was said of it.
    """

    node_id: str
    state: str
    incarnation: int
    rack: str | None
    leaderships: int
    replicas: int
    out_of_sync: int
    lag_messages: int
    metadata_leader: bool
    metadata_voter: bool
    unreachable: bool
    free_bytes: int | None = None
    resident_bytes: int | None = None
    cpu_s: float | None = None
    raw: dict[str, Any] = field(repr=False, default_factory=dict)

    @classmethod
    def from_answer(cls, node: dict[str, Any]) -> NodeDetails:
        """Read what a node said."""
        load = node.get("load") or {}
        loads: dict[str, Any] = {name: load.get(name) for name in ("free_bytes", "resident_bytes", "cpu_s")}
        told = {name: node[name] for name in cls.__slots__ if name not in loads and name != "raw"}
        return cls(**told, **loads, raw=node)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """A partition that needs attention.

    Attributes:
        missing: Replicas that count, and are not in sync.
    """

    stream: str
    partition: int
    leader: str | None
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    missing: tuple[str, ...]

    @classmethod
    def from_answer(cls, place: dict[str, Any]) -> PartitionPlace:
        """Read what a node said."""
        sets = {name: tuple(place[name]) for name in ("replicas", "isr", "missing")}
        return cls(stream=place["stream"], partition=place["partition"], leader=place["leader"], **sets)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentDetails:
    """A partition whose replicas are moved, or would be.

    Attributes:
        target: Replicas afterwards.
        target_observers: Those of them that do not count.
        adding: The new ones, and how far they are.
        removing: Nodes that give up their copy when the new ones are in sync.
        progress: How much of the log the new ones have, from 0 to 1.
    """

    stream: str
    partition: int
    target: tuple[str, ...]
    target_observers: tuple[str, ...]
    adding: tuple[ReplicaDetails, ...]
    removing: tuple[str, ...]
    progress: float

    @classmethod
    def from_answer(cls, move: dict[str, Any]) -> ReassignmentDetails:
        """Read what a node said."""
        return cls(
            stream=move["stream"],
            partition=move["partition"],
            target=tuple(move["target"]),
            target_observers=tuple(move["target_observers"]),
            adding=tuple(map(ReplicaDetails.from_answer, move["adding"])),
            removing=tuple(move["removing"]),
            progress=float(move["progress"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveDetails:
    """What begins to move, or would.

    Attributes:
        count: How many partitions.
        moves: The first of them.
        cancelled: How many reassignments were ended.
        warnings: What could not be moved, and why.
    """

    count: int
    moves: tuple[ReassignmentDetails, ...]
    cancelled: int
    warnings: tuple[str, ...]

    @classmethod
    def from_answer(cls, answer: dict[str, Any]) -> MoveDetails:
        """Read what a node said."""
        return cls(
            count=answer["move_count"],
            moves=tuple(map(ReassignmentDetails.from_answer, answer["moves"])),
            cancelled=answer["cancelled"],
            warnings=tuple(answer.get("warnings", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDetails:
    """The cluster as a whole.

    Attributes:
        metadata_leader: The node that leads the metadata, as far as the node that answered knows.
        voters: Ids of the nodes that vote on the metadata.
        streams: How many there are, without the internal ones.
        partitions: How many those have.
        under_replicated_count: Partitions with fewer replicas in sync than they should have, of internal streams, too.
        under_replicated: The first of them.
        leaderless_count: Partitions that take no messages, since none of their in-sync replicas is up.
        leaderless: The first of them.
        reassignment_count: Partitions whose replicas are being moved.
        reassignments: The first of them.
        raw: Everything that was said.
    """

    cluster_id: str
    metadata_leader: str | None
    voters: tuple[str, ...]
    nodes: tuple[NodeDetails, ...]
    streams: int
    partitions: int
    under_replicated_count: int
    under_replicated: tuple[PartitionPlace, ...]
    leaderless_count: int
    leaderless: tuple[PartitionPlace, ...]
    reassignment_count: int
    reassignments: tuple[ReassignmentDetails, ...]
    raw: dict[str, Any] = field(repr=False, default_factory=dict)

    @classmethod
    def from_answer(cls, cluster: dict[str, Any]) -> ClusterDetails:
        """Read what a node said."""
        plain = ("cluster_id", "metadata_leader", "streams", "partitions")
        counts = ("under_replicated_count", "leaderless_count", "reassignment_count")
        return cls(
            **{name: cluster[name] for name in (*plain, *counts)},
            voters=tuple(voter["node_id"] for voter in cluster["voters"]),
            nodes=tuple(map(NodeDetails.from_answer, cluster["nodes"])),
            under_replicated=tuple(map(PartitionPlace.from_answer, cluster["under_replicated"])),
            leaderless=tuple(map(PartitionPlace.from_answer, cluster["leaderless"])),
            reassignments=tuple(map(ReassignmentDetails.from_answer, cluster["reassignments"])),
            raw=cluster,
        )
