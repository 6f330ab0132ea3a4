"""The bodies of requests that bring streams back from the bucket."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from liftpy_envelope.errors import ConfigError

__all__ = [
    "RESTORED_PARTITIONS_MAX",
    "ApplyRequest",
    "BucketRequest",
    "TakeRequest",
    "read_look",
]

RESTORED_PARTITIONS_MAX: Final = 1_024
"""So many partitions may a request be about: their answers fit into what a NATS server takes."""

_LIMIT_MAX: Final = 128  # with their settings they fit into what a NATS server takes
_REPLICAS_MAX: Final = 7
_UUID: Final = re.compile("[0-9a-f]{32}")


def _check_uuid(field: str, value: str) -> None:
    if not _UUID.fullmatch(value):
        raise ConfigError(field, f"{value!r:.80} is not 32 hexadecimal digits")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRequest:
    """A page of the streams in the bucket: those behind a uuid."""

    after: str = ""
    limit: int = _LIMIT_MAX

    def __post_init__(self) -> None:
        if not 0 < self.limit <= _LIMIT_MAX:
            raise ConfigError("limit", f"must be between 1 and {_LIMIT_MAX}, not {self.limit}")
        if self.after:
            _check_uuid("after", self.after)


def read_look(body: dict[str, Any]) -> list[tuple[str, int]]:
    """Read a request for where partitions end: `partitions`, as [uuid, number].

    Raises:
        ConfigError: it is malformed.
    """
    given = body.get("partitions")
    if body.keys() != {"partitions"} or not isinstance(given, list) or len(given) > RESTORED_PARTITIONS_MAX:
        raise ConfigError("partitions", f"must be a list of up to {RESTORED_PARTITIONS_MAX} pairs, [uuid, number]")
    for row in given:
        is_pair = isinstance(row, list) and [type(each) for each in row] == [str, int]
        if not is_pair or not 0 <= row[1] < RESTORED_PARTITIONS_MAX:
            raise ConfigError("partitions", f"{row!r:.80} is not a uuid and the number of a partition")
        _check_uuid("partitions", row[0])
    return [(uuid, number) for uuid, number in given]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeRequest:
    """The cluster whose bucket becomes that of this one."""

    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyRequest:
    """Streams to bring back.

    Attributes:
        uuids: UUIDs of the streams.
        replicas_max: Number of copies at most, where there are fewer nodes than a stream had replicas.
    """

    uuids: tuple[str, ...]
    replicas_max: int | None = None

    def __post_init__(self) -> None:
        for uuid in self.uuids:
            _check_uuid("uuids", uuid)
        if not 0 < len(self.uuids) <= _LIMIT_MAX:
            raise ConfigError("uuids", f"must name 1 to {_LIMIT_MAX} streams, not {len(self.uuids)}")
        if self.replicas_max is not None and not 1 <= self.replicas_max <= _REPLICAS_MAX:
            raise ConfigError("replicas_max", f"must be between 1 and {_REPLICAS_MAX}, not {self.replicas_max}")
