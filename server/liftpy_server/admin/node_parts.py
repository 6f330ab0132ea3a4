"""The parts of a node that its admin requests, its health and its metrics look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from liftpy_log.clock import Clock
    from liftpy_log.data_dir import DataDir
    from liftpy_log.histogram import Histogram
    from liftpy_log.storage.files import FileCache
    from liftpy_server.canary.host import CanaryHost
    from liftpy_server.consensus.store import RaftMetadataStore
    from liftpy_server.events.node_events import NodeEvents
    from liftpy_server.groups.host.group_host import GroupHost
    from liftpy_server.handover.handover import Handover
    from liftpy_server.ingest.connection import IngestConnection
    from liftpy_server.listeners.refusals import ListenerRefusals
    from liftpy_server.partition.group_commits import GroupCommits
    from liftpy_server.partition.outbox import Outbox
    from liftpy_server.pull.server import PullServer
    from liftpy_server.settings.config import NodeConfig
    from liftpy_server.streams.streams import Streams
    from liftpy_server.tier.host.side import TierSide
    from liftpy_server.tier.reads.reads import ColdReads

__all__ = ["NodeParts"]


class DiskWatch(Protocol):
    """Looks after the disk."""

    @property
    def storage_full(self) -> bool:
        """Whether nothing more is stored."""
        ...

    @property
    def free_bytes(self) -> int:
        """Room on the disk of the data directory, as it was seconds ago."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """See the module. They run by the time that they are handed over.

    Attributes:
        incarnation: Incarnation of the node.
        started_ns: When its process started.
        follow_token: Admits the other nodes of the cluster.
        tier: The bucket; None without one.
        cold: Reads the bucket; None without one.
        canary: Messages that are published and read back; None without one.
        durations: Durations of what the node does, by what it is.
        wait_followed: Waits until the node does what the metadata says now.
        was_removed: The cluster goes on without the node of this incarnation.
    """

    config: NodeConfig
    clock: Clock
    incarnation: int
    started_ns: int
    follow_token: str
    refusals: ListenerRefusals
    metadata: RaftMetadataStore
    data_dir: DataDir
    files: FileCache
    streams: Streams
    maintenance: DiskWatch
    group_commits: GroupCommits
    groups: GroupHost
    ingest: IngestConnection
    outbox: Outbox
    pull: PullServer
    handover: Handover
    events: NodeEvents
    tier: TierSide | None
    cold: ColdReads | None
    canary: CanaryHost | None
    durations: Mapping[str, Histogram]
    wait_followed: Callable[[], Awaitable[None]]
    was_removed: Callable[[int], None]
