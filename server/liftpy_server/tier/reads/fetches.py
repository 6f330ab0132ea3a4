"""Fetches from the bucket into the cache: each once, a few at a time, those first that somebody waits for, in turns.

A fetch that fails is told to all who wait for its partition, and to nobody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import LiftError
from liftpy_server.repeated_warnings import RepeatedWarnings
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.reads.chunk import Chunk
from liftpy_server.tier.reads.failures import ColdUnavailableError, Failures, HoleError, is_of_object, lost_text
from liftpy_server.tier.reads.fetch import ColdFetch
from liftpy_server.tier.reads.limits import (
    AHEAD_PIECES,
    CACHE_SHARE,
    FETCHES_MAX,
    IDLE_S,
    LOOK_AGAIN_S,
    PIECE_BYTES,
    QUEUED_MAX,
    SEEK_BYTES,
    SLOW_S,
)
from liftpy_server.tier.reads.metrics import ColdCounters
from liftpy_server.tier.requests import FetchChunkJob
from liftpy_server.tier.worker.port import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from concurrent.futures import Executor
    from pathlib import Path

    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.storage.disk import Disk
    from liftpy_server.partition.partition import Partition
    from liftpy_server.tier.reads.cache import ChunkCache
    from liftpy_server.tier.worker.port import Worker

__all__ = ["Fetches"]

logger = logging.getLogger(__name__)

_AHEAD_FETCHES_MAX: Final = FETCHES_MAX - 1  # one place is kept for those who wait


def _owners(fetch: ColdFetch) -> tuple[Hashable, Hashable]:
    """Those that take turns: streams, and partitions of one."""
    return fetch.partition.key.uuid, fetch.partition.key


class Fetches:
    """The fetches that wait, and those under way.

    Args:
        worker: Reads the bucket.
        cache: Takes what comes.
        disk: Where the cache is.
        executor: Reads from the disk.
        read_ahead_bytes: How far a reader is kept ahead of, at most.

    Attributes:
        failures: Failures of partitions that can not be read now.
        counters: Counters of fetches.
    """

    def __init__(
        self, worker: Worker, cache: ChunkCache, disk: Disk, executor: Executor, read_ahead_bytes: int
    ) -> None:
        self._worker = worker
        self._cache = cache
        self._disk = disk
        self._executor = executor
        self._ahead_bytes_max = max(SEEK_BYTES, min(read_ahead_bytes, cache.bytes_max // CACHE_SHARE))
        self._ahead_bytes = self._ahead_bytes_max
        self._loop = asyncio.get_running_loop()
        self._queue: dict[tuple[PartitionKey, int], ColdFetch] = {}
        self._running: dict[tuple[PartitionKey, int], tuple[ColdFetch, asyncio.Task[None]]] = {}
        self._reserved_bytes = 0
        self._waiters: dict[PartitionKey, set[Callable[[], None]]] = {}
        self._turn = 0
        self._turns: dict[Hashable, int] = {}  # of streams and partitions: when they had it, while somebody waits
        self._count = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._pumping: asyncio.Handle | None = None
        self._warnings = RepeatedWarnings(logger)
        self.failures = Failures()
        self.counters = ColdCounters()

    @property
    def ahead_bytes(self) -> int:
        """How far is fetched ahead by now where somebody reads on; less while the cache is too small for all."""
        return self._ahead_bytes

    @property
    def waiting(self) -> int:
        """How many fetches wait for their turn, or are under way."""
        return len(self._queue) + len(self._running)

    # -- who asks

    def ask(self, partition: Partition, offset: int, wake: Callable[[], None]) -> None:
        """Fetch what is at an offset and behind it; `wake` is called once, when it is there or can not be had.

        Raises:
            ColdUnavailableError: it can not be had now.
            HistoryLostError: an object is missing or damaged, which was found out a moment ago.
        """
        key = partition.key
        self.failures.check(key, self._loop.time())
        self.failures.check_hole(key, offset, self._loop.time())
        fetch = self._find(key, offset)
        if fetch is None:
            if len(self._queue) >= QUEUED_MAX:
                raise ColdUnavailableError("too much is being read from the bucket; ask again")
            before = self._cache.ending_at(key, offset)
            target = SEEK_BYTES if before is None else self._more_than(before.target_bytes)
            fetch = self._queue[key, offset] = ColdFetch(partition, offset, target, is_wanted=True)
        elif fetch.is_slow:
            raise ColdUnavailableError(f"the bucket takes more than {SLOW_S:g} s to answer; ask again")
        fetch.is_wanted = True
        self._waiters.setdefault(key, set()).add(wake)
        self._pump_soon()

    def ask_ahead(self, partition: Partition, after: Chunk) -> None:
        """Fetch what follows a chunk that is being read, in pieces side by side, if there is room for it."""
        after.is_followed = True
        if partition.cold is None:
            return
        if not after.is_wanted:  # it was of use to have fetched that
            self._ahead_bytes = min(2 * self._ahead_bytes, self._ahead_bytes_max)
        key, offset = partition.key, after.next_offset
        end = min(partition.cold.end, partition.log.log_start)
        target = self._more_than(after.target_bytes)
        room = min(AHEAD_PIECES * after.target_bytes, self._ahead_bytes)
        while room > 0 and offset < end and len(self._queue) < QUEUED_MAX:
            chunk = self._cache.find(key, offset)
            if chunk is not None:
                room, offset = room - chunk.size, chunk.next_offset
                continue
            fetch = self._find(key, offset)
            if fetch is None:
                until = next((each for each in after.following if each > offset), None)
                fetch = self._queue[key, offset] = ColdFetch(partition, offset, target, is_wanted=False, until=until)
            if fetch.until is None:
                break
            room, offset = room - fetch.target_bytes, fetch.until
        self._pump_soon()

    def stop_waiting(self, key: PartitionKey, wake: Callable[[], None]) -> None:
        """Take back an `ask`."""
        waiters = self._waiters.get(key)
        if waiters is not None:
            waiters.discard(wake)
            if not waiters:
                del self._waiters[key]

    def _find(self, key: PartitionKey, offset: int) -> ColdFetch | None:
        place = key, offset
        return self._running[place][0] if place in self._running else self._queue.get(place)

    def _more_than(self, target_bytes: int) -> int:
        return max(SEEK_BYTES, min(2 * target_bytes, PIECE_BYTES, self._ahead_bytes // AHEAD_PIECES))

    def _wake(self, key: PartitionKey) -> None:
        for wake in self._waiters.pop(key, ()):
            wake()

    # -- who fetches

    def _pump_soon(self) -> None:
        """Not at once: to make room chunks go, and the one asking may have slices in its hands that are not pinned."""
        if self._pumping is None:
            self._pumping = self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = None
        while len(self._running) < FETCHES_MAX and (fetch := self._next()) is not None:
            if self._reserve(fetch):
                task = self._loop.create_task(self._run(fetch), name="read from the bucket")
                self._running[fetch.place] = fetch, task

    def _next(self) -> ColdFetch | None:
        """The next one whose turn it is; those of readers who are gone are left out.

        Streams take turns, and partitions of one: who seeks once does not wait for another one's hundred seeks.
        """
        waiting = [fetch for fetch in self._queue.values() if fetch.is_wanted]
        for fetch in [fetch for fetch in waiting if fetch.partition.key not in self._waiters]:
            del self._queue[fetch.place]
        waiting = [fetch for fetch in waiting if fetch.place in self._queue]
        if waiting:
            running = Counter(owner for fetch, _ in self._running.values() for owner in _owners(fetch))
            chosen = min(
                waiting, key=lambda fetch: [(running[each], self._turns.get(each, 0)) for each in _owners(fetch)]
            )
            self._turn += 1
            self._turns |= dict.fromkeys(_owners(chosen), self._turn)
            return self._queue.pop(chosen.place)
        self._turns.clear()
        if self._queue and len(self._running) < _AHEAD_FETCHES_MAX:
            return self._queue.pop(next(iter(self._queue)))
        return None

    def _reserve(self, fetch: ColdFetch) -> bool:
        """Make room; nothing is fetched ahead where there is none, and little is fetched for those who wait."""
        fits, unread = self._cache.make_room(self._reserved_bytes + fetch.target_bytes)
        if unread or not fits:
            self._ahead_bytes = max(SEEK_BYTES, self._ahead_bytes // 2)
        if not fits:
            if not fetch.is_wanted:
                return False
            fetch.target_bytes = min(fetch.target_bytes, SEEK_BYTES)
        self._reserved_bytes += fetch.target_bytes
        return True

    async def _run(self, fetch: ColdFetch) -> None:
        key = fetch.partition.key
        self._count += 1
        path = self._cache.directory / f"{key.uuid.hex()}-{key.partition}-{fetch.offset:020d}-{self._count}.log"
        slow = self._loop.call_later(SLOW_S, self._note_slow, fetch)
        try:
            chunk = await self._found(fetch, path)
            self.counters.fetches += 1
            self.counters.fetched_bytes += chunk.size
            self._cache.add(chunk)
            self._cache.make_room(self._reserved_bytes - fetch.target_bytes)
            self.failures.succeeded(key, chunk.base_offset, chunk.next_offset)
            self._sweep_later()
        except BaseException as error:
            self._disk.remove(path)
            if not isinstance(error, Exception):
                raise
            self._failed(fetch, error)
        finally:
            slow.cancel()
            self._reserved_bytes -= fetch.target_bytes
            del self._running[fetch.place]
            self._wake(key)
        self._pump()

    def _note_slow(self, fetch: ColdFetch) -> None:
        fetch.is_slow = True
        self._wake(fetch.partition.key)

    async def _found(self, fetch: ColdFetch, path: Path) -> Chunk:
        """As `_fetched`, but look again where an object is missing or damaged: a collection may have replaced it."""
        is_known = self.failures.is_known_hole(fetch.partition.key, fetch.offset, self._loop.time())
        for pause_s in () if is_known else LOOK_AGAIN_S:
            try:
                return await self._fetched(fetch, path)
            except TierWorkError as error:
                if not (fetch.is_wanted and is_of_object(error)):
                    raise
            await asyncio.sleep(pause_s)
        return await self._fetched(fetch, path)

    async def _fetched(self, fetch: ColdFetch, path: Path) -> Chunk:
        partition, offset = fetch.partition, fetch.offset
        cold = partition.cold
        if cold is None:
            raise ColdUnavailableError("this node does not lead the partition any more")
        result = await self._worker.call(
            FetchChunkJob(
                uuid=partition.key.uuid.hex(),
                partition=partition.number,
                offset=offset,
                end=cold.end,
                enough=partition.log.log_start,
                bytes_max=fetch.target_bytes,
                until=fetch.until,
                following_bytes=self._more_than(fetch.target_bytes),
                nodes=tuple(sorted(cold.holders)) if offset >= cold.root_end else (),
                codec=partition.stream.config.compression.value,
                path=str(path),
            )
        )
        if result.hole is not None:
            raise HoleError(result.hole)
        chunk = Chunk(self._disk, path, partition.key, result.start, fetch.target_bytes, is_wanted=fetch.is_wanted)
        chunk.following = result.following
        await self._loop.run_in_executor(self._executor, chunk.load)
        if not chunk.base_offset <= offset < chunk.next_offset:
            raise ColdUnavailableError(
                f"offset {offset} was asked for, and {chunk.base_offset} to {chunk.next_offset - 1} came"
            )
        return chunk

    def _failed(self, fetch: ColdFetch, error: Exception) -> None:
        code = error.code if isinstance(error, TierWorkError) else "internal"
        now_s = self._loop.time()
        self.counters.failures[code] += 1
        if not is_of_object(error):
            self.failures.failed(fetch.partition.key, code, str(error) or type(error).__name__, now_s)
        elif fetch.is_wanted:
            self._note_hole(fetch, error, now_s)
        if not isinstance(error, (LiftError, OSError)):
            logger.error("a fetch from the bucket met an error", exc_info=error)
        else:
            partition = fetch.partition
            text = (
                f"stream {partition.stream.name} partition {partition.number}: offset {fetch.offset} is in the bucket"
            )
            self._warnings.tell("", f"{text}: {error}", now_s)

    def _note_hole(self, fetch: ColdFetch, error: Exception, now_s: float) -> None:
        partition, offset = fetch.partition, fetch.offset
        start, end = (error.start, error.end) if isinstance(error, HoleError) else (offset, partition.log.log_start)
        end = max(min(end, partition.log.log_start), offset + 1)
        text = lost_text(
            partition.stream.name,
            partition.number,
            f"what is at offsets {start} to {end - 1}",
            str(error),
            f"read from offset {end} on",
        )
        self.failures.lost(partition.key, start, end, text, now_s)

    # -- the end

    def _sweep_later(self) -> None:
        if self._sweep is None and len(self._cache):
            self._sweep = self._loop.call_later(IDLE_S / 2, self._drop_idle)

    def _drop_idle(self) -> None:
        self._sweep = None
        self._cache.drop_idle(IDLE_S)
        self._sweep_later()

    async def close(self) -> None:
        """Fetch nothing any more, and forget what was fetched."""
        self._queue.clear()
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._sweep is not None:
            self._sweep.cancel()
        self._cache.clear()
