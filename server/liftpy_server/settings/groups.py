"""The settings of consumer groups on a node: table `[groups]`."""

from __future__ import annotations

from dataclasses import dataclass

from liftpy_envelope.errors import ConfigError

__all__ = ["GroupsConfig"]

_PARTITIONS_MAX = 1_024
_QUOTA_MAX = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsConfig:
    """How this node keeps consumer groups.

    Attributes:
        partitions: Partitions of the stream of the groups, when this node creates it; fixed from then on.
        retention_s: A group without members that committed nothing for so long is forgotten, with its offsets.
        groups_max: Number of groups that the node coordinates; further ones are refused.
        bytes_max: Maximum bytes of offsets, metadata and members, of all groups that the node coordinates.
        group_bytes_max: Size of one group, bytes; more is refused.
        client_groups_max: Groups that clients at one address make.
        client_bytes_max: Maximum bytes of those groups.
    """

    partitions: int = 16
    retention_s: float = 7 * 86_400.0
    groups_max: int = 10_000
    bytes_max: int = 256 * 1024 * 1024
    group_bytes_max: int = 4 * 1024 * 1024
    client_groups_max: int = 5_000
    client_bytes_max: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 1 <= self.partitions <= _PARTITIONS_MAX:
            raise ConfigError("groups.partitions", f"must be between 1 and {_PARTITIONS_MAX}, not {self.partitions}")
        if not 60 <= self.retention_s <= 1e9:  # also refuses NaN
            raise ConfigError("groups.retention_s", f"must be between 60 and {1e9:g} seconds, not {self.retention_s}")
        for name in ("groups_max", "bytes_max", "group_bytes_max", "client_groups_max", "client_bytes_max"):
            value = getattr(self, name)
            if not 1 <= value <= _QUOTA_MAX:
                raise ConfigError(f"groups.{name}", f"must be between 1 and {_QUOTA_MAX}, not {value}")
