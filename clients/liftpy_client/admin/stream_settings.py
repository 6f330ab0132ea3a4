"""The settings of a stream as keyword arguments, for type checkers: the fields of `StreamConfig`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from liftpy_envelope.ack import AckPolicy
    from liftpy_envelope.stream_config import AckMode, Compression, Spread, SyncMode

__all__ = ["StreamChanges", "StreamSettings"]


class StreamSettings(TypedDict, total=False):
    """Settings of a new stream; see `StreamConfig`."""

    partitions: int
    spread: Spread | str
    partition_prefix: str
    group: str | None
    replicas: int
    observers: int
    min_isr: int | None
    unclean_leader_election: bool
    acks: AckMode | str
    ack_policy: AckPolicy | str
    sync: SyncMode | str
    retention_age_s: float
    retention_bytes: int
    retention_messages: int
    segment_bytes: int
    segment_age_s: float
    dedupe_window_s: float
    dedupe_ids_max: int
    message_bytes_max: int
    compression: Compression | str
    keep_replies: bool
    compact: bool
    min_compaction_lag_s: float
    delete_retention_s: float
    min_dirty_ratio: float
    tier: bool
    local_retention_age_s: float
    local_retention_bytes: int


class StreamChanges(StreamSettings, total=False):
    """Changes of a stream's settings."""

    subject: str
