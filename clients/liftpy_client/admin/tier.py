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
        stream: name of the stream.
        uuid: of the stream.
        partition: its number.
        leader: the node that leads it.
        local_start: the first offset on the leader's disk.
        start: the first offset that can be read.
        tiered_end: the bucket has everything below this offset.
        high_watermark: the offset after the last committed record.
        untiered_bytes: of record batches that the bucket does not have yet, about.
        untiered_age_s: for how long the oldest of them has been waiting.
        stored_bytes: of the objects that hold its history.
        stopped: nothing of it is uploaded until another node leads it, or its leader starts again.
        trouble: what is wrong with it; None while nothing is.
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
        url: of it; None where no node has one.
        state: off, ok, slow, busy, away, full or refused; of the node that is worst off.
        message: why, for people; "" while all is well.
        since: since when; None while all is well.
        room_s: seconds until the first disk is full at the present rate, while the bucket takes nothing; else None.
        untiered_bytes: of record batches that it does not have yet, about, in all partitions.
        untiered_age_s: for how long the oldest of them has been waiting.
        partition_count: how many partitions go to it.
        trouble_count: how many of them are in trouble.
        partitions: some of them, those in trouble first, and then those of which most waits.
        requests: to the store since the nodes started, by kind, without those of `read_requests`.
        failures: jobs that failed since the nodes started, by code.
        unreachable: nodes that did not answer, whose partitions are missing.
        endpoint: URL of a store that is not AWS, as nodes reach it; None: AWS, or an older node.
        region: of the bucket, where the nodes' settings name one.
        read_requests: to the store since the nodes started for consumers that read from it, by kind.
        deleted_objects: how many the nodes deleted since they started, as nothing needed them any more.
        raw: everything that the node said.
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
