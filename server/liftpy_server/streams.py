"""The streams of a node: opened, changed and closed to follow the metadata."""

from __future__ import annotations

import asyncio
import logging
import shutil
from typing import TYPE_CHECKING

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.pull import PartitionKey
from liftpy_envelope.stream_config import Spread, SyncMode
from liftpy_log.dedupe import DedupeWindow
from liftpy_log.errors import PartitionOfflineError
from liftpy_log.partition_log import LogConfig, PartitionLog
from liftpy_server.dedupe_rebuild import rebuild_dedupe
from liftpy_server.gap_file import GapFile
from liftpy_server.ingest.binding import Binding
from liftpy_server.partition import Partition
from liftpy_server.stream_state import StreamState

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor
    from pathlib import Path

    from liftpy_log.checkpoint import Checkpoint
    from liftpy_log.clock import Clock
    from liftpy_log.data_dir import DataDir
    from liftpy_log.disk import Disk
    from liftpy_log.files import FileCache
    from liftpy_server.ingest.connection import IngestConnection
    from liftpy_server.metadata.state import MetadataState, PartitionInfo, StreamInfo
    from liftpy_server.outbox import Outbox
    from liftpy_server.partition import Load

__all__ = ["LocalStream", "Streams"]

logger = logging.getLogger(__name__)


class LocalStream:
    """A stream with the partitions that this node leads."""

    def __init__(self, info: StreamInfo, state: StreamState, partitions: dict[int, Partition]) -> None:
        self.info = info
        self.state = state
        self.partitions = partitions
        self.bindings: list[Binding] = []


