"""Bodies of the pull protocol's `find_coordinator`: which node to ask for a consumer group.

A group lives in one partition of the stream of the groups, and its coordinator is that partition's leader.
"""

from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from liftpy_envelope.bodies import PartitionNumber
from liftpy_envelope.groups import CLIENT_BYTES_MAX, GroupError, Message, check_group, check_text
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
_AT_MOST: Final = Meta(max_length=FIND_GROUPS_MAX)


def partition_of_group(group: str, partition_count: int) -> int:
    """The partition of the stream of the groups in which a group lives, for ever."""
    return partition_of(group.encode(), partition_count)


class FindCoordinatorRequest(NamedTuple):
    """Which nodes coordinate these groups?"""

    groups: Annotated[tuple[str, ...], _AT_MOST]

    def check(self) -> None:
        """Refuse names that are none."""
        for group in self.groups:
            check_group(group)


class Coordinator(NamedTuple):
    """Where one group is coordinated.

    Attributes:
        partition: Partition of the stream of the groups.
        node_id: "" with an error.
        port: Port of the coordinator's pull server; 0 with an error.
    """

    group: str
    error: GroupError
    message: Message
    partition: PartitionNumber
    node_id: str = ""
    host: str = ""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    tls: bool = False


class FindCoordinatorResult(NamedTuple):
    """The answer to a `FindCoordinatorRequest`, group by group in its order."""

    coordinators: Annotated[tuple[Coordinator, ...], _AT_MOST]

    def check(self) -> None:
        """Refuse names that are none."""
        for found in self.coordinators:
            check_group(found.group)
            check_text(found.node_id, CLIENT_BYTES_MAX, "node_id")
            check_text(found.host, CLIENT_BYTES_MAX, "host")
