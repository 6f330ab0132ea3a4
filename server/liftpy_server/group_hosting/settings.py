"""The settings of consumer groups on a node: table `[groups]`."""

from __future__ import annotations

from dataclasses import dataclass

from liftpy_envelope.errors import ConfigError

__all__ = ["GroupsConfig"]

_PARTITIONS_MAX = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsConfig:
    """How this node keeps consumer groups.

    Attributes:
        partitions: of the stream of the groups, when this node creates it; fixed from then on.
        retention_s: a group without members that committed nothing for so long is forgotten, with its offsets.
    """

    partitions: int = 16
    retention_s: float = 7 * 86_400.0

    def __post_init__(self) -> None:
        if not 1 <= self.partitions <= _PARTITIONS_MAX:
            raise ConfigError("groups.partitions", f"must be between 1 and {_PARTITIONS_MAX}, not {self.partitions}")
        if not 60 <= self.retention_s <= 1e9:  # also refuses NaN
            raise ConfigError("groups.retention_s", f"must be between 60 and {1e9:g} seconds, not {self.retention_s}")
