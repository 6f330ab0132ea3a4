"""The configuration of a stream, as users write it, as admin requests carry it and as the metadata keeps it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

from liftpy_envelope.ack import AckPolicy
from liftpy_envelope.errors import ConfigError, NameInvalidError, SubjectInvalidError
from liftpy_envelope.limits import BATCH_BYTES_MAX
from liftpy_envelope.names import check_name
from liftpy_envelope.settings import describe, parse_settings, to_plain
from liftpy_envelope.subject import check_literal, check_pattern, reserved_overlap

__all__ = ["INTERNAL_PREFIX", "AckMode", "Compression", "Spread", "StreamConfig", "SyncMode"]

INTERNAL_PREFIX: Final = "__"
"""Names of the system's own streams begin with it."""

_PARTITIONS_MAX: Final = 1_024
_SEGMENT_BYTES_MIN: Final = 64 * 1024
_SEGMENT_BYTES_MAX: Final = 2 * 1024**3


class AckMode(StrEnum):
    """Where acks of plain messages go."""

    REPLY = "reply"  # to the message's reply subject
    ENVELOPE = "envelope"  # only where an envelope asks; the reply subject belongs to the application
    OFF = "off"


class Spread(StrEnum):
    """How messages reach the partitions of a stream that has several."""

    HASH = "hash"  # every leader subscribes the subject and keeps its share
    MAPPING = "mapping"  # partition p subscribes `<partition_prefix>.<p>.<subject>`, fed by a subject mapping


class SyncMode(StrEnum):
    """When a record counts as durable on a node."""

    ALWAYS = "always"  # when it is on disk
    INTERVAL = "interval"  # when the kernel has it; it is on disk within `sync_interval_s`
    NEVER = "never"  # when the kernel has it