class Streams:
    """See the module.

    Args:
        node_id: this node.
        disk: where.
        files: the node's open files.
        data_dir: of the node.
        checkpoint: what the node knew when it stopped last.
        clock: for gaps.
        outbox: for acks.
        load: counts what waits for the disk.
        request_sync: asks group commit for a round.
        io_executor: with one thread, for small files.
    """

    def __init__(
        self,
        node_id: str,
        disk: Disk,
        files: FileCache,
        data_dir: DataDir,
        checkpoint: Checkpoint,
        clock: Clock,
        outbox: Outbox,
        load: Load,
        request_sync: Callable[[PartitionLog], None],
        io_executor: Executor,
    ) -> None:
        self._node_id = node_id
        self._disk = disk
        self._files = files
        self._data_dir = data_dir
        self._checkpoint = checkpoint
        self._clock = clock
        self._outbox = outbox
        self._load = load
        self._request_sync = request_sync
        self._io_executor = io_executor
        self._ingest: IngestConnection | None = None
        self.by_uuid: dict[str, LocalStream] = {}
        self.by_key: dict[PartitionKey, Partition] = {}
        self.by_log: dict[PartitionLog, Partition] = {}
        self._known: frozenset[bytes] = frozenset()
        self._ready: dict[str, asyncio.Future[None]] = {}

    @property
    def partitions(self) -> list[Partition]:
        """All partitions that this node leads."""
        return list(self.by_key.values())

    def lookup(self, key: PartitionKey) -> Partition | ErrorCode:
        """The partition with this key, or why it is not here."""
        partition = self.by_key.get(key)
        if partition is not None:
            return partition
        return ErrorCode.NOT_LEADER if key.uuid in self._known else ErrorCode.UNKNOWN_STREAM

    def open_all(self, state: MetadataState) -> None:
        """Open what the metadata says is here, before the node is connected to anything."""
        self._sort_out_directories(state)
        for info in state.streams.values():
            self._open(info)
        self._remember(state)

    def connect(self, ingest: IngestConnection) -> list[Binding]:
        """Take the ingest connection. Returns the bindings of all streams, which it is to subscribe when it connects.

        The time since the node stopped is a gap.
        """
        self._ingest = ingest
        bindings = []
        for stream in self.by_uuid.values():
            stream.bindings = self._make_bindings(stream)
            bindings += stream.bindings
            if self._checkpoint.time_ns:
                cause = "the node was stopped" if self._checkpoint.clean else "the node died"
                stream.state.open_gap(max(self._checkpoint.time_ns, stream.info.created_ns), cause)
        return bindings

    def connected(self) -> None:
        """All subscriptions stand: the gap of the restart is over."""
        now_ns = self._clock.now_ns()
        for stream in self.by_uuid.values():
            stream.state.close_gap(now_ns)
            self._future(stream.info.uuid).set_result(None)

    async def wait_ready(self, uuid: str) -> None:
        """Wait until a stream is open and its subscriptions are confirmed.

        Raises:
            SubscriptionRefusedError: the NATS server does not allow them.
        """
        await asyncio.shield(self._future(uuid))

    def _future(self, uuid: str) -> asyncio.Future[None]:
        future = self._ready.get(uuid)
        if future is None:
            future = self._ready[uuid] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    async def follow(self, state: MetadataState) -> None:
        """Make the node's streams what the metadata says."""
        wanted = {info.uuid: info for info in state.streams.values()}
        for uuid in [uuid for uuid in self.by_uuid if uuid not in wanted]:
            await self._delete(self.by_uuid[uuid])
        for uuid, info in wanted.items():
            stream = self.by_uuid.get(uuid)
            if stream is None:
                await self._create(info)
            elif stream.info != info:
                await self._change(stream, info)
        self._remember(state)

    def _remember(self, state: MetadataState) -> None:
        self._known = frozenset(bytes.fromhex(info.uuid) for info in state.streams.values())

    def _open(self, info: StreamInfo) -> LocalStream:
        directory = self._data_dir.streams_directory / f"{info.name}.{info.uuid}"
        self._disk.make_directory(directory)
        gap_file = GapFile(self._disk, directory / "gaps.json", self._io_executor)
        state = StreamState(info, gap_file.save)
        state.gaps.extend(gap_file.load())
        partitions = {
            number: self._open_partition(state, number, partition, directory / str(number))
            for number, partition in enumerate(info.partitions)
            if partition.leader == self._node_id
        }
        stream = self.by_uuid[info.uuid] = LocalStream(info, state, partitions)
        return stream

    def _open_partition(self, stream: StreamState, number: int, info: PartitionInfo, directory: Path) -> Partition:
        config = stream.config
        uuid = bytes.fromhex(stream.uuid)
        is_durable = config.sync is SyncMode.ALWAYS
        dedupe = DedupeWindow(int(config.dedupe_window_s * 1e9), config.dedupe_ids_max)
        try:
            log = PartitionLog.open(
                self._disk,
                self._files,
                directory,
                _log_config(stream),
                log_start=info.log_start,
                durable_end=self._checkpoint.high_watermarks.get((uuid, number), 0) if is_durable else 0,
            )
            rebuild_dedupe(dedupe, log, self._files)
        except (PartitionOfflineError, LiftError, OSError) as error:
            logger.error("stream %s partition %d is offline: %s", stream.name, number, error)  # noqa: TRY400
            log = PartitionLog.offline(self._disk, self._files, directory, PartitionOfflineError(str(error)))
        key = PartitionKey(uuid, number)
        partition = Partition(key, stream, log, dedupe, info.leader_epoch, self._outbox, self._load, self._request_sync)
        self.by_key[key] = partition
        self.by_log[log] = partition
        return partition

    def _make_bindings(self, stream: LocalStream) -> list[Binding]:
        config = stream.state.config
        if not stream.partitions:
            return []
        if config.partitions == 1 or config.spread is Spread.HASH:
            return [Binding(stream.state, config.subject, stream.partitions)]
        return [
            Binding(stream.state, config.partition_subject(number), {number: partition})
            for number, partition in stream.partitions.items()
        ]

    async def _create(self, info: StreamInfo) -> None:
        stream = self._open(info)
        assert self._ingest is not None
        future = self._future(info.uuid)
        try:
            for binding in self._make_bindings(stream):
                await self._ingest.bind(binding)
                stream.bindings.append(binding)
        except LiftError as error:
            logger.error("stream %s: %s", info.name, error)  # noqa: TRY400 - the trace adds nothing
            if not future.done():
                future.set_exception(error)
        else:
            logger.info("stream %s stores %s", info.name, info.config.subject)
            if not future.done():
                future.set_result(None)

    async def _change(self, stream: LocalStream, info: StreamInfo) -> None:
        old = stream.info
        stream.info = info
        stream.state.update(info)
        for number, partition in stream.partitions.items():
            if partition.epoch != info.partitions[number].leader_epoch:
                partition.lead(info.partitions[number].leader_epoch)
            partition.log.config = _log_config(stream.state)
            partition.dedupe.resize(int(info.config.dedupe_window_s * 1e9), info.config.dedupe_ids_max)
            log_start = info.partitions[number].log_start
            if log_start > partition.log.log_start and partition.log.failure is None:
                self._purge(partition, log_start)
        if (old.config.subject, old.config.group) != (info.config.subject, info.config.group):
            await self._rebind(stream)

    def _purge(self, partition: Partition, log_start: int) -> None:
        try:
            partition.log.purge(log_start)
        except LiftError as error:
            logger.error("purging stream %s failed: %s", partition.stream.name, error)  # noqa: TRY400

    async def _rebind(self, stream: LocalStream) -> None:
        """Subscribe the new subject before leaving the old one: better a message twice than not at all."""
        assert self._ingest is not None
        old, stream.bindings = stream.bindings, []
        for binding in self._make_bindings(stream):
            try:
                await self._ingest.bind(binding)
                stream.bindings.append(binding)
            except LiftError as error:
                logger.error("stream %s: %s", stream.state.name, error)  # noqa: TRY400 - the trace adds nothing
                stream.state.open_gap(self._clock.now_ns(), str(error))
        for binding in old:
            await self._ingest.unbind(binding)

    async def _delete(self, stream: LocalStream) -> None:
        assert self._ingest is not None
        for binding in stream.bindings:
            await self._ingest.unbind(binding)
        for partition in stream.partitions.values():
            self._close_partition(partition, ErrorCode.UNKNOWN_STREAM)
        del self.by_uuid[stream.info.uuid]
        self._ready.pop(stream.info.uuid, None)
        directory = self._data_dir.streams_directory / f"{stream.info.name}.{stream.info.uuid}"
        await asyncio.get_running_loop().run_in_executor(self._io_executor, _remove, directory)
        logger.info("stream %s was deleted", stream.info.name)

    def _close_partition(self, partition: Partition, why: ErrorCode) -> None:
        try:
            partition.close(why)
        except LiftError as error:
            logger.error("closing stream %s: %s", partition.stream.name, error)  # noqa: TRY400
        del self.by_key[partition.key]
        del self.by_log[partition.log]

    async def unsubscribe(self) -> None:
        """Take no more messages; those on their way arrive before this returns."""
        assert self._ingest is not None
        for stream in self.by_uuid.values():
            for binding in stream.bindings:
                await self._ingest.unbind(binding)

    def close(self) -> bool:
        """Make everything durable and give the files back. Returns whether all of it went well."""
        for partition in self.partitions:
            self._close_partition(partition, ErrorCode.NOT_AVAILABLE)
        return all(
            partition.log.failure is None
            for stream in self.by_uuid.values()
            for partition in stream.partitions.values()
        )

    def _sort_out_directories(self, state: MetadataState) -> None:
        """Finish deletions, and put what no stream knows aside."""
        root = self._data_dir.streams_directory
        self._disk.make_directory(root)
        live = {f"{info.name}.{info.uuid}" for info in state.streams.values()}
        for name in self._disk.names(root):
            if name in live:
                continue
            if name.rpartition(".")[2] in state.deleted:
                _remove(root / name)
                continue
            aside = self._data_dir.quarantine_directory
            self._disk.make_directory(aside)
            self._disk.rename(root / name, aside / name)
            logger.warning("no stream knows %s: moved it to %s", root / name, aside)


def _log_config(stream: StreamState) -> LogConfig:
    config = stream.config
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_age_ns=int(config.segment_age_s * 1e9),
        keep_unsynced=config.sync is SyncMode.ALWAYS,
    )


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
