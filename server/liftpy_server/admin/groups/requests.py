"""The bodies of admin requests about consumer groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from liftpy_envelope.errors import ConfigError, FrameError
from liftpy_envelope.groups import check_group

__all__ = ["GroupListRequest", "GroupNameRequest", "GroupOffsetsRequest"]

GROUPS_LIMIT_MAX: Final = 500
OFFSETS_LIMIT: Final = 500  # with metadata of 1 KiB each they fit into what a NATS server takes by default


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListRequest:
    """A page of the groups: those whose names come after one, in the order of the names."""

    after: str = ""
    limit: int = GROUPS_LIMIT_MAX

    def __post_init__(self) -> None:
        if not 0 < self.limit <= GROUPS_LIMIT_MAX:
            raise ConfigError("limit", f"must be between 1 and {GROUPS_LIMIT_MAX}, not {self.limit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNameRequest:
    """Request that names a group."""

    group: str

    def __post_init__(self) -> None:
        _check_group(self.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsetsRequest:
    """A group's name, and how many of its offsets were told before."""

    group: str
    offsets_from: int = 0

    def __post_init__(self) -> None:
        _check_group(self.group)
        if self.offsets_from < 0:
            raise ConfigError("offsets_from", f"must be 0 or more, not {self.offsets_from}")


def _check_group(group: str) -> None:
    try:
        check_group(group)
    except FrameError as error:
        raise ConfigError("group", str(error)) from None
