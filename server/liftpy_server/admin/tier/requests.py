"""The bodies of admin requests about the bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from liftpy_envelope.errors import ConfigError
from liftpy_envelope.settings import parse_settings
from liftpy_server.tier.host.retention_ends import ENDS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TierStatusRequest", "read_tier_ends"]

_PARTITIONS_MAX = 1_000  # with their names they fit into what a NATS server takes


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatusRequest:
    """How many partitions to tell of: those in trouble first, then those of which most waits."""

    limit: int = 100

    def __post_init__(self) -> None:
        if not 0 <= self.limit <= _PARTITIONS_MAX:
            raise ConfigError("limit", f"must be between 0 and {_PARTITIONS_MAX}, not {self.limit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _TierEnds:
    partitions: tuple[str, ...]


def read_tier_ends(body: dict[str, Any]) -> Sequence[str]:
    """The partitions that a node asks about, each `uuid/number`.

    Raises:
        ConfigError: it is malformed, or asks for too many.
    """
    partitions = parse_settings(_TierEnds, body).partitions
    if len(partitions) > ENDS_MAX:
        raise ConfigError("partitions", f"at most {ENDS_MAX} at once, not {len(partitions)}")
    return partitions
