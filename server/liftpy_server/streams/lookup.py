"""What streams and partitions there are on a node, and who may read them here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_envelope.errors import ErrorCode
from liftpy_server.streams.changes import StreamChanges

if TYPE_CHECKING:
    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.durability.durability import Durability
    from liftpy_server.partition.partition import Partition
    from liftpy_server.replication.host.local import LocalReplica
    from liftpy_server.replication.host.replica_host import ReplicaHost
    from liftpy_server.streams.opening import LocalStream

__all__ = ["StreamLookup"]


class StreamLookup:
    """Finds streams and partitions of the node.

    Args:
        host: Host of the replicas.

    Attributes:
        by_uuid: The streams of which something is here.
        by_key: The partitions.
        by_durability: The partitions, by what group commit knows of their logs.
        by_interval: Those that are synced at intervals.
    """

    def __init__(self, host: ReplicaHost) -> None:
        self._host = host
        self.by_uuid: dict[str, LocalStream] = {}
        self.by_key: dict[PartitionKey, Partition] = {}
        self.by_durability: dict[Durability, Partition] = {}
        self.by_interval: dict[PartitionKey, Partition] = {}
        self._changes = StreamChanges()
        self._followed_s: dict[PartitionKey, float] = {}

    @property
    def partitions(self) -> list[Partition]:
        """All partitions of which this node has a replica."""
        return list(self.by_key.values())

    def lookup(self, key: PartitionKey) -> Partition | ErrorCode:
        """The partition with this key where this node leads it, or why it is not here."""
        partition = self.by_key.get(key)
        if partition is None:
            return ErrorCode.NOT_LEADER if key.uuid in self._changes.known else ErrorCode.UNKNOWN_STREAM
        return partition if partition.gone is None else partition.gone

    def lookup_replica(self, key: PartitionKey) -> LocalReplica | ErrorCode:
        """The replica with this key, for those who follow it, or why it is not here."""
        replica = self._host.replicas.get(key)
        if replica is not None:
            return replica
        return ErrorCode.NOT_LEADER if key.uuid in self._changes.known else ErrorCode.UNKNOWN_STREAM

    def lookup_readable(self, key: PartitionKey) -> Partition | ErrorCode:
        """The partition with this key where this node leads it, or follows and is in sync as far as it knows."""
        partition, replica = self.by_key.get(key), self._host.replicas.get(key)
        if partition is None or partition.gone is not ErrorCode.NOT_LEADER or replica is None:
            return self.lookup(key)
        now_s = self._host.now_s()
        for heard_s in self._host.heard_from_leader(replica).values():
            self._followed_s[key] = heard_s
        is_heard = now_s - self._followed_s.get(key, float("-inf")) < self._host.times.leader_timeout_s
        return partition if is_heard and replica.is_in_sync else ErrorCode.NOT_LEADER
