"""The streams of a node: opened, changed and closed to follow the metadata."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.stream_config import Spread
from liftpy_server.ingest.binding import Binding
from liftpy_server.stream_opening import log_config, remove_directory

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from concurrent.futures import Executor

    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.partition_log import PartitionLog
    from liftpy_server.ingest.connection import IngestConnection
    from liftpy_server.metadata.state import MetadataState, StreamInfo
    from liftpy_server.partition import Partition
    from liftpy_server.stream_opening import LocalStream, StreamOpening
    from liftpy_server.stream_state import StreamState

__all__ = ["StreamNotOpenedError", "Streams"]

logger = logging.getLogger(__name__)


class StreamNotOpenedError(LiftError):
    """A stream could not be opened on this node."""


class Streams:
    """See the module.

    Args:
        opening: opens them.
        io_executor: with one thread, for the removal of directories.
    """

    def __init__(self, opening: StreamOpening, io_executor: Executor) -> None:
        self._opening = opening
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
        self._opening.sort_out_directories(state)
        for info in state.streams.values():
            self._opening.note_absence(self._open(info))
        self._remember(state)

    def _open(self, info: StreamInfo) -> LocalStream:
        stream = self._opening.begin(info)
        for number in self._opening.led_here(info):
            self._opening.open_partition(stream, number)
        return self._add(stream)

    def _add(self, stream: LocalStream) -> LocalStream:
        self.by_uuid[stream.info.uuid] = stream
        for partition in stream.partitions.values():
            self.by_key[partition.key] = partition
            self.by_log[partition.log] = partition
        return stream

    def connect(self, ingest: IngestConnection) -> list[Binding]:
        """Take the ingest connection. Returns the bindings of all streams, for it to subscribe when it connects."""
        self._ingest = ingest
        for stream in self.by_uuid.values():
            stream.bindings = self._make_bindings(stream)
        return [binding for stream in self.by_uuid.values() for binding in stream.bindings]

    def listening(self, stream: StreamState) -> None:
        """All subscriptions of a stream are confirmed."""
        local = self.by_uuid.get(stream.uuid)
        if local is not None:
            local.refusal = None
            self._set_ready(stream.uuid, None)

    async def wait_ready(self, uuid: str) -> None:
        """Wait until a stream is open and its subscriptions are confirmed.

        Raises:
            SubscriptionRefusedError: the NATS server does not allow them.
            StreamNotOpenedError: the node can not store it.
        """
        try:
            await asyncio.shield(self._future(uuid))
        except LiftError:
            self._ready.pop(uuid, None)
            raise

    def _future(self, uuid: str) -> asyncio.Future[None]:
        future = self._ready.get(uuid)
        if future is None:
            future = self._ready[uuid] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    def _set_ready(self, uuid: str, error: LiftError | None) -> None:
        if self._future(uuid).done():
            del self._ready[uuid]
        if error is None:
            self._future(uuid).set_result(None)
        else:
            self._future(uuid).set_exception(error)

    async def follow(self, state: MetadataState) -> None:
        """Make the node's streams what the metadata says."""
        wanted = {info.uuid: info for info in state.streams.values()}
        for stream in [stream for uuid, stream in self.by_uuid.items() if uuid not in wanted]:
            await self._attempt(stream.info, self._delete(stream))
        for uuid, info in wanted.items():
            known = self.by_uuid.get(uuid)
            if known is None:
                await self._attempt(info, self._create(info))
            elif known.info != info:
                await self._attempt(info, self._change(known, info))
        self._remember(state)

    async def _attempt(self, info: StreamInfo, work: Awaitable[None]) -> None:
        """Do something to one stream; if that fails the others follow all the same."""
        try:
            await work
        except Exception as error:
            logger.exception("stream %s does not do what the metadata says", info.name)
            self._set_ready(info.uuid, StreamNotOpenedError(f"stream {info.name!r}: {error!r}"))

    def _remember(self, state: MetadataState) -> None:
        self._known = frozenset(bytes.fromhex(info.uuid) for info in state.streams.values())

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
        assert self._ingest is not None
        try:
            stream = self._opening.begin(info)
        except OSError as error:
            logger.error("stream %s can not be opened: %s", info.name, error)  # noqa: TRY400 - the trace adds nothing
            self._set_ready(info.uuid, StreamNotOpenedError(f"stream {info.name!r} can not be opened: {error}"))
            return
        for number in self._opening.led_here(info):
            self._opening.open_partition(stream, number)
            await asyncio.sleep(0)  # files are made and synced: other streams' messages come in between
        await self._bind(self._add(stream))

    async def _bind(self, stream: LocalStream) -> None:
        """Subscribe what the stream wants now before leaving what it wanted: better a message twice than not at all."""
        assert self._ingest is not None
        wanted = {binding.address: binding for binding in self._make_bindings(stream)}
        known = {binding.address for binding in stream.bindings}
        stale = [binding for binding in stream.bindings if binding.address not in wanted]
        new = [binding for address, binding in wanted.items() if address not in known]
        stream.bindings += new
        try:
            await self._ingest.bind(new)
        except LiftError as error:  # what it wanted is kept until the change is taken back, or the server gives in
            logger.error("stream %s: %s", stream.state.name, error)  # noqa: TRY400 - the trace adds nothing
            stream.refusal = error
            self._set_ready(stream.info.uuid, error)
            return
        if stale:
            stream.bindings = [binding for binding in stream.bindings if binding not in stale]
            await self._ingest.unbind(stale)
            await self._ingest.review(stream.state)
        if not wanted:
            self._set_ready(stream.info.uuid, None)
        logger.info("stream %s stores %s", stream.info.name, stream.info.config.subject)

    async def _change(self, stream: LocalStream, info: StreamInfo) -> None:
        old = stream.info
        stream.info = info
        stream.state.update(info)
        for number, partition in stream.partitions.items():
            if partition.epoch != info.partitions[number].leader_epoch:
                partition.lead(info.partitions[number].leader_epoch)
            partition.log.config = log_config(stream.state)
            partition.dedupe.resize(int(info.config.dedupe_window_s * 1e9), info.config.dedupe_ids_max)
            log_start = info.partitions[number].log_start
            if log_start > partition.log.log_start and partition.log.failure is None:
                self._purge(partition, log_start)
        if (old.config.subject, old.config.group) != (info.config.subject, info.config.group):
            await self._bind(stream)

    def _purge(self, partition: Partition, log_start: int) -> None:
        try:
            partition.purge(log_start)
        except LiftError as error:
            logger.error("purging stream %s failed: %s", partition.stream.name, error)  # noqa: TRY400

    async def _delete(self, stream: LocalStream) -> None:
        assert self._ingest is not None
        await self._ingest.unbind(stream.bindings)
        for partition in stream.partitions.values():
            self._close_partition(partition, ErrorCode.UNKNOWN_STREAM)
        del self.by_uuid[stream.info.uuid]
        self._ready.pop(stream.info.uuid, None)
        directory = self._opening.directory(stream.info)
        await asyncio.get_running_loop().run_in_executor(self._io_executor, remove_directory, directory)
        logger.info("stream %s was deleted", stream.info.name)

    def _close_partition(self, partition: Partition, why: ErrorCode) -> None:
        try:
            partition.close(why)
        except LiftError as error:
            logger.error("closing stream %s: %s", partition.stream.name, error)  # noqa: TRY400
        self.by_key.pop(partition.key, None)
        self.by_log.pop(partition.log, None)

    async def unsubscribe(self) -> None:
        """Take no more messages; those on their way arrive before this returns."""
        assert self._ingest is not None
        await self._ingest.unbind([binding for stream in self.by_uuid.values() for binding in stream.bindings])

    def close(self) -> bool:
        """Make everything durable and give the files back. Returns whether all of it went well."""
        for partition in self.partitions:
            self._close_partition(partition, ErrorCode.NOT_AVAILABLE)
        for stream in self.by_uuid.values():
            stream.state.keep_gaps()
        return all(
            partition.log.failure is None
            for stream in self.by_uuid.values()
            for partition in stream.partitions.values()
        )
