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
        node: where it is.
        up: its node has a session.
        in_last_isr: it was in the in-sync replica set as it was last agreed on.
        observer: it follows without counting.
        state: `ok`, `empty`, `unproven` (its end may be missing), `missing` (it was gone when the node started),
            `failed`, or `unknown` where the node does not tell.
        why: of the state, in words.
        log_start: first offset there is.
        log_end: offset after the last record.
        last_epoch: leader epoch of the last record; -1 when there is none.
        high_watermark: records below it are known there to have been committed.
        last_timestamp_ns: of the newest record.
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
        end: the recovery point, the offset after the last record; None where the bucket does not tell.
        newest_ns: timestamp of that record; 0 when there is none.
        problem: why it is not as it should be, or does not tell; "" when nothing is wrong.
        last_epoch: leader epoch of that record; -1 when there is none.
    """

    end: int | None
    newest_ns: int
    problem: str
    last_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecovery:
    """A partition that needs a decision, or was asked for.

    Attributes:
        leader: who leads it now.
        version: of the partition; a decision can name it.
        logs: what its replicas have.
        known_end: records below it were committed, as somebody knows for certain.
        chosen: the node whose log leads, or would; None where it cannot be decided.
        chosen_end: the offset after the last record of that log.
        lost: how many committed records that log lacks, at least.
        loss: what is lost by it and must be accepted, in words.
        refusal: why it cannot be decided.
        bucket: what the bucket has; None for a stream that is in none.
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
        partitions: the first of them.
        count: how many there are.
        recovered: of how many it was decided.
        warnings: what is to be done next.
        raw: everything that was said.
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
        node: where it is, in `quarantine/` of its data directory.
        name: of the file or directory.
        stream: to which it belonged; None for files of the node.
        partition: of that stream; None for all that the node had of it.
        size_bytes: on that disk.
        moved_ns: when it came there.
        why: in words.
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
        items: the newest.
        count: how many there are.
        size_bytes: of all of them.
        unreachable: nodes that did not tell.
        raw: everything that was said.
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
