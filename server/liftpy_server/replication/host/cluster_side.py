"""A node's side of its cluster: it registers, drives its replicas, and looks after the other nodes."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, Final

from liftpy_server.metadata.state import LEVEL
from liftpy_server.replication.core.view import ReplicationTimes
from liftpy_server.replication.host.proposals import ReplicaProposals
from liftpy_server.replication.host.replica_host import ReplicaHost
from liftpy_server.replication.host.sessions import NodeSession

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftpy_log.checkpoint import Checkpoint
    from liftpy_log.clock import Clock
    from liftpy_server.consensus.store import RaftMetadataStore
    from liftpy_server.metadata.state import MetadataState
    from liftpy_server.replication.host.durability_record import DurabilityRecord
    from liftpy_server.replication.host.local import LocalReplica
    from liftpy_server.settings.cluster import ClusterConfig
    from liftpy_server.settings.config import NodeConfig

__all__ = ["ClusterSide"]

_HAND_OVER_S: Final = 1.0
_LOOK_S: Final = 0.01
_LOGS_TOLD_MAX: Final = 2_000  # in one command, of each kind; who has more of them says that it can prove none


class ClusterSide:
    """A node's side of its cluster: registers the node, drives its replicas, and watches the other nodes.

    Args:
        config: Settings of the node.
        metadata: Metadata of the cluster.
        pull: What others need to know of the node's pull server.
        clock: Monotonic clock.
        on_leadership: Called when a replica begins or ceases to lead.
        on_commits: Called once after a pass in which records were committed.
        on_superseded: Called when another process has registered as this node.

    Attributes:
        incarnation: Incarnation of the node in the metadata.
    """

    def __init__(
        self,
        config: NodeConfig,
        metadata: RaftMetadataStore,
        pull: dict[str, Any],
        clock: Clock,
        on_leadership: Callable[[LocalReplica], None],
        on_commits: Callable[[], None],
        on_superseded: Callable[[str], None],
    ) -> None:
        cluster = config.cluster
        timeout_s = cluster.leader_timeout_s
        times = ReplicationTimes(
            replica_lag_max_s=cluster.replica_lag_max_s,
            leader_timeout_s=timeout_s,
            request_timeout_s=0.75 * timeout_s,
            retry_s=0.5 * timeout_s,
            preferred_return_s=cluster.preferred_return_s,
        )
        self.port = metadata.port or None
        self.incarnation = 0
        self._node_id = config.node_id
        self._proposals = ReplicaProposals(config.node_id, metadata.propose_many)
        self.host = ReplicaHost(
            *(config.node_id, times, clock, self._proposals, metadata.unheard_s, on_leadership, on_commits),
            tls=_follow_tls(cluster),
        )
        node = pull | {
            "node_id": config.node_id,
            "rack": config.rack,
            "metadata_host": None if self.port is None else cluster.reachable_host,
            "metadata_port": self.port,
            "level": LEVEL,
        }
        self.sessions = NodeSession(metadata, node, timeout_s, self._registered, on_superseded, self._failed_logs)

    async def register(
        self,
        durability_record: DurabilityRecord,
        open_logs: Callable[[MetadataState], Awaitable[None]],
        checkpoint: Checkpoint,
    ) -> None:
        """Get an incarnation; from here on the metadata counts on this node.

        Args:
            durability_record: What the node can prove.
            open_logs: Opens the logs that the metadata says are here; `durability_record` hears what it finds.
            checkpoint: What the node knew of them when it stopped last.

        Raises:
            MetadataRefusedError: the cluster does not want it.
            OSError: what the node can prove can not be read or written down.
        """
        self.host.durability_record = durability_record
        state = await self.sessions.reach()
        await open_logs(state)
        is_log_proven = durability_record.is_proven(state, self._node_id, was_clean=checkpoint.clean)
        lost_logs = durability_record.lost_logs(state, self._node_id, checkpoint.mark)
        cut_logs = durability_record.cut_logs(state, self._node_id)
        failed_logs = self._failed_logs(state)
        held = {(*log, checkpoint.mark(*log)) for log in (*lost_logs[:_LOGS_TOLD_MAX], *failed_logs)}
        await self.sessions.register(
            is_log_proven=is_log_proven and max(len(lost_logs), len(cut_logs)) <= _LOGS_TOLD_MAX,
            lost_logs=lost_logs[:_LOGS_TOLD_MAX],
            failed_logs=failed_logs,
            cut_logs=cut_logs[:_LOGS_TOLD_MAX],
            known_ends=sorted(each for each in held if each[2]),
        )
        durability_record.doubt_recorded(state, self._node_id)

    def _failed_logs(self, state: MetadataState) -> list[tuple[str, int]]:
        """Those that the node registers with; their replicas tell of the others, one by one."""
        assert self.host.durability_record is not None, "it is there before the node registers"
        return self.host.durability_record.failed_logs(state, self._node_id)[:_LOGS_TOLD_MAX]

    def _registered(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.host.register(incarnation)

    def start(self) -> None:
        """Begin to lead and to follow, as the metadata says."""
        self.host.start()
        self.sessions.start()

    async def follow(self, state: MetadataState) -> None:
        """Follow a change of the metadata."""
        await self.sessions.follow(state)

    async def leave(self) -> None:
        """Let others lead before anything stops, so that nobody waits for a time-out."""
        await self.sessions.leave()
        await self.sessions.stop()
        deadline_s = self.host.now_s() + _HAND_OVER_S
        while self.host.is_leading and self.host.now_s() < deadline_s:  # noqa: ASYNC110 - roles change in plain calls
            await asyncio.sleep(_LOOK_S)

    async def stop(self) -> None:
        """Follow nobody any more."""
        await self._proposals.stop()
        await self.host.stop()


def _follow_tls(cluster: ClusterConfig) -> ssl.SSLContext | None:
    """How the pull servers of other nodes are verified: as the system does, and by the authority of the cluster."""
    paths = cluster.tls_paths
    if paths is None:
        return None
    certificate, key, authority = paths
    context = ssl.create_default_context()
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate, key)
    return context
