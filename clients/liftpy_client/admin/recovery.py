"""What an operator sees and decides of partitions that nobody can lead without a decision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "BucketDetails",
    "LogDetails",
    "PartitionRecovery",
    "QuarantineDetails",
    "QuarantinedDetails",
    "RecoveryDetails",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDetails:
    """What one replica has. Numbers are None where its node does not tell.

    Attributes:
        node: Where it is.
        up: Whether its node has a session.
        in_last_isr: Whether it was in the in-sync replica set as it was last agreed on.
        observer: Whether it follows without counting.
        state: `ok`, `empty`, `unproven` (its end may be missing), `missing` (it was gone when the node started),
            `failed`, or `unknown` where the node does not tell.
        why: Reason for the state, in words.
        log_start: First offset there is.
        log_end: Offset after the last record.
        last_epoch: Leader epoch of the last record; -1 when there is none.
        high_watermark: Records below it are known there to have been committed.
        last_timestamp_ns: Time of the newest record, ns since the epoch.
    """

    node: str
    up: bool
    in_last_isr: bool
    observer: bool
    state: str
    why: str | None
    log_start: int | None
    log_end: int | None
    last_epoch: int | None
    high_watermark: int | None
    last_timestamp_ns: int | None

    @classmethod
    def from_answer(cls, log: dict[str, Any]) -> LogDetails:
        """Read what a node said."""
        return cls(**{name: log[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketDetails:
    """What the bucket has of a partition.

    Attributes:
        end: The recovery point, the offset after the last record; None where the bucket does not tell.
        newest_ns: Timestamp of that record; 0 when there is none.
        problem: Why it is not as it should be, or does not tell; "" when nothing is wrong.
        last_epoch: Leader epoch of that record; -1 when there is none.
    """

    end: int | None
    newest_ns: int
    problem: str
    last_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecovery:
    """A partition that needs a decision, or was asked for.

    Attributes:
        leader: Node that leads it now.
        version: Version of the partition; a decision can name it.
        logs: What its replicas have.
        known_end: Records below it were committed, as somebody knows for certain.
        chosen: The node whose log leads, or would; None where it cannot be decided.
        chosen_end: The offset after the last record of that log.
        lost: How many committed records that log lacks, at least.
        loss: What is lost by it and must be accepted, in words.
        refusal: Why it cannot be decided.
        bucket: What the bucket has; None for a stream that is in none.
    """

    partition: int
    leader: str | None
    version: int
    logs: tuple[LogDetails, ...]
    known_end: int
    chosen: str | None
    chosen_end: int | None
    lost: int
    loss: str | None
    refusal: str | None
    bucket: BucketDetails | None

    @classmethod
    def from_answer(cls, partition: dict[str, Any]) -> PartitionRecovery:
        """Read what a node said."""
        known = {name: partition[name] for name in cls.__slots__ if name not in {"logs", "bucket"}}
        logs = tuple(map(LogDetails.from_answer, partition["logs"]))
        bucket = partition["bucket"]
        return cls(**known, logs=logs, bucket=None if bucket is None else BucketDetails(**bucket))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryDetails:
    """What a decision came to, or would.

    Attributes:
        partitions: The first of them.
        count: How many there are.
        recovered: Number of partitions for which it was decided.
        warnings: What is to be done next.
        raw: Everything that was said.
    """

    partitions: tuple[PartitionRecovery, ...]
    count: int
    recovered: int
    warnings: tuple[str, ...]
    raw: dict[str, Any] = field(repr=False, default_factory=dict)

    @classmethod
    def from_answer(cls, answer: dict[str, Any]) -> RecoveryDetails:
        """Read what a node said."""
        return cls(
            partitions=tuple(map(PartitionRecovery.from_answer, answer["partitions"])),
            count=answer["partition_count"],
            recovered=answer["recovered"],
            warnings=tuple(answer["warnings"]),
            raw=answer,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedDetails:
    """A replica, a directory or a file that a node moved out of the way. Nobody but people deletes it.

    Attributes:
        node: Where it is, in `quarantine/` of its data directory.
        name: Name of the file or directory.
        stream: Stream to which it belonged; None for files of the node.
        partition: Partition of that stream; None for all that the node had of it.
        size_bytes: Size on that disk, bytes.
        moved_ns: When it came there.
        why: Reason, in words.
    """

    node: str
    name: str
    stream: str | None
    partition: int | None
    size_bytes: int
    moved_ns: int
    why: str

    @classmethod
    def from_answer(cls, item: dict[str, Any]) -> QuarantinedDetails:
        """Read what a node said."""
        return cls(**{name: item[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineDetails:
    """What lies in quarantine.

    Attributes:
        items: The newest.
        count: How many there are.
        size_bytes: Size of all of them, bytes.
        unreachable: Nodes that did not tell.
        raw: Everything that was said.
    """

    items: tuple[QuarantinedDetails, ...]
    count: int
    size_bytes: int
    unreachable: tuple[str, ...]
    raw: dict[str, Any] = field(repr=False, default_factory=dict)

    @classmethod
    def from_answer(cls, answer: dict[str, Any]) -> QuarantineDetails:
        """Read what a node said."""
        return cls(
            items=tuple(map(QuarantinedDetails.from_answer, answer["items"])),
            count=answer["count"],
            size_bytes=answer["bytes"],
            unreachable=tuple(answer["unreachable"]),
            raw=answer,
        )
