"""How a consumer fetches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from liftpy_client.consumer.filtering import SubjectFilter
from liftpy_client.errors import UsageError
from liftpy_envelope.limits import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX

__all__ = ["ConsumeOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """How a consumer fetches.

    Attributes:
        fetch_bytes: about how much a fetch asks for.
        prefetch_bytes: how much is fetched ahead of what is taken, over all partitions and streams of the consumer.
        wait_ms: how long a fetch waits at the node for the first message. A node that hangs is noticed after a little
            more than that.
        response_timeout_s: how much longer than that until the connection counts as dead.
        on_lost: what to do when the next offset is no longer there.
        read_from: `leader`, or `nearest`: any replica that is in sync, which may show messages a moment later.
        rack: with `nearest`, only replicas in this rack are near; where there is none, the leader is read.
        subjects: only messages whose subject one of these NATS patterns matches; () for all.
    """

    fetch_bytes: int = 4 * 1024 * 1024
    prefetch_bytes: int = 16 * 1024 * 1024
    wait_ms: int = 1_000
    response_timeout_s: float = 10.0
    on_lost: Literal["error", "earliest", "latest"] = "error"
    read_from: Literal["leader", "nearest"] = "leader"
    rack: str | None = None
    subjects: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.fetch_bytes <= FETCH_BYTES_MAX:
            raise UsageError(f"fetch_bytes must be between 1 and {FETCH_BYTES_MAX}, not {self.fetch_bytes}")
        if self.prefetch_bytes < 1:
            raise UsageError(f"prefetch_bytes must be 1 or more, not {self.prefetch_bytes}")
        if not 0 <= self.wait_ms <= FETCH_WAIT_MS_MAX:
            raise UsageError(f"wait_ms must be between 0 and {FETCH_WAIT_MS_MAX}, not {self.wait_ms}")
        if not 0 < self.response_timeout_s <= 3_600:
            raise UsageError(f"response_timeout_s must be above 0 and up to 3600, not {self.response_timeout_s}")
        if self.on_lost not in {"error", "earliest", "latest"}:
            raise UsageError(f"on_lost: {self.on_lost!r} is not one of error, earliest, latest")
        if self.read_from not in {"leader", "nearest"}:
            raise UsageError(f"read_from: {self.read_from!r} is not one of leader, nearest")
        if self.rack is not None and self.read_from != "nearest":
            raise UsageError("rack: it chooses among replicas, so it needs read_from='nearest'")
        subjects: object = self.subjects
        if not isinstance(subjects, tuple):
            raise UsageError(f"subjects: a tuple of NATS subjects, not {subjects!r}")
        if self.subjects:
            SubjectFilter(self.subjects)
