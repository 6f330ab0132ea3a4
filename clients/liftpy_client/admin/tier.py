"""What admin requests about the bucket answer with."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

__all__ = ["TierStatus", "TieredPartition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredPartition:
    """A partition whose history goes to the bucket, as its leader tells.

    Attributes:
        stream: Name of the stream.
        uuid: UUID of the stream.
        partition: Number of the partition.
        leader: The node that leads it.
        local_start: The first offset on the leader's disk.
        start: The first offset that can be read.
        tiered_end: The bucket has everything below this offset.
        high_watermark: The offset after the last committed record.
        untiered_bytes: Size of the record batches that the bucket does not have yet, about, bytes.
        untiered_age_s: Time for which the oldest of them has been waiting, seconds.
        stored_bytes: Size of the objects that hold its history, bytes.
        stopped: Nothing of it is uploaded until another node leads it, or its leader starts again.
        trouble: What is wrong with it; None while nothing is.
    """

    stream: str
    uuid: str
    partition: int
    leader: str
    local_start: int
    start: int
    tiered_end: int
    high_watermark: int
    untiered_bytes: int
    untiered_age_s: float
    stored_bytes: int
    stopped: bool = False
    trouble: str | None = None

    @classmethod
    def from_answer(cls, partition: dict[str, Any]) -> TieredPartition:
        """Read what a node said."""
        return cls(**{name: partition[name] for name in cls.__slots__ if name in partition})


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatus:
    """How the bucket is.

    Attributes:
        url: URL of the bucket; None where no node has one.
        state: Off, ok, slow, busy, away, full or refused; of the node that is worst off.
        message: Why, for people; "" while all is well.
        since: Time since when; None while all is well.
        room_s: Seconds until the first disk is full at the present rate, while the bucket takes nothing; else None.
        untiered_bytes: Size of the record batches that it does not have yet, about, in all partitions, bytes.
        untiered_age_s: Time for which the oldest of them has been waiting, seconds.
        partition_count: How many partitions go to it.
        trouble_count: How many of them are in trouble.
        partitions: Some of them, those in trouble first, and then those of which most waits.
        requests: Requests to the store since the nodes started, by kind, without those of `read_requests`.
        failures: Jobs that failed since the nodes started, by code.
        unreachable: Nodes that did not answer, whose partitions are missing.
        endpoint: URL of a store that is not AWS, as nodes reach it; None: AWS, or an older node.
        region: Region of the bucket, where the nodes' settings name one.
        read_requests: Requests to the store since the nodes started for consumers that read from it, by kind.
        deleted_objects: How many the nodes deleted since they started, as nothing needed them any more.
        raw: Everything that the node said.
    """

    url: str | None
    state: str
    message: str
    since: datetime | None
    room_s: float | None
    untiered_bytes: int
    untiered_age_s: float
    partition_count: int
    trouble_count: int
    partitions: tuple[TieredPartition, ...]
    requests: dict[str, int]
    failures: dict[str, int]
    unreachable: tuple[str, ...] = ()
    endpoint: str | None = None
    region: str | None = None
    read_requests: dict[str, int] = field(default_factory=dict)
    deleted_objects: int = 0
    raw: dict[str, Any] = field(repr=False, default_factory=dict)

    @classmethod
    def from_answer(cls, answer: dict[str, Any]) -> TierStatus:
        """Read what a node said."""
        since_ns = answer["since_ns"]
        return cls(
            **{name: answer[name] for name in _PLAIN},
            since=None if since_ns is None else datetime.fromtimestamp(since_ns / 1e9, UTC),
            partitions=tuple(map(TieredPartition.from_answer, answer["partitions"])),
            unreachable=tuple(answer["unreachable"]),
            endpoint=answer.get("endpoint"),
            region=answer.get("region"),
            read_requests=answer.get("read_requests", {}),
            deleted_objects=answer.get("deleted_objects", 0),
            raw=answer,
        )


_PLAIN = (
    "url",
    "state",
    "message",
    "room_s",
    "untiered_bytes",
    "untiered_age_s",
    "partition_count",
    "trouble_count",
    "requests",
    "failures",
)