class Compression(StrEnum):
    """Compression of record batches on disk and on the wire."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """Everything a stream can be told. Zero means "no limit" wherever a limit is meant.

    Attributes:
        name: Name of the stream.
        subject: NATS subject it stores, wildcards included; "" for the system's own streams, whose names begin with
            `__`: nothing is published to those.
        partitions: Number of partitions; fixed for the stream's life.
        spread: How messages reach several partitions; fixed for the stream's life.
        partition_prefix: First token of the subjects of a stream with `spread = mapping`.
        group: NATS queue group to join, so that streams share a subject between them; for streams without replicas
            whose messages one node stores.
        replicas: Copies of each partition that count for acks.
        observers: Further copies of each partition that follow without counting: never in sync, never leader.
        min_isr: Fewest in-sync replicas with which messages are accepted; by default a majority of `replicas`.
        unclean_leader_election: Where no in-sync replica has a log that can be trusted, and acknowledged messages may
            be missing in all others, the best of them leads without an operator's word.
        acks: Where acks go.
        ack_policy: When they are sent, unless a message says otherwise.
        sync: When a record counts as durable.
        retention_age_s: Records older than this are dropped.
        retention_bytes: The oldest records are dropped beyond this size per partition.
        retention_messages: The oldest records are dropped beyond this number per partition.
        segment_bytes: Size at which a segment file is closed.
        segment_age_s: Age at which a segment file is closed.
        dedupe_window_s: How long a message id is remembered.
        dedupe_ids_max: How many message ids are remembered per partition.
        message_bytes_max: Larger messages, with their headers, are refused.
        compression: Compression of record batches.
        keep_replies: Store the reply subject of every message.
        compact: Whether only the last record of every key is kept; records without a key stay.
        min_compaction_lag_s: Records younger than this are not compacted.
        delete_retention_s: How long a tombstone stays after it was found to be the last record of its key.
        min_dirty_ratio: Share of a partition's log that must have come in since it was compacted last before it is
            compacted again.
        tier: Whether the history goes to the bucket, where the cluster has one.
        local_retention_age_s: Older records leave the nodes' disks once the bucket has them.
        local_retention_bytes: Beyond this size per partition the oldest records leave the nodes' disks once the bucket
            has them. Zero, here and for the age: what is retained stays on disk, too.
    """

    name: str
    subject: str
    partitions: int = 1
    spread: Spread = Spread.HASH
    partition_prefix: str = "lift"
    group: str | None = None
    replicas: int = 1
    observers: int = 0
    min_isr: int | None = None
    unclean_leader_election: bool = False
    acks: AckMode = AckMode.REPLY
    ack_policy: AckPolicy = AckPolicy.ALL
    sync: SyncMode = SyncMode.ALWAYS
    retention_age_s: float = 0.0
    retention_bytes: int = 0
    retention_messages: int = 0
    segment_bytes: int = 256 * 1024 * 1024
    segment_age_s: float = 86_400.0
    dedupe_window_s: float = 120.0
    dedupe_ids_max: int = 6_000_000
    message_bytes_max: int = 64 * 1024 * 1024
    compression: Compression = Compression.NONE
    keep_replies: bool = False
    compact: bool = False
    min_compaction_lag_s: float = 0.0
    delete_retention_s: float = 86_400.0
    min_dirty_ratio: float = 0.5
    tier: bool = True
    local_retention_age_s: float = 0.0
    local_retention_bytes: int = 0

    def __post_init__(self) -> None:
        self._check_names()
        self._check_numbers()
        self._check_group()
        self._check_local_retention()
        reserved = reserved_overlap(self.subject)
        if reserved and self.acks is AckMode.REPLY:
            raise ConfigError(
                "acks",
                f"subject {self.subject!r} overlaps {reserved}, whose reply subjects belong to others; "
                "it needs acks = envelope or acks = off, and allow_reserved_subjects in the settings of the nodes",
            )

    def _check_names(self) -> None:
        try:
            check_name(self.name)
        except NameInvalidError as error:
            raise ConfigError("name", str(error)) from None
        try:
            self._check_subject()
        except SubjectInvalidError as error:
            raise ConfigError("subject", str(error)) from None
        try:
            if self.group is not None:
                check_literal(self.group)
        except SubjectInvalidError:
            raise ConfigError("group", f"{self.group!r:.80} is not a NATS queue group") from None
        try:
            check_name(self.partition_prefix)
        except NameInvalidError:
            raise ConfigError("partition_prefix", f"{self.partition_prefix!r:.80} is not one subject token") from None
        reserved = reserved_overlap(f"{self.partition_prefix}.>")
        if reserved:
            raise ConfigError(
                "partition_prefix", f"{self.partition_prefix!r} is reserved: subjects of {reserved} are not for streams"
            )

    def _check_subject(self) -> None:
        if not self.is_internal:
            check_pattern(self.subject)
        elif self.subject:
            raise ConfigError(
                "subject", f"stream {self.name} is the system's own, as all whose names begin with '__', and has none"
            )

    def _check_numbers(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:  # also refuses NaN
                raise ConfigError(name, f"must be between {low} and {high}, not {describe(value)}")
        if self.min_isr is not None and not 1 <= self.min_isr <= self.replicas:
            raise ConfigError(
                "min_isr", f"must be between 1 and replicas ({self.replicas}), not {describe(self.min_isr)}"
            )

    def _check_group(self) -> None:
        """NATS gives each message to one member of a queue group: whoever gets it must be the one that stores it."""
        if self.group is None:
            return
        if self.partitions > 1 and self.spread is Spread.HASH:
            raise ConfigError(
                "group",
                f"a stream whose {self.partitions} partitions are spread by hash can join no queue group: each leader "
                "would get messages of the others, and drop them; use one partition, or spread = mapping",
            )
        if self.replicas > 1:
            raise ConfigError(
                "group",
                f"a stream with {self.replicas} replicas can join no queue group: after a failover a leader that "
                "stands still would go on getting its share, and lose it; use replicas = 1, or no group",
            )

    def _check_local_retention(self) -> None:
        for name, unit in (("retention_age_s", " s"), ("retention_bytes", " bytes")):
            local, total = getattr(self, f"local_{name}"), getattr(self, name)
            if 0 < total < local:
                raise ConfigError(
                    f"local_{name}",
                    f"{describe(local)}{unit} are more than {name} keeps at all ({describe(total)}{unit}); make it "
                    "smaller, or 0 to keep everything on disk that is retained",
                )

    @property
    def is_internal(self) -> bool:
        """Whether the stream is the system's own: it has no subject, and no node subscribes for it."""
        return self.name.startswith(INTERNAL_PREFIX)

    @property
    def min_isr_effective(self) -> int:
        """`min_isr`, or a majority of the replicas where it was not set."""
        return self.replicas // 2 + 1 if self.min_isr is None else self.min_isr

    @classmethod
    def from_plain(cls, given: object) -> StreamConfig:
        """Read a configuration from JSON, TOML or the metadata.

        Raises:
            ConfigError: the message names the field.
        """
        return parse_settings(cls, given)

    def to_plain(self) -> dict[str, Any]:
        """The mapping that `from_plain` reads back."""
        return to_plain(self)

    def updated(self, changes: dict[str, Any]) -> StreamConfig:
        """This configuration with some fields changed.

        Raises:
            ConfigError: a field is unknown, wrong, or fixed for the stream's life.
        """
        for name in _FIXED:
            if name in changes and changes[name] != self.to_plain()[name]:
                raise ConfigError(name, "is fixed for the life of a stream")
        return parse_settings(type(self), self.to_plain() | changes)

    def differences(self, other: StreamConfig) -> list[str]:
        """Names of the fields in which two configurations differ."""
        return [field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)]

    def partition_subject(self, partition: int) -> str:
        """The subject that a partition's leader subscribes."""
        if self.partitions == 1 or self.spread is Spread.HASH:
            return self.subject
        return f"{self.partition_prefix}.{partition}.{self.subject}"


_FIXED: Final = ("name", "partitions", "spread", "partition_prefix")
_RANGES: Final[tuple[tuple[str, float, float], ...]] = (
    ("partitions", 1, _PARTITIONS_MAX),
    ("replicas", 1, 7),
    ("observers", 0, 16),
    ("retention_age_s", 0, 1e10),
    ("retention_bytes", 0, 2**63),
    ("retention_messages", 0, 2**63),
    ("segment_bytes", _SEGMENT_BYTES_MIN, _SEGMENT_BYTES_MAX),
    ("segment_age_s", 1, 1e10),
    ("dedupe_window_s", 0, 86_400),
    ("dedupe_ids_max", 0, 100_000_000),
    ("message_bytes_max", 1, BATCH_BYTES_MAX // 2),
    ("min_compaction_lag_s", 0, 1e10),
    ("delete_retention_s", 0, 1e10),
    ("min_dirty_ratio", 0, 1),
    ("local_retention_age_s", 0, 1e10),
    ("local_retention_bytes", 0, 2**63),
)
