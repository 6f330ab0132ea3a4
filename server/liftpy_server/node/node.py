"""A node: its parts, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from liftpy_log.checkpoint import Checkpoint, open_checkpoint
from liftpy_log.clock import SystemClock
from liftpy_log.data_dir import DataDir
from liftpy_log.durability.wal import WriteAheadLog, replay_wal
from liftpy_log.errors import WalCorruptError
from liftpy_log.histogram import Histogram
from liftpy_log.ids.dedupe import DedupeMemory
from liftpy_log.storage.disk import OsDisk
from liftpy_log.storage.files import FileCache
from liftpy_server.admin.gather import Gatherer
from liftpy_server.admin.groups.lags import GroupLags
from liftpy_server.admin.http import HttpServer
from liftpy_server.admin.info import cluster_info
from liftpy_server.admin.neighbours import check_alone
from liftpy_server.admin.node_pages import node_pages
from liftpy_server.admin.node_parts import NodeParts
from liftpy_server.admin.service import AdminService
from liftpy_server.canary.host import CanaryHost
from liftpy_server.events.node_events import NodeEvents
from liftpy_server.gaps.recorder import GapRecorder
from liftpy_server.groups.host.group_host import GroupHost
from liftpy_server.handover.handover import Handover
from liftpy_server.handover.server_change import ServerChange
from liftpy_server.ingest.connection import IngestConnection
from liftpy_server.ingest.marks import Marks
from liftpy_server.listeners.open_files import (
    connections_allowed,
    raise_open_files_limit,
    segments_allowed,
    strangers_allowed,
)
from liftpy_server.listeners.refusals import ListenerRefusals
from liftpy_server.nats.ack_connection import AckConnection
from liftpy_server.nats.link import check_nats_version
from liftpy_server.nats.monitoring import ask_limits
from liftpy_server.node.damage import damage_of
from liftpy_server.node.loop_watch import LoopWatch
from liftpy_server.node.maintenance import Maintenance, keep_checkpoint, make_checkpoint, unsaved_ordered
from liftpy_server.node.metadata_follower import MetadataFollower
from liftpy_server.node.metadata_opening import open_metadata
from liftpy_server.partition.committing import Load
from liftpy_server.partition.group_commits import GroupCommits
from liftpy_server.partition.outbox import Outbox
from liftpy_server.pull.connection import PullBackend
from liftpy_server.pull.server import PullServer
from liftpy_server.replication.host.cluster_side import ClusterSide
from liftpy_server.replication.host.durability_record import DurabilityRecord, kernel_boot_id
from liftpy_server.settings.limits import (
    OWED_RECORDS_MAX,
    SPARE_DESCRIPTORS,
    SWITCH_INTERVAL_S,
    UNSUBSCRIBE_TIMEOUT_S,
    UNSYNCED_BYTES_MAX,
)
from liftpy_server.streams.opening import StreamOpening
from liftpy_server.streams.streams import Streams
from liftpy_server.tier.host.side import TierSide

if TYPE_CHECKING:
    from liftpy_log.clock import Clock
    from liftpy_log.storage.disk import Disk
    from liftpy_server.metadata.state import MetadataState
    from liftpy_server.replication.host.local import LocalReplica
    from liftpy_server.settings.config import NodeConfig
    from liftpy_server.tier.reads.reads import ColdReads

__all__ = ["Node"]

logger = logging.getLogger(__name__)


class Node:
    """One node of liftpy.

    Args:
        config: What it was told.
        clock: The machine's, unless a test brings another.
        disk: The machine's, unless a test brings another.

    Attributes:
        refusals: What its listeners refuse.
        events: What happens to the cluster, and to this node.
        tier: The bucket; None without one.
        cold: Reads it; None without one.
    """

    def __init__(self, config: NodeConfig, clock: Clock | None = None, disk: Disk | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.started_ns = self.clock.now_ns()
        self.refusals = ListenerRefusals()
        self.events = NodeEvents(config.events, config.node_id, self.clock)
        self.pull_token = secrets.token_urlsafe(24)
        self.follow_token = secrets.token_urlsafe(24)
        self._disk = disk or OsDisk(SPARE_DESCRIPTORS)
        self.tier: TierSide | None = None
        self.cold: ColdReads | None = None
        self._io = ThreadPoolExecutor(max_workers=1, thread_name_prefix="liftpy-io")
        self._reads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="liftpy-read")
        self._load = Load()
        self._canary = CanaryHost(config, self.clock) if config.canary.stream is not None else None
        self._fetch_s = Histogram()
        self.ended: asyncio.Future[str]
        self.handover: Handover
        self._follower: MetadataFollower | None = None
        self._undo: list[Any] = []
        self._closing_admin: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop

    async def start(self) -> None:
        """Start everything, in order; when this returns the node takes messages and serves consumers.

        Raises:
            LiftError: it can not; the message says why. What was started is stopped again.
        """
        check_nats_version()
        self._loop = asyncio.get_running_loop()
        self.ended = self._loop.create_future()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        pa.set_cpu_count(1)
        pa.set_io_thread_count(1)
        try:
            await self._start()
        except BaseException:
            await self._stop_started()
            raise

    async def _start(self) -> None:
        config = self.config
        data_dir = self.data_dir = DataDir.open(config.data_path, config.node_id)
        self._undo.append(data_dir.close)
        with damage_of(data_dir):
            checkpoint, is_doubtful = open_checkpoint(
                self._disk, data_dir.checkpoint_path, data_dir.quarantine_directory
            )
            durability_record = DurabilityRecord(
                self._disk,
                data_dir.root / "standing.json",
                kernel_boot_id(),
                is_doubtful=is_doubtful,
            )
            try:
                restored = replay_wal(self._disk, data_dir.wal_directory, data_dir.root, durability_record.wal_torn)
            except WalCorruptError:
                durability_record.doubt()
                raise
            if restored:
                logger.info("%d bytes were restored from the write-ahead log", restored)
        self.metadata = await open_metadata(config, data_dir, self.clock, self.refusals, self.events.applied)
        self._undo.append(self.metadata.stop)
        self._open_files = raise_open_files_limit()
        self.pull = PullServer(
            config.pull,
            connections_allowed(config, self._open_files),
            self.refusals,
            strangers_allowed(self._open_files),
        )
        self._undo.append(self.pull.stop)
        await self._open_tier()
        with damage_of(data_dir):
            opening = self._open_files_of(data_dir, checkpoint, durability_record)
            await self._register(durability_record, opening, checkpoint)
            self._open_storage(data_dir, checkpoint, opening)
        await self._connect()
        self.maintenance.start()
        self._undo.append(self.maintenance.stop)
        await self._open_listeners()
        self.groups.start()
        self._undo.append(self.groups.stop)
        self.events.start(self.streams, self.metadata, self.files, self._reads, self.maintenance, self.tier)
        self._undo.append(self.events.stop)
        self.cluster.host.hand_over = self.handover.want
        self.cluster.start()
        self._follower = MetadataFollower(self.metadata, self._follow)
        self._follower.start()
        if self.tier is not None:
            self.tier.requests = self.admin.requests
            self.tier.start()
        self._undo.append(self.pull.stop)
        self._undo.append(self.cluster.leave)
        self._undo.append(self.handover.leave)
        if self._canary is not None:
            self._canary.start()
            self._undo.append(self._canary.stop)
        logger.info("node %s is up, incarnation %d", config.node_id, self.incarnation)

    async def _open_tier(self) -> None:
        config = self.config
        if config.tier.is_on:
            self.tier = TierSide(config.tier, config.node_id, self.metadata, lambda: self.incarnation, self.clock)
            self._undo.append(self.tier.stop)
            await self.tier.check()

    async def _register(
        self, durability_record: DurabilityRecord, opening: StreamOpening, checkpoint: Checkpoint
    ) -> None:
        pull = self.config.pull
        info = {
            "pull_host": pull.reachable_host,
            "pull_port": self.pull.port,
            "pull_tls": pull.tls_cert is not None,
            "pull_token": self.pull_token,
            "follow_token": self.follow_token,
        }
        self.cluster = ClusterSide(
            self.config,
            self.metadata,
            info,
            self.clock,
            self._leadership_changed,
            self._commits_changed,
            self._superseded,
        )
        await self.cluster.register(durability_record, opening.open_logs, checkpoint)

    @property
    def incarnation(self) -> int:
        """How often this node has registered; 0 before the first time."""
        return self.cluster.incarnation

    @property
    def cluster_port(self) -> int | None:
        """Where the other nodes reach this one's metadata; None when it does not listen."""
        return self.cluster.port

    def _commits_changed(self) -> None:
        self.outbox.flush()
        self.ingest.relieved()

    def _superseded(self, why: str) -> None:
        """There is another one: this process must do nothing more."""
        if not self.ended.done():
            logger.critical("%s: this one stops", why)
            self.ended.set_result(why)

    def was_removed(self, incarnation: int) -> None:
        """The cluster goes on without this node, if it was its incarnation that was removed.

        It hears nothing of the cluster any more, so its listeners close before anything else does.
        """
        if incarnation == self.incarnation and not self.ended.done():
            self._superseded(f"node {self.config.node_id} was removed from the cluster")
            self._closing_admin = self._loop.create_task(self.admin.stop())

    def _leadership_changed(self, replica: LocalReplica) -> None:
        self.streams.leadership_changed(replica)
        self.groups.leadership_changed(replica)

    def _open_files_of(
        self, data_dir: DataDir, checkpoint: Checkpoint, durability_record: DurabilityRecord
    ) -> StreamOpening:
        """Everything that opens a log needs."""
        config = self.config
        self.files = FileCache(self._disk, segments_allowed(self.config, self._open_files))
        self._undo.append(self.files.close)
        wal = self._wal = WriteAheadLog(self._disk, data_dir.wal_directory, data_dir.root)
        self._commits = GroupCommits(
            self.files, wal, self._loop, lambda: self.streams.by_durability, self._commits_changed
        )
        self.acks = AckConnection(self.config.nats, f"liftpy {self.config.node_id} acks", self.clock)
        self.outbox = Outbox(self.acks.write)
        self.gaps = GapRecorder(config.node_id, lambda: self.incarnation, self.metadata.propose)
        return StreamOpening(
            *(config.node_id, self._disk, self.files, data_dir, checkpoint, self.clock, self.outbox, self._load),
            *(self._commits.request, self.gaps, durability_record),
            DedupeMemory(config.storage.dedupe_memory_bytes),
        )

    def _open_storage(self, data_dir: DataDir, checkpoint: Checkpoint, opening: StreamOpening) -> None:
        config = self.config
        self.streams = Streams(opening, self.cluster.host, self._io, None if self.tier is None else self.tier.tierer)
        if self.tier is not None:
            self.tier.open_staged(self._disk, self._reads, data_dir.root, self.outbox.flush)
        self.streams.open_all(self.metadata.state)
        if self.tier is not None:
            self.cold = self.tier.open_cold(self._disk, self.files, self._reads, data_dir.root)
            self._undo.append(self.cold.close)
        self.groups = GroupHost(
            *(config.node_id, config.groups, self.streams, self.metadata, self.files, self.clock, self._reads),
            cold=self.cold,
        )
        self.maintenance = Maintenance(
            *(self.streams, self._disk, data_dir, config.storage, self.clock, self._commits.request_interval, self._io),
            self.tier,
        )
        self.maintenance.check_disk()
        self._commits.start()
        self.gaps.start()
        self._undo.append(self._stop_storage)
        self._undo.append(self.gaps.stop)
        if checkpoint.clean:  # until the next one is written, a kill must not pass for the stop before it
            keep_checkpoint(self._disk, data_dir, replace(checkpoint, clean=False))

    async def _connect(self) -> None:
        nats, node_id = self.config.nats, self.config.node_id
        logger.info("connecting to NATS at %s", nats.shown_url)
        await self.acks.start()
        self._undo.append(self.acks.stop)
        marks = Marks()
        self.ingest = IngestConnection(
            *(nats, f"liftpy {node_id} ingest", self.clock, self.outbox, self._is_overloaded, self.streams.confirmed),
            marks=marks,
            ask_limits=ask_limits,
            make_change=lambda before, new: ServerChange(before, new, marks, self.clock, self.outbox.flush),
        )
        self.cluster.host.answered_question_s = lambda: self.ingest.whole_s
        self.cluster.host.hears = lambda: self.ingest.is_connected
        self._undo.append(self._stop_ingest)
        self.handover = Handover(
            node_id,
            self.streams,
            self.metadata,
            self.ingest,
            marks,
            requests=lambda: self.admin.requests,
            clock=self.clock,
            flush=self.outbox.flush,
        )
        await self.ingest.start(self.streams.connect(self.ingest))

    async def _open_listeners(self) -> None:
        await self.pull.start(
            PullBackend(
                node_id=self.config.node_id,
                incarnation=self.incarnation,
                token=self.pull_token,
                follow_token=self.follow_token,
                lookup=self.streams.lookup,
                readable=self.streams.lookup_readable,
                replicas=self.streams.lookup_replica,
                heard=self.cluster.host.heard,
                asked=self.cluster.host.asked,
                metadata=lambda: cluster_info(self.metadata.state, None),
                files=self.files,
                executor=self._reads,
                config=self.config.pull,
                groups=self.groups,
                cold=self.cold,
                fetch_s=self._fetch_s,
            )
        )
        if self.incarnation == 1 and all(each.config.is_internal for each in self.metadata.state.streams.values()):
            await check_alone(self.config.nats, self.config.node_id, self.metadata.cluster_id)
        self._loop_watch = LoopWatch(self._loop)
        self._loop_watch.start()
        self._undo.append(self._loop_watch.stop)
        parts = self._parts()
        self.admin = AdminService(parts)
        await self.admin.start()
        self._undo.append(self.admin.stop)
        gatherer = Gatherer(parts, self.admin.requests)
        group_lags = GroupLags(parts, partial(gatherer.show, brief=True))
        self._undo.append(group_lags.stop)
        self.http = HttpServer(self.config.http, parts.refusals, node_pages(parts, group_lags))
        await self.http.start()
        self._undo.append(self.http.stop)

    def _parts(self) -> NodeParts:
        return NodeParts(
            config=self.config,
            clock=self.clock,
            incarnation=self.incarnation,
            started_ns=self.started_ns,
            follow_token=self.follow_token,
            refusals=self.refusals,
            metadata=self.metadata,
            data_dir=self.data_dir,
            files=self.files,
            streams=self.streams,
            maintenance=self.maintenance,
            group_commits=self._commits,
            groups=self.groups,
            ingest=self.ingest,
            outbox=self.outbox,
            pull=self.pull,
            handover=self.handover,
            events=self.events,
            tier=self.tier,
            cold=self.cold,
            canary=self._canary,
            durations=self._durations(),
            wait_followed=self.wait_followed,
            was_removed=self.was_removed,
        )

    def _durations(self) -> dict[str, Histogram]:
        durations = {
            "sync": self._commits.round_s,
            "commit": self._load.commit_s,
            "fetch": self._fetch_s,
            "event_loop_lag": self._loop_watch.lag_s,
            "gc": self._loop_watch.gc_s,
        }
        return durations if self.tier is None else durations | {"tier_upload": self.tier.tierer.counters.upload_s}

    async def stop(self) -> None:
        """Stop cleanly: everything that was read is durable and acknowledged when this returns."""
        await self._stop_started()
        logger.info("node %s has stopped", self.config.node_id)

    async def _stop_started(self) -> None:
        while self._undo:
            try:
                result = self._undo.pop()()
                if asyncio.iscoroutine(result):
                    await result
            except Exception:
                logger.exception("while stopping")
        self._io.shutdown()
        self._reads.shutdown()

    async def _stop_ingest(self) -> None:
        if self._follower is not None:
            await self._follower.stop()
        await self.cluster.stop()
        await self._stop_listening()
        await self.ingest.stop()
        if self.tier is not None and self.tier.staged is not None:
            await self.tier.staged.stop()
        self.streams.end_passes()
        await self._loop.run_in_executor(None, self._commits.stop_usual)
        await asyncio.sleep(0)  # lets the results of the last round in
        self.outbox.flush()

    async def _stop_listening(self) -> None:
        try:
            async with asyncio.timeout(UNSUBSCRIBE_TIMEOUT_S):
                await self.streams.unsubscribe()
        except TimeoutError:
            logger.warning("the NATS server does not answer: messages on their way from it are not waited for")

    def _stop_storage(self) -> None:
        self._commits.stop()
        unsaved = unsaved_ordered(self.streams, may_wait=False)
        checkpoint = make_checkpoint(self.streams, self.clock, clean=True)
        checkpoint.clean = self.streams.close()
        self._wal.close(remove=checkpoint.clean)
        keep_checkpoint(self._disk, self.data_dir, checkpoint, unsaved)

    async def _follow(self, state: MetadataState) -> None:
        await self.cluster.follow(state)
        await self.streams.follow(state)
        self.groups.follow(state)
        self.events.followed()
        if self.tier is not None:
            self.tier.followed()
        self.maintenance.check_disk()

    def _is_overloaded(self) -> bool:
        if self.acks.is_congested:
            return True
        return self._load.unsynced_bytes > UNSYNCED_BYTES_MAX or self._load.owed_records > OWED_RECORDS_MAX

    async def wait_followed(self) -> None:
        """Wait until this node does what the metadata says now."""
        assert self._follower is not None, "not started yet"
        await self._follower.wait()
