"""What coordinators can not know of a request, because they know no other logs and no clock of the cluster.

A commit may name an offset that is not there. The node sees that where it leads the partition itself; elsewhere nobody
asks another node for every commit, and the reader who goes on there is told. Before an offset is refused, and before
anybody is told what is committed without being a member, whose generations would give it away, the metadata's leader
is asked whether this node leads still: it may have been deposed and not have heard of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from liftpy_envelope.group_offsets import NO_MEMBER, CommitRefusal, CommitRequest, OffsetFetchRequest
from liftpy_envelope.group_routing import GROUPS_STREAM, partition_of_group
from liftpy_envelope.groups import GroupError
from liftpy_envelope.pull import PartitionKey

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from liftpy_server.consensus.store import RaftMetadataStore
    from liftpy_server.metadata.state import MetadataState
    from liftpy_server.partition.partition import Partition

__all__ = ["RequestChecks", "without"]


class _Beyond(NamedTuple):
    """A partition in which an offset was to be committed that is not there."""

    stream: str
    partition: Partition


class RequestChecks:
    """Checks requests against what a coordinator cannot see: the logs of other streams, and who leads now.

    Args:
        node_id: Id of this node.
        partitions: Those of which this node has a replica, in any role, as they are now.
        metadata: Metadata of the cluster.
    """

    def __init__(self, node_id: str, partitions: Mapping[PartitionKey, Partition], metadata: RaftMetadataStore) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._metadata = metadata

    async def refusals(self, request: CommitRequest) -> tuple[CommitRefusal, ...]:
        """The offsets of a commit that are beyond the end of a partition that this node leads.

        Raises:
            MetadataUnavailableError: some may be, and nobody knows whether this node leads.
        """
        beyond = self._beyond(request)
        if not beyond:
            return ()
        state = await self._metadata.read()
        return tuple(
            CommitRefusal(key, GroupError.INVALID_REQUEST)
            for key, (stream, partition) in beyond.items()
            if self._leads(state, stream, key, partition.epoch)
        )

    def _beyond(self, request: CommitRequest) -> dict[PartitionKey, _Beyond]:
        found = {}
        for uuid, stream, offsets in request.streams:
            for row in offsets:
                key = PartitionKey(uuid, row.partition)
                partition = self._partitions.get(key)
                if partition is not None and partition.is_leading and row.offset > partition.log.log_end:
                    found[key] = _Beyond(stream, partition)
        return found

    async def may_tell(self, request: OffsetFetchRequest, epoch: int) -> bool:
        """Whether this node, which coordinates the group since a leader epoch, does so still.

        Raises:
            MetadataUnavailableError: nobody knows.
        """
        if request.member_id != NO_MEMBER:
            return True
        state = await self._metadata.read()
        info = state.streams.get(GROUPS_STREAM)
        if info is None:
            return False
        number = partition_of_group(request.group, len(info.partitions))
        return self._leads(state, GROUPS_STREAM, PartitionKey(bytes.fromhex(info.uuid), number), epoch)

    def _leads(self, state: MetadataState, stream: str, key: PartitionKey, epoch: int) -> bool:
        info = state.streams.get(stream)
        if info is None or info.uuid != key.uuid.hex() or key.partition >= len(info.partitions):
            return False
        partition = info.partitions[key.partition]
        return (partition.leader, partition.leader_epoch) == (self._node_id, epoch)


def without(request: CommitRequest, keys: Collection[PartitionKey]) -> CommitRequest:
    """The request without these partitions."""
    streams = (
        stream._replace(
            offsets=tuple(row for row in stream.offsets if PartitionKey(stream.uuid, row.partition) not in keys)
        )
        for stream in request.streams
    )
    return request._replace(streams=tuple(streams))
