"""Bodies of the pull protocol's `find_coordinator`: which node to ask for a consumer group.

A group lives in one partition of the stream of the groups, and its coordinator is that partition's leader.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from liftpy_envelope.groups import (
    CLIENT_BYTES_MAX,
    MESSAGE_LENGTH_MAX,
    PARTITIONS_END,
    GroupError,
    check_group,
    is_number,
    require,
    require_text,
)
from liftpy_envelope.partitioner import partition_of

__all__ = [
    "FIND_GROUPS_MAX",
    "GROUPS_STREAM",
    "Coordinator",
    "FindCoordinatorRequest",
    "FindCoordinatorResult",
    "partition_of_group",
]

FIND_GROUPS_MAX: Final = 1_000
GROUPS_STREAM: Final = "__consumer_offsets"


def partition_of_group(group: str, partition_count: int) -> int:
    """The partition of the stream of the groups in which a group lives, for ever."""
    return partition_of(group.encode(), partition_count)


class FindCoordinatorRequest(NamedTuple):
    """Which nodes coordinate these groups?"""

    groups: tuple[str, ...]

    def to_body(self) -> list[Any]:
        """The request's body as it crosses the wire."""
        return [list(self.groups)]

    @classmethod
    def from_body(cls, body: Any) -> FindCoordinatorRequest:
        """Check and take apart a request's body.

        Raises:
            FrameError: it is malformed.
        """
        require(type(body) is list and len(body) == 1 and type(body[0]) is list, "find_coordinator")
        require(len(body[0]) <= FIND_GROUPS_MAX, "find_coordinator: groups")
        for group in body[0]:
            check_group(group, "find_coordinator")
        return cls(tuple(body[0]))


class Coordinator(NamedTuple):
    """Where one group is coordinated.

    Attributes:
        partition: of the stream of the groups.
        node_id: "" with an error.
        port: of its pull server; 0 with an error.
    """

    group: str
    error: GroupError
    message: str
    partition: int
    node_id: str = ""
    host: str = ""
    port: int = 0
    tls: bool = False


class FindCoordinatorResult(NamedTuple):
    """The answer to a `FindCoordinatorRequest`, group by group in its order."""

    coordinators: tuple[Coordinator, ...]

    def to_result(self) -> list[Any]:
        """The response's result as it crosses the wire."""
        return [[row.group, int(row.error), *row[2:]] for row in self.coordinators]

    @classmethod
    def from_result(cls, result: Any) -> FindCoordinatorResult:
        """Check and take apart a response's result.

        Raises:
            FrameError: it is malformed.
        """
        what = "find_coordinator result"
        require(type(result) is list and len(result) <= FIND_GROUPS_MAX, what)
        found = []
        for row in result:
            require(type(row) is list and len(row) == 8, what)
            group, error, message, partition, node_id, host, port, tls = row
            check_group(group, what)
            require(type(message) is str and len(message) <= MESSAGE_LENGTH_MAX, what)
            require(is_number(error) and is_number(partition, PARTITIONS_END) and is_number(port, 65_536), what)
            require_text(node_id, CLIENT_BYTES_MAX, what)
            require_text(host, CLIENT_BYTES_MAX, what)
            require(type(tls) is bool, what)
            found.append(Coordinator(group, GroupError.of(error), *row[2:]))
        return cls(tuple(found))
