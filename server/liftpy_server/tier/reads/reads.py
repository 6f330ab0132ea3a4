"""Reads of what a partition has in the bucket and no longer in its log, in the manner of a log's own reads.

Nothing waits here: what is in the cache is returned at once, and what is not is fetched, while the reader goes on
with something else until it is called.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from liftpy_log.errors import SegmentCorruptError
from liftpy_log.reader import LogReader
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.reads.cache import ChunkCache
from liftpy_server.tier.reads.chunk import Chunk
from liftpy_server.tier.reads.failures import ColdUnavailableError, HistoryLostError, is_of_object, lost_text
from liftpy_server.tier.reads.fetches import Fetches
from liftpy_server.tier.reads.limits import COMPACTED_S, LOOK_AGAIN_S, SEEK_BYTES, TIMES_ASKED_MAX, WARM_UP_AFTER_S
from liftpy_server.tier.reads.metrics import ColdStatus
from liftpy_server.tier.requests import MessageIdsJob, OffsetAtTimeJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor
    from pathlib import Path

    from liftpy_log.reader import Slice
    from liftpy_log.storage.disk import Disk
    from liftpy_log.storage.files import FileCache
    from liftpy_server.partition.partition import Partition
    from liftpy_server.tier.requests import OffsetAtTimeResult
    from liftpy_server.tier.worker.port import Worker

__all__ = ["ColdReads", "ColdUnavailableError", "HistoryLostError", "is_cold", "is_unknown"]

logger = logging.getLogger(__name__)

_NO_STREAM: Final = "0" * 32


def is_cold(partition: Partition, offset: int) -> bool:
    """Whether an offset is to be read from the bucket."""
    return offset < partition.log.log_start and partition.start <= offset  # asked by every fetch: most end there


def is_unknown(partition: Partition) -> bool:
    """Whether a leader whose log does not begin at the beginning has yet to hear what the bucket has before it."""
    return (
        partition.cold is None and partition.is_leading and partition.log.log_start > 0 and partition.stream.config.tier
    )


def _is_read_on(chunk: Chunk, piece: Slice) -> bool:
    """Whether what follows a chunk will be wanted: one of more than the first size is already part of a long read."""
    return chunk.target_bytes > SEEK_BYTES or 2 * (piece.position + piece.length) >= chunk.size


class ColdReads:
    """Reads of partitions of which the bucket has more than the log. To be made and used in the event loop.

    Args:
        worker: Reads the bucket; closed with this.
        disk: Disk of the node.
        files: The node's open files.
        executor: Reads from the disk.
        directory: Directory for what is fetched; nothing else is in it, and what was is deleted by `start`.
        cache_bytes: Maximum bytes of all that is fetched.
        read_ahead_bytes: How far a reader is kept ahead of, at most.
    """

    def __init__(
        self,
        worker: Worker,
        disk: Disk,
        files: FileCache,
        executor: Executor,
        directory: Path,
        *,
        cache_bytes: int,
        read_ahead_bytes: int,
    ) -> None:
        self._worker = worker
        self._files = files
        self._loop = asyncio.get_running_loop()
        self.cache = ChunkCache(disk, files, directory, cache_bytes, self._loop.time)
        self.fetches = Fetches(worker, self.cache, disk, executor, read_ahead_bytes)
        self._asking = asyncio.Semaphore(TIMES_ASKED_MAX)
        self._warming_up: asyncio.Task[None] | None = None

    @property
    def status(self) -> ColdStatus:
        """How reads stand, for metrics."""
        cache, fetches = self.cache, self.fetches
        return ColdStatus(fetches.counters, cache.used_bytes, cache.bytes_max, fetches.waiting)

    def start(self) -> None:
        """Begin with an empty cache; the worker is there soon after, so that the first who reads need not wait for it.

        Raises:
            OSError: the directory can not be made, or emptied.
        """
        self.cache.wipe()
        self._warming_up = self._loop.create_task(self._warm_up(), name="start what reads the bucket")

    async def _warm_up(self) -> None:
        """Ask for a stream that is not there: an answer takes the process, all that it loads, and a connection."""
        await asyncio.sleep(WARM_UP_AFTER_S)
        try:
            await self._worker.call(MessageIdsJob(uuid=_NO_STREAM, partition=0, before=0, since_ns=0, limit=0))
        except TierWorkError as error:
            logger.warning("the bucket can not be read yet; it is asked again when somebody reads: %s", error)

    async def close(self) -> None:
        """Read nothing any more, and end the worker."""
        if self._warming_up is not None:
            self._warming_up.cancel()
            await asyncio.gather(self._warming_up, return_exceptions=True)
        await self.fetches.close()
        await self._worker.close()

    def read(
        self, partition: Partition, offset: int, bytes_max: int, hint: Slice | None, wake: Callable[[], None]
    ) -> list[Slice]:
        """Whole batches from the one that holds `offset`, see `is_cold`; none while they are being fetched.

        Args:
            partition: Led here.
            offset: First offset wanted.
            bytes_max: About how much; the first batch is returned whatever its size.
            hint: The last slice of the previous read.
            wake: Called once when they are there or can not be had, unless `stop_waiting` takes that back.

        Raises:
            ColdUnavailableError: they can not be had now.
            HistoryLostError: an object is missing or damaged, also after another look.
        """
        found = self._cached(partition, offset, bytes_max, hint)
        if not found:
            if self._find(partition, offset) is None:
                self.fetches.ask(partition, offset, wake)
            else:
                partition.wait(wake)  # it is committed, which this leader has yet to find out
        return found

    def stop_waiting(self, partition: Partition, wake: Callable[[], None]) -> None:
        """Take back what `read` promised."""
        self.fetches.stop_waiting(partition.key, wake)
        partition.stop_waiting(wake)

    def discard(self, slices: Iterable[Slice]) -> bool:
        """Slices can not be read, or not as they are. Returns whether they are of the bucket, and so not lost."""
        chunks = {piece.segment for piece in slices if isinstance(piece.segment, Chunk)}
        for chunk in chunks:
            self.cache.drop(chunk)
        return bool(chunks)

    def _cached(self, partition: Partition, offset: int, bytes_max: int, hint: Slice | None) -> list[Slice]:
        found: list[Slice] = []
        end = partition.high_watermark
        while bytes_max > 0 and is_cold(partition, offset) and (chunk := self._find(partition, offset)) is not None:
            reader = LogReader(self._files, [chunk], deque())
            try:
                pieces = reader.read(offset, min(end, chunk.next_offset), bytes_max, hint)
            except (SegmentCorruptError, OSError) as error:
                self.cache.drop(chunk)
                if found:
                    break
                raise ColdUnavailableError(f"what was fetched from the bucket is lost, ask again: {error}") from error
            if not pieces:
                break
            found += pieces
            bytes_max -= sum(piece.length for piece in pieces)
            offset = pieces[-1].next_offset
            self.fetches.counters.hits += chunk.is_read or not chunk.is_wanted
            self.cache.note_use(chunk)
            if not chunk.is_followed and _is_read_on(chunk, pieces[-1]):
                self.fetches.ask_ahead(partition, chunk)
        return found

    def _find(self, partition: Partition, offset: int) -> Chunk | None:
        """The chunk that answers for an offset, unless what it holds may have been compacted since it was fetched."""
        chunk = self.cache.find(partition.key, offset)
        if chunk is None or not partition.stream.config.compact:
            return chunk
        if self._loop.time() - chunk.landed_s < COMPACTED_S:
            return chunk
        self.cache.drop(chunk)
        return self._find(partition, offset)

    async def read_now(self, partition: Partition, offset: int, bytes_max: int) -> list[Slice]:
        """Like `read`, and wait for the records; returns none if the offset is not in the bucket any more.

        Raises:
            ColdUnavailableError, HistoryLostError: see `read`.
        """
        woken = asyncio.Event()
        while is_cold(partition, offset):
            woken.clear()
            try:
                if found := self.read(partition, offset, bytes_max, None, woken.set):
                    return found
                await woken.wait()
            finally:
                self.stop_waiting(partition, woken.set)
        return []

    async def offset_at_time(self, partition: Partition, timestamp: int) -> int | None:
        """Offset of the first record in the bucket not before `timestamp` (ns); None when all are earlier.

        Raises:
            ColdUnavailableError: the bucket can not be asked now.
            HistoryLostError: an object is missing or damaged, also after another look.
        """
        key = partition.key
        async with self._asking:
            self.fetches.failures.check(key, self._loop.time())
            try:
                result = await self._time_asked(partition, timestamp)
            except TierWorkError as error:
                if is_of_object(error):
                    what, instead = "what is at that time", "start at an offset"
                    text = lost_text(partition.stream.name, partition.number, what, error.message, instead)
                    raise HistoryLostError(text) from error
                raise self.fetches.failures.failed(key, error.code, error.message, self._loop.time()) from error
        return result.offset

    async def _time_asked(self, partition: Partition, timestamp: int) -> OffsetAtTimeResult:
        job = OffsetAtTimeJob(uuid=partition.key.uuid.hex(), partition=partition.number, timestamp=timestamp)
        for pause_s in LOOK_AGAIN_S:
            try:
                return await self._worker.call(job)
            except TierWorkError as error:
                if not is_of_object(error):
                    raise
            await asyncio.sleep(pause_s)
        return await self._worker.call(job)
