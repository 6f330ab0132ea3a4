"""The bodies of admin requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from liftpy_envelope.errors import ConfigError
from liftpy_envelope.settings import parse_settings

__all__ = [
    "FindRequest",
    "ListRequest",
    "MetadataRequest",
    "NameRequest",
    "NoRequest",
    "PurgeRequest",
    "ReadOnlyRequest",
    "UpdateRequest",
    "read_update",
]

LIST_LIMIT_MAX: Final = 256  # a page stays well below the payload that NATS takes


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRequest:
    """Request without fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    """The streams wanted; None for all."""

    streams: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """A page of the list of streams, in the order of their names; with `internal`, also the system's own."""

    offset: int = 0
    limit: int = 256
    internal: bool = False

    def __post_init__(self) -> None:
        if not self.offset >= 0 or not 0 < self.limit <= LIST_LIMIT_MAX:
            raise ConfigError("limit", f"must be between 1 and {LIST_LIMIT_MAX}, and offset 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRequest:
    """Request that names a stream."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnlyRequest:
    """A stream's name, and whether it takes no messages from now on."""

    name: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeRequest:
    """What to delete: everything below `offset`, by default everything committed.

    Attributes:
        name: Name of the stream.
        partition: Number of the partition; by default all.
        offset: First offset to keep.
    """

    name: str
    partition: int | None = None
    offset: int | None = None

    def __post_init__(self) -> None:
        for name in ("partition", "offset"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 2**63:
                raise ConfigError(name, f"must be 0 or more, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRequest:
    """Request that names a subject."""

    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRequest:
    """Settings to change, by name; `expected_version` refuses the change when someone was quicker."""

    name: str
    changes: dict[str, Any]
    expected_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _UpdateHead:
    name: str
    expected_version: int | None = None

    def __post_init__(self) -> None:
        if self.expected_version is not None and not 0 <= self.expected_version < 2**63:
            raise ConfigError("expected_version", f"is no version of a stream: {self.expected_version}")


def read_update(body: dict[str, Any]) -> UpdateRequest:
    """Read an update request; its changes are checked against the stream later.

    Raises:
        ConfigError: it is malformed.
    """
    rest = dict(body)
    changes = rest.pop("changes", None)
    head = parse_settings(_UpdateHead, rest)
    if not isinstance(changes, dict) or not changes:
        raise ConfigError("changes", "must be a table of the settings to change")
    return UpdateRequest(name=head.name, changes=changes, expected_version=head.expected_version)
