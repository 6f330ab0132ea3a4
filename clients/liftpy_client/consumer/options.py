"""Fetch options of a consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from liftpy_client.consumer.decode import EXTRA_COLUMNS
from liftpy_client.consumer.filtering import SubjectFilter
from liftpy_client.errors import UsageError
from liftpy_envelope.limits import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX

__all__ = ["ConsumeOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """Fetch options of a consumer.

    Attributes:
        fetch_bytes: Approximate size of one fetch.
        prefetch_bytes: Limit of prefetched bytes, over all partitions and streams of the consumer.
        wait_ms: Time in ms that a fetch waits at the node for the first message.
        response_timeout_s: Seconds beyond `wait_ms` after which the connection counts as dead.
        on_lost: What to do when the next offset was deleted: raise an `error`, or continue at
            `earliest`, `latest` or `new`, which mean what they mean as a start.
        read_from: `leader`, or `nearest` for any in-sync replica. Replicas may show messages a moment later.
        rack: With `nearest`, read only replicas in this rack. If it has none, the leader is read.
        subjects: NATS patterns. Only messages whose subject matches one are delivered; () for all.
        extra_columns: More columns of Arrow record batches: `message_id` (binary) and `leader_epoch` (int32).
    """

    fetch_bytes: int = 4 * 1024 * 1024
    prefetch_bytes: int = 16 * 1024 * 1024
    wait_ms: int = 1_000
    response_timeout_s: float = 10.0
    on_lost: Literal["error", "earliest", "latest", "new"] = "error"
    read_from: Literal["leader", "nearest"] = "leader"
    rack: str | None = None
    subjects: tuple[str, ...] = ()
    extra_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.fetch_bytes <= FETCH_BYTES_MAX:
            raise UsageError(f"fetch_bytes must be between 1 and {FETCH_BYTES_MAX}, not {self.fetch_bytes}")
        if self.prefetch_bytes < 1:
            raise UsageError(f"prefetch_bytes must be 1 or more, not {self.prefetch_bytes}")
        if not 0 <= self.wait_ms <= FETCH_WAIT_MS_MAX:
            raise UsageError(f"wait_ms must be between 0 and {FETCH_WAIT_MS_MAX}, not {self.wait_ms}")
        if not 0 < self.response_timeout_s <= 3_600:
            raise UsageError(f"response_timeout_s must be above 0 and up to 3600, not {self.response_timeout_s}")
        if self.on_lost not in {"error", "earliest", "latest", "new"}:
            raise UsageError(f"on_lost: {self.on_lost!r} is not one of error, earliest, latest, new")
        if self.read_from not in {"leader", "nearest"}:
            raise UsageError(f"read_from: {self.read_from!r} is not one of leader, nearest")
        if self.rack is not None and self.read_from != "nearest":
            raise UsageError("rack: it chooses among replicas, so it needs read_from='nearest'")
        _check_names(self.subjects, self.extra_columns)


def _check_names(subjects: object, extra: object) -> None:
    if not isinstance(subjects, tuple):
        raise UsageError(f"subjects: a tuple of NATS subjects, not {subjects!r}")
    if subjects:
        SubjectFilter(subjects)
    if not isinstance(extra, tuple) or len(extra) > len({each for each in EXTRA_COLUMNS if each in extra}):
        raise UsageError(f"extra_columns: {extra!r:.200} is not a tuple of some of {', '.join(EXTRA_COLUMNS)}")
