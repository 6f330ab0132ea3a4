"""Bringing a cluster back from its bucket: what there is, bringing it back, and seeing that it is there.

`plan` changes nothing. `apply` makes the bucket that of the cluster that is asked, and brings back one stream after the
other; done again, it finishes what was cut short.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from liftpy_client.admin.details import StreamDetails

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from liftpy_client.connection.cluster import Cluster

    Progress = Callable[[int, int], None]
    """Told of how many partitions are done, of how many."""

__all__ = [
    "PartitionHistory",
    "RestorePlan",
    "RestoredStream",
    "StreamHistory",
    "apply_restore",
    "plan_restore",
    "verify_restore",
]

_PAGE: Final = 128
_PARTITIONS_AT_ONCE: Final = 64
_STREAMS_AT_ONCE: Final = 64
_TIMEOUT_S: Final = 120.0  # a bucket may be slow, and a stream can have a thousand partitions
_LOOK_EVERY_S: Final = 0.25
_INTERNAL_PREFIX: Final = "__"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHistory:
    """What the bucket holds of a partition.

    Attributes:
        partition: Number of the partition.
        start: The first offset there is.
        end: The recovery point: the offset after the last record. What came after it is lost.
        last_epoch: The highest leader epoch that the bucket knows of.
        records: How many there are, about: of records that were compacted away the bucket may know.
        stored_bytes: Size of the objects that hold them, without those that many partitions share, bytes.
        newest_ns: Timestamp of the last record, ns since the epoch; 0 when there is none.
        problem: What is not as it should be; "" when nothing is.
        is_readable: What the bucket says of it makes sense; a stream with a partition of which it does not is left out.
    """

    partition: int
    start: int
    end: int
    last_epoch: int
    records: int
    stored_bytes: int
    newest_ns: int
    problem: str
    is_readable: bool

    @classmethod
    def from_answer(cls, answer: dict[str, Any]) -> PartitionHistory:
        """Read it from an answer of a node."""
        return cls(**{name: answer[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHistory:
    """What the bucket holds of a stream.

    Attributes:
        uuid: UUID of the stream.
        name: Name of the stream.
        config: Settings of the stream, as plain values.
        created_ns: When it was created, ns since the epoch.
        is_here: Whether it is back already.
        partitions: Partitions by number.
    """

    uuid: str
    name: str
    config: dict[str, Any]
    created_ns: int
    is_here: bool
    partitions: tuple[PartitionHistory, ...]

    @property
    def is_internal(self) -> bool:
        """Whether it is liftpy's own."""
        return self.name.startswith(_INTERNAL_PREFIX)

    @property
    def records(self) -> int:
        """Of all partitions."""
        return sum(partition.records for partition in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """What can be brought back.

    Attributes:
        cluster_id: Cluster id of the cluster whose bucket it is.
        own_cluster_id: Id of the cluster that was asked; both are the same once it has taken the bucket over.
        written_ns: When the catalog of the bucket was written last, by the clock of the store, ns since the epoch.
        streams: Streams in the order of their names.
    """

    cluster_id: str
    own_cluster_id: str
    written_ns: int
    streams: tuple[StreamHistory, ...]

    @property
    def missing(self) -> list[StreamHistory]:
        """Streams that are not back."""
        return [stream for stream in self.streams if not stream.is_here]

    @property
    def partitions(self) -> list[PartitionHistory]:
        """Of all streams."""
        return [partition for stream in self.streams for partition in stream.partitions]

    @property
    def records(self) -> int:
        """Of all streams."""
        return sum(stream.records for stream in self.streams)

    @property
    def stored_bytes(self) -> int:
        """Of all streams."""
        return sum(partition.stored_bytes for partition in self.partitions)

    @property
    def recovery_point(self) -> datetime | None:
        """Time of the newest record; None when there is none."""
        newest_ns = max((partition.newest_ns for partition in self.partitions), default=0)
        return datetime.fromtimestamp(newest_ns / 1e9, UTC) if newest_ns else None

    @property
    def problems(self) -> list[str]:
        """What is not as it should be, for people."""
        return [
            f"stream {stream.name} partition {partition.partition}: {partition.problem}"
            for stream in self.streams
            for partition in stream.partitions
            if partition.problem
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredStream:
    """What became of a stream.

    Attributes:
        uuid: UUID of the stream.
        name: Name of the stream.
        restored: Whether it was brought back now; otherwise it was here, or there is a problem.
        problem: Why it is not back; "" when it is.
    """

    uuid: str
    name: str
    restored: bool
    problem: str


async def plan_restore(cluster: Cluster, progress: Progress | None = None) -> RestorePlan:
    """Read what the bucket of a cluster holds. Changes nothing.

    Args:
        cluster: Cluster that is to have it.
        progress: Told of how many partitions were looked at, of how many.

    Raises:
        AdminError: the cluster has no bucket, or nothing in it, or cannot read it.
        NodeUnavailableError: nobody answers.
    """
    bucket, streams = await _streams(cluster)
    wanted = [(stream["uuid"], number) for stream in streams for number in range(stream["partitions"])]
    found: dict[str, list[PartitionHistory]] = {stream["uuid"]: [] for stream in streams}
    for first in range(0, len(wanted), _PARTITIONS_AT_ONCE):
        some = wanted[first : first + _PARTITIONS_AT_ONCE]
        answer = await cluster.request("RESTORE.LOOK", {"partitions": [list(each) for each in some]}, _TIMEOUT_S)
        for (uuid, _), partition in zip(some, answer["partitions"], strict=True):
            found[uuid].append(PartitionHistory.from_answer(partition))
        if progress is not None:
            progress(first + len(some), len(wanted))
    histories = [
        StreamHistory(
            **{name: stream[name] for name in ("uuid", "name", "config", "created_ns", "is_here")},
            partitions=tuple(found[stream["uuid"]]),
        )
        for stream in streams
    ]
    return RestorePlan(
        cluster_id=bucket["cluster_id"],
        own_cluster_id=bucket["own_cluster_id"],
        written_ns=bucket["written_ns"],
        streams=tuple(sorted(histories, key=lambda each: (each.name, each.uuid))),
    )


async def _streams(cluster: Cluster) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    streams: list[dict[str, Any]] = []
    while True:
        after = streams[-1]["uuid"] if streams else ""
        bucket = await cluster.request("RESTORE.BUCKET", {"after": after, "limit": _PAGE}, _TIMEOUT_S)
        streams += bucket["streams"]
        if not bucket["streams"] or len(streams) >= bucket["total"]:
            return bucket, streams


async def apply_restore(
    cluster: Cluster, plan: RestorePlan, *, replicas_max: int | None = None, progress: Progress | None = None
) -> list[RestoredStream]:
    """Bring back what a plan names and is not here. May be repeated.

    Args:
        cluster: Cluster that is to have it; it has no streams but those of the bucket.
        plan: Plan of the same cluster. What the bucket has got since comes back, too.
        replicas_max: Number of copies at most, where there are fewer nodes than a stream had replicas.
        progress: Told of how many partitions are back, of how many.

    Returns:
        What became of each of them: those with a problem are not back, and are no reason to leave out others.

    Raises:
        AdminError: the cluster has other streams, or another one still writes to the bucket.
        NodeUnavailableError: nobody answers; it may be done in part.
    """
    await cluster.request("RESTORE.TAKE", {"cluster_id": plan.cluster_id}, _TIMEOUT_S)
    # What consumers committed comes last: it is swept while its stream is not there.
    missing = sorted(plan.missing, key=lambda stream: stream.is_internal)
    total = sum(len(stream.partitions) for stream in missing)
    done = 0
    outcomes: list[RestoredStream] = []
    for some in _parts(missing):
        body = {"uuids": [stream.uuid for stream in some], "replicas_max": replicas_max}
        answer = await cluster.request("RESTORE.APPLY", body, _TIMEOUT_S)
        outcomes += [
            RestoredStream(**{name: each[name] for name in RestoredStream.__slots__}) for each in answer["streams"]
        ]
        done += sum(len(stream.partitions) for stream in some)
        if progress is not None:
            progress(done, total)
    return outcomes


def _parts(streams: Sequence[StreamHistory]) -> Iterator[list[StreamHistory]]:
    """Streams that one request may be about: those of users and liftpy's own never together."""
    some: list[StreamHistory] = []
    for stream in streams:
        partitions = len(stream.partitions) + sum(len(each.partitions) for each in some)
        is_full = partitions > _PARTITIONS_AT_ONCE or len(some) == _STREAMS_AT_ONCE
        if some and (is_full or stream.is_internal != some[0].is_internal):
            yield some
            some = []
        some.append(stream)
    if some:
        yield some


async def verify_restore(cluster: Cluster, plan: RestorePlan, *, within_s: float = 30.0) -> list[str]:
    """Compare what a cluster has with what a plan says. Returns what is amiss, for people; nothing when all is well.

    Every partition must have a leader, and nothing that the bucket holds may lie beyond its end.

    Args:
        cluster: Cluster that was restored.
        plan: Plan by which it was restored.
        within_s: Time for which it is looked again while something is amiss, seconds: what has just come back elects
            its leaders first.

    Raises:
        NodeUnavailableError: nobody answers.
    """
    deadline = time.monotonic() + within_s
    while amiss := await _all_amiss(cluster, plan):
        if time.monotonic() >= deadline:
            break
        await asyncio.sleep(_LOOK_EVERY_S)
    return amiss


async def _all_amiss(cluster: Cluster, plan: RestorePlan) -> list[str]:
    amiss: list[str] = []
    here: dict[str, StreamDetails] = {}
    offset, total = 0, 1
    while offset < total:
        page = {"offset": offset, "limit": _PAGE, "internal": True}
        answer = await cluster.request("STREAM.LIST", page, _TIMEOUT_S)
        total = answer["total"]
        details = map(StreamDetails.from_answer, answer["streams"])
        here |= {stream.uuid: stream for stream in details}
        if not answer["streams"]:
            break  # some were deleted meanwhile
        offset += len(answer["streams"])
    for stream in plan.streams:
        found = here.get(stream.uuid)
        if found is None:
            amiss.append(f"stream {stream.name} ({stream.uuid}) is not back")
        else:
            amiss += _amiss(stream, found)
    return amiss


def _amiss(history: StreamHistory, stream: StreamDetails) -> Iterator[str]:
    for wanted, found in zip(history.partitions, stream.partitions, strict=False):
        what = f"stream {history.name} partition {wanted.partition}"
        if found.high_watermark is None:
            yield f"{what}: it has no leader that tells how it is"
        elif found.high_watermark < wanted.end:
            yield f"{what}: it ends at offset {found.high_watermark}, and the bucket has it up to {wanted.end}"
    if len(stream.partitions) != len(history.partitions):
        yield f"stream {history.name} has {len(stream.partitions)} partitions, and had {len(history.partitions)}"
