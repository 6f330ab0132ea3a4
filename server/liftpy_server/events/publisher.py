"""Stores events in the stream `__activity`: the node that leads it appends them, each once.

The log itself says how far the leaders before it came: its last record has the id of an event, and events are stored in
the order of the metadata's log. What the leader before had appended and not replicated is cut off with its log, and is
appended again from the backlog of the next one. So an event is neither lost nor doubled by a change of leaders, of the
stream or of the metadata.

Nothing waits for this: while the stream has no leader, too few replicas or no room, events stay in the backlog, which
is bounded. What it dropped is counted, and told by an event.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from liftpy_envelope.batch import decode_records, encode_body
from liftpy_envelope.columns import Column
from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.events import EVENTS_STREAM, Event, Position, parse_id
from liftpy_envelope.ipc import nullable_column, values_column
from liftpy_envelope.stream_config import AckMode, StreamConfig
from liftpy_log.reader import pin_all, unpin_all
from liftpy_log.segments.scan import read_batch
from liftpy_server.events.backlog import NOTHING
from liftpy_server.metadata.errors import MetadataRefusedError
from liftpy_server.metadata.placement import place
from liftpy_server.repeated_warnings import RepeatedWarnings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor

    from liftpy_envelope.batch import BatchBody
    from liftpy_log.clock import Clock
    from liftpy_log.reader import Slice
    from liftpy_log.storage.disk import File
    from liftpy_log.storage.files import FileCache
    from liftpy_server.consensus.store import RaftMetadataStore
    from liftpy_server.events.backlog import Backlog
    from liftpy_server.metadata.state import StreamInfo
    from liftpy_server.partition.partition import Partition
    from liftpy_server.settings.events import EventsConfig
    from liftpy_server.streams.streams import Streams

__all__ = ["EventPublisher", "encode_events", "events_stream"]

logger = logging.getLogger(__name__)

_SEGMENT_BYTES: Final = 8 * 1024 * 1024
_REPLICAS_MAX: Final = 3
_AT_ONCE: Final = 500
_TRY_AGAIN_S: Final = 1.0
_READ_BYTES: Final = 64 * 1024
_LOST: Final = "events.lost"


def events_stream(config: EventsConfig, replicas: int) -> StreamConfig:
    """The settings of the stream of the events. The bucket does not get them: they are about this cluster alone.

    One replica in sync is enough: what is lost with it is stored again from the backlog of another node.
    """
    return StreamConfig(
        name=EVENTS_STREAM,
        subject="",
        replicas=replicas,
        min_isr=1,
        acks=AckMode.OFF,
        retention_age_s=config.retention_age_s,
        retention_bytes=config.retention_bytes,
        segment_bytes=_SEGMENT_BYTES,
        dedupe_ids_max=0,
        tier=False,
    )


def encode_events(events: Sequence[tuple[Position, Event]]) -> BatchBody:
    """A record batch of events."""
    columns = [
        values_column([event.subject for _, event in events]),
        nullable_column([event.key for _, event in events]),
        nullable_column([event.value(position) for position, event in events]),
        nullable_column([str(position).encode() for position, _ in events]),
    ]
    return encode_body(len(events), Column.SUBJECT | Column.KEY | Column.VALUE | Column.MESSAGE_ID, columns)


class EventPublisher:
    """See the module.

    Args:
        config: Configuration of the stream when it is created.
        backlog: Where the events are.
        streams: The node's.
        metadata: Metadata of the cluster.
        files: The node's open files.
        executor: Reads from the disk.
        clock: Clock of the node.

    Attributes:
        stored: How many events this node has stored.
        lost: How many it could not store, as far as it knows.
    """

    def __init__(
        self,
        config: EventsConfig,
        backlog: Backlog,
        streams: Streams,
        metadata: RaftMetadataStore,
        files: FileCache,
        executor: Executor,
        clock: Clock,
    ) -> None:
        self._config = config
        self._backlog = backlog
        self._streams = streams
        self._metadata = metadata
        self._files = files
        self._executor = executor
        self._clock = clock
        self._warnings = RepeatedWarnings(logger)
        self._woken = asyncio.Event()
        self._term: tuple[Partition, int] | None = None
        self._newest = NOTHING
        self._task: asyncio.Task[None] | None = None
        self.stored = 0
        self.lost = 0

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="store events")

    async def stop(self) -> None:
        """End. What is not stored yet is stored by the next leader."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """The metadata changed, and the node's streams have followed."""
        self._woken.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_TRY_AGAIN_S if len(self._backlog) else None):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            try:
                await self._store()
            except (LiftError, OSError, ValueError) as error:
                self._warnings.tell("", f"events can not be stored yet: {error}", self._clock.monotonic())
                await asyncio.sleep(_TRY_AGAIN_S)
            except Exception:
                logger.exception("events can not be stored; it is tried again")
                await asyncio.sleep(_TRY_AGAIN_S)

    async def _store(self) -> None:
        info = self._metadata.state.streams.get(EVENTS_STREAM)
        if info is None:
            if self._backlog.is_worth_a_stream and self._metadata.is_leader:
                await self._create()
            return
        partition = self._led(info)
        if partition is None:
            self._term = None
            return
        term = (partition, partition.epoch)
        if self._term != term:
            newest = await self._newest_of(partition)
            if not _leads(*term):
                return
            self._term, self._newest = term, newest
        for events in self._pending(info):
            if not (_leads(*term) and _takes(partition)):  # it may have changed since the part before
                return
            self._append(partition, events)
            await asyncio.sleep(0)

    def _led(self, info: StreamInfo) -> Partition | None:
        local = self._streams.by_uuid.get(info.uuid)
        partition = None if local is None else local.partitions.get(0)
        return partition if partition is not None and _leads(partition, partition.epoch) else None

    def _pending(self, info: StreamInfo) -> Iterator[list[tuple[Position, Event]]]:
        """What is to be stored, in parts. Events older than the stream keeps them were stored, and are gone."""
        found = self._backlog.after(self._newest)
        now_ns, age_s = self._clock.now_ns(), info.config.retention_age_s
        if age_s:
            found = [each for each in found if each[1].time_ns > now_ns - age_s * 1e9]
        dropped_to, count = self._backlog.dropped_to, self._backlog.unstored
        if dropped_to > self._newest and count:
            details = {"through": str(dropped_to), "events_max": count}
            found.insert(0, (dropped_to, Event(_LOST, now_ns, details=details)))
        rest = iter(found)
        while part := list(islice(rest, _AT_ONCE)):
            yield part

    def _append(self, partition: Partition, events: list[tuple[Position, Event]]) -> None:
        newest = events[-1][0]
        appended = partition.append_body(encode_events(events), self._clock.now_ns())
        self._newest = newest
        self.stored += len(events)
        for _, event in events:
            if event.kind == _LOST:
                self.lost += event.details["events_max"]
                logger.warning("%(events_max)d events at most could not be stored, up to %(through)s", event.details)

        def committed(why_unknown: str | None) -> None:
            if why_unknown is None:
                self._backlog.stored(newest)

        partition.on_committed(appended.next_offset, committed)
        partition.end_pass()

    async def _newest_of(self, partition: Partition) -> Position:
        """The newest event of a log that this node leads. None of the log can be cut off any more."""
        start, end = partition.log.log_start, partition.log.log_end
        if start == end:
            return NOTHING
        pieces = pin_all(self._files, partition.log.read(end - 1, end, _READ_BYTES))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, _last_id, pieces)
        finally:
            unpin_all(self._files, pieces)

    async def _create(self) -> None:
        """Create the stream. Only the node that leads the metadata does; two at once come to one stream."""
        state = await self._metadata.read()
        usable = sum(not (node.draining or node.expired) for node in state.nodes.values())
        if EVENTS_STREAM in state.streams or not usable:
            return
        config = events_stream(self._config, min(_REPLICAS_MAX, usable))
        try:
            await self._metadata.propose(
                "create_stream", uuid=uuid4().hex, config=config.to_plain(), assignment=place(state, config)
            )
        except MetadataRefusedError as error:
            if error.code is not ErrorCode.STREAM_EXISTS:
                raise


def _leads(partition: Partition, epoch: int) -> bool:
    return (
        partition.is_leading and partition.epoch == epoch and partition.gone is None and partition.log.failure is None
    )


def _takes(partition: Partition) -> bool:
    return partition.is_accepting and not partition.storage_full


def _last_id(pieces: Sequence[tuple[File, Slice]]) -> Position:
    """The id of the last record. Waits for the disk.

    Raises:
        LiftError: it can not be read.
        ValueError: it is no event.
    """
    newest = NOTHING
    for file, piece in pieces:
        position, end = piece.position, piece.position + piece.length
        while position < end:
            header, body = read_batch(file, position, end)
            newest = parse_id(decode_records(header, body).column("message_id")[-1].as_py())
            position += header.length
    return newest
