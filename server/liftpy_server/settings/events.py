"""The settings of events on a node: table `[events]`."""

from __future__ import annotations

from dataclasses import dataclass

from liftpy_envelope.errors import ConfigError

__all__ = ["EventsConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsConfig:
    """Whether and how this node stores what happens to the cluster.

    Attributes:
        enabled: Whether this node stores events, and tells those of its own.
        retention_age_s: Retention of the stream of the events when this node creates it, seconds; 0 for ever.
        retention_bytes: Size of the stream of the events when this node creates it; 0 for any.
    """

    enabled: bool = True
    retention_age_s: float = 30 * 86_400.0
    retention_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 0 <= self.retention_age_s <= 1e10:  # also refuses NaN
            raise ConfigError("events.retention_age_s", f"must be between 0 and {1e10:g}, not {self.retention_age_s}")
        if not 0 <= self.retention_bytes <= 2**50:
            raise ConfigError("events.retention_bytes", f"must be between 0 and {2**50}, not {self.retention_bytes}")
