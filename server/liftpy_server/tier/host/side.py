"""A node's side of the bucket: the worker process, what moves history there, and what the rest of the node asks."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.settings import to_plain
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.host.catalog_keeper import CatalogKeeper
from liftpy_server.tier.host.counters import TierCounters
from liftpy_server.tier.host.retention_ends import LeaderEnds
from liftpy_server.tier.host.staged_rows import StagedRows
from liftpy_server.tier.host.status import DiskRoom, tier_status
from liftpy_server.tier.host.tierer import Tierer
from liftpy_server.tier.reads.reads import ColdReads
from liftpy_server.tier.requests import CountsJob
from liftpy_server.tier.schedule.retention import local_age_s, local_start
from liftpy_server.tier.worker.process import TierWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor
    from pathlib import Path

    from liftpy_log.clock import Clock
    from liftpy_log.storage.disk import Disk
    from liftpy_log.storage.files import FileCache
    from liftpy_server.consensus.store import RaftMetadataStore
    from liftpy_server.metadata.state import NodeInfo
    from liftpy_server.partition.partition import Partition
    from liftpy_server.settings.tier import TierConfig
    from liftpy_server.tier.host.retention_ends import Requests
    from liftpy_server.tier.worker.port import Worker

__all__ = ["TierSide"]

logger = logging.getLogger(__name__)

_CHECK_TIMEOUT_S: Final = 10.0
_COUNT_TIMEOUT_S: Final = 0.5
_COLD: Final = "cold"
_STAGED: Final = "staged"


class _Identity:
    """This node, whose incarnation is known only after it has registered."""

    def __init__(self, node_id: str, metadata: RaftMetadataStore, incarnation: Callable[[], int]) -> None:
        self.node_id = node_id
        self._metadata = metadata
        self._incarnation = incarnation

    @property
    def incarnation(self) -> int:
        return self._incarnation()

    @property
    def cluster_id(self) -> str:
        return self._metadata.cluster_id


class _Members:
    """The cluster as its metadata have it."""

    def __init__(self, metadata: RaftMetadataStore) -> None:
        self._metadata = metadata

    @property
    def nodes(self) -> Mapping[str, NodeInfo]:
        return self._metadata.state.nodes

    @property
    def is_leader(self) -> bool:
        return self._metadata.is_leader

    @property
    def level(self) -> int:
        return self._metadata.state.level


class TierSide:
    """A node's side of the bucket.

    Args:
        config: Settings of the bucket, which has a URL.
        node_id: Id of this node.
        metadata: Metadata of the cluster.
        incarnation: Incarnation of this node.
        clock: Clock of the node.
        worker: Works on the bucket; by default a process of its own.

    Attributes:
        tierer: Moves history to the bucket.
        worker: Worker that was given.
        room: Room on the disk of the node.
        ends: Ends of partitions that are followed here.
        reads: What consumers who read from the bucket have cost.
        requests: Asks other nodes; None until it can.
        staged: Reads what is staged in the bucket; None until the node listens.
    """

    def __init__(
        self,
        config: TierConfig,
        node_id: str,
        metadata: RaftMetadataStore,
        incarnation: Callable[[], int],
        clock: Clock,
        worker: Worker | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._metadata = metadata
        self.worker = worker or TierWorker(to_plain(config), "upload")
        self._reader = TierWorker(to_plain(config), "read")
        identity = _Identity(node_id, metadata, incarnation)
        self.tierer = Tierer(config, identity, self.worker, clock, _Members(metadata))
        self.room = DiskRoom()
        self.ends = LeaderEnds()
        self.reads = TierCounters()
        self.requests: Requests | None = None
        self._cold: ColdReads | None = None
        self.staged: StagedRows | None = None
        self._catalog = CatalogKeeper(
            metadata, self.worker, clock, grace_s=config.grace_s, on_error=self.tierer.catalog_failed
        )

    async def check(self) -> None:
        """Look at the bucket, but do not wait long for it.

        Raises:
            TierRefusedError: it can not be used as it is. One that another cluster has written is no reason to stop
                where this one has no streams yet: they may be about to be restored.
        """
        self.tierer.start()
        is_empty = not any(not stream.config.is_internal for stream in self._metadata.state.streams.values())
        await self.tierer.check(_CHECK_TIMEOUT_S, may_be_foreign=is_empty)

    def start(self) -> None:
        """Begin to keep the catalog."""
        self._catalog.start()

    async def stop(self) -> None:
        """End."""
        await self._catalog.stop()
        await self.tierer.stop()
        await self._reader.close()

    def open_cold(self, disk: Disk, files: FileCache, executor: Executor, directory: Path) -> ColdReads:
        """What reads the bucket, with an empty cache below the data directory.

        Raises:
            OSError: there can be no cache.
        """
        cold = ColdReads(
            *(self._reader, disk, files, executor, directory / _COLD),
            cache_bytes=self._config.cache_bytes,
            read_ahead_bytes=self._config.read_ahead_bytes,
        )
        cold.start()
        self._cold = cold
        return cold

    def open_staged(self, disk: Disk, executor: Executor, directory: Path, flush: Callable[[], None]) -> None:
        """Have partitions read rows that are staged in the bucket, by way of a directory below the data directory.

        Raises:
            OSError: there can be no directory.
        """
        staged = StagedRows(
            self._reader, disk, executor, directory / _STAGED, self._clock, flush, self._config.staging_directory
        )
        staged.start()
        self.staged = self.tierer.staged = staged

    def note_disk(self, free_bytes: int, reserve_bytes: int) -> None:
        """So much of the disk is free, and messages are refused when less than the reserve is."""
        self.room.note(free_bytes, reserve_bytes, self._clock.monotonic())
        if self._cold is not None:
            self._cold.cache.fit(free_bytes, reserve_bytes)

    def followed(self) -> None:
        """The metadata changed: a bucket that was another cluster's may be this one's now."""
        if self.tierer.health.code == "foreign":
            self.tierer.try_soon()

    def droppable(self, partition: Partition) -> int | None:
        """The offset below which whole segments of a tiered partition may leave this disk; None for none."""
        segments, config = partition.log.segments, partition.stream.config
        before_ns = partition.too_old_before(local_age_s(config))
        wanted = local_start(segments, config, before_ns, partition.log.log_end)
        if wanted is None:
            return None
        if partition.is_leading:
            tiered_end = self.tierer.tiered_end(partition.key, wanted)
        else:
            tiered_end = self.ends.of(partition.key, wanted)
        return local_start(segments, config, before_ns, tiered_end)

    async def ask_ends(self) -> None:
        """Ask leaders how far they are, where something is to be dropped of what is followed here."""
        if self.requests is not None:
            await self.ends.ask(self._metadata.state, self.requests)

    async def count_reads(self) -> None:
        """Bring `reads` up to date; where what reads does not say it at once, they stay what they were."""
        if self._cold is None:
            return
        try:
            async with asyncio.timeout(_COUNT_TIMEOUT_S):
                self.reads.take(await self._reader.call(CountsJob()))
        except (TierWorkError, TimeoutError) as error:
            logger.debug("how many requests reads have made is not known: %s", error)

    def status(self, limit: int) -> dict[str, Any]:
        """See `tier_status`."""
        return tier_status(self.tierer, self.room, self.reads, self._clock, limit=limit)
