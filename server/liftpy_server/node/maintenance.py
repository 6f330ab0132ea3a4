"""What a node does from time to time: retention, key compaction, checkpoints, interval syncs, a look at free space."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import LiftError
from liftpy_log.checkpoint import Checkpoint, save_checkpoint
from liftpy_log.segments.retention import is_active_expired, retention_offset
from liftpy_server.compaction.compactor import Compactor
from liftpy_server.compaction.process import WorkerProcess
from liftpy_server.partition.partition import Partition
from liftpy_server.settings.limits import CHECKPOINT_INTERVAL_S, DISK_CHECK_INTERVAL_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.clock import Clock
    from liftpy_log.data_dir import DataDir
    from liftpy_log.partition_log import PartitionLog
    from liftpy_log.storage.disk import Disk
    from liftpy_server.gaps.whole import Whole
    from liftpy_server.settings.config import StorageConfig
    from liftpy_server.streams.streams import Streams
    from liftpy_server.tier.host.side import TierSide

__all__ = ["Maintenance", "keep_checkpoint", "make_checkpoint", "unsaved_ordered"]

logger = logging.getLogger(__name__)

_RETAINED_PER_PASS: Final = 50
_CHECKPOINTS_PER_SAVE: Final = 12  # of the files of ordered producers: a minute


def make_checkpoint(streams: Streams, clock: Clock, *, clean: bool) -> Checkpoint:
    """What is committed now."""
    well = {
        (partition.key.uuid, partition.number): partition
        for partition in streams.partitions
        if partition.log.failure is None
    }
    marks = {key: partition.sure_mark for key, partition in well.items()}
    times = {key: partition.kept_time() for key, partition in well.items()}
    now_s, now_ns = clock.elapsed(), clock.now_ns()
    wholes = {
        key: [(now_ns - int((now_s - whole.at_s) * 1e9), whole.end) for whole in pairs]
        for key, partition in well.items()
        if (pairs := _wholes(partition))
    }
    return Checkpoint(clean, marks, times, wholes)


def _wholes(partition: Partition) -> list[Whole]:
    """Up to when the log holds all that was published: as it is, as a power loss or another leader would leave it."""
    partition.note_whole()
    ends = (partition.sure_end, partition.log.synced_end, partition.log.log_end)
    found = (partition.whole.newest(end) for end in ends)
    return sorted({whole for whole in found if whole is not None})


class UnsavedOrdered:
    """What is known of a partition's ordered producers, and to be written.

    Args:
        partition: Whose.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._ordered = partition.dedupe.ordered
        self._before = self._ordered.saved_end
        self._saves = partition.log.ordered_saves
        self._end = partition.ordered_end
        self._content = self._ordered.encode(self._end)
        self._is_saved = False

    def save(self) -> None:
        """Write it, in any thread, unless the file is newer by now.

        Raises:
            LiftError: It could not be written.
        """
        self._is_saved = self._partition.log.save_ordered(self._content, self._saves)

    def note(self) -> None:
        """It was written. If the log was cut meanwhile, what was written is not so any more."""
        if self._is_saved:
            self._ordered.saved_end = self._end if self._ordered.saved_end == self._before else -1


def unsaved_ordered(streams: Streams, *, may_wait: bool) -> list[UnsavedOrdered]:
    """What is to be written before a checkpoint.

    Args:
        streams: The node's.
        may_wait: Whether files that exist may stay as they are: then more of the log is read after a crash.
    """
    return [
        UnsavedOrdered(partition)
        for partition in streams.partitions
        if partition.has_unsaved_ordered and not (may_wait and partition.dedupe.ordered.saved_end is not None)
    ]


def keep_checkpoint(
    disk: Disk, data_dir: DataDir, checkpoint: Checkpoint, unsaved: Sequence[UnsavedOrdered] = ()
) -> None:
    """Write it; the next start takes longer without it, and that is all.

    It is not written if one of the ordered producers could not be: it says up to where a log without their file has
    none.
    """
    try:
        for ordered in unsaved:
            ordered.save()
    except LiftError as error:
        logger.warning("the checkpoint is not written: %s", error)
        return
    try:
        save_checkpoint(disk, data_dir.checkpoint_path, checkpoint)
    except OSError as error:
        logger.warning("the checkpoint could not be written: %s", error)


class Maintenance:
    """Runs the tasks.

    Args:
        streams: The node's.
        disk: Disk of the node.
        data_dir: Data directory of the node.
        config: How often.
        clock: Clock for what the checkpoint says.
        request_interval_sync: Asks for a round for streams that are synced at intervals.
        executor: Executor for small files.
        tier: The bucket; None without one.
    """

    def __init__(
        self,
        streams: Streams,
        disk: Disk,
        data_dir: DataDir,
        config: StorageConfig,
        clock: Clock,
        request_interval_sync: Callable[[PartitionLog], None],
        executor: Executor,
        tier: TierSide | None = None,
    ) -> None:
        self._streams = streams
        self._disk = disk
        self._data_dir = data_dir
        self._config = config
        self._clock = clock
        self._request_interval_sync = request_interval_sync
        self._executor = executor
        self._tier = tier
        self._compactor = Compactor(lambda: streams.by_key, clock, WorkerProcess)
        self._tasks: list[asyncio.Task[None]] = []
        self._short_windows: set[PartitionKey] = set()
        self.storage_full = False
        self.free_bytes = 0
        self.reserve_bytes = 0
        self._is_clock_off = False
        self._checkpoints = 0

    def start(self) -> None:
        """Begin."""
        self.check_disk()
        for action, interval_s in (
            (self._retain, self._config.retention_interval_s),
            (self._compactor.look, self._config.retention_interval_s),
            (self._checkpoint, CHECKPOINT_INTERVAL_S),
            (self._sync, self._config.sync_interval_s),
            (self._look_at_disk, DISK_CHECK_INTERVAL_S),
        ):
            self._tasks.append(asyncio.create_task(self._repeat(action, interval_s)))

    async def stop(self) -> None:
        """End."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @staticmethod
    async def _repeat(action: Callable[[], object], interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                result = action()
                if asyncio.iscoroutine(result):
                    await result
            except Exception:
                logger.exception("maintenance failed, and is tried again in %g s", interval_s)

    async def _retain(self) -> None:
        if any(partition.log.failure is not None for partition in self._streams.partitions):
            await self._checkpoint()  # it says no more how far a log was that is about to be begun anew
        for number, partition in enumerate(self._streams.partitions, 1):
            if partition.log.failure is None:
                self.watch_ids(partition)
                try:
                    self.retain(partition)
                except (LiftError, OSError) as error:
                    logger.error("retention of stream %s: %s", partition.stream.name, error)  # noqa: TRY400
            elif not self._streams.open_again(partition):
                partition.fail(str(partition.log.failure))  # whoever read it may not have told
                self._streams.renew(partition)
            if number % _RETAINED_PER_PASS == 0:
                await asyncio.sleep(0)  # a node with thousands of partitions goes on serving meanwhile
        self._look_at_clock()
        if self._tier is not None:
            await self._tier.ask_ends()

    def _look_at_clock(self) -> None:
        """Say so when the clock and the time of logs part, and when they are together again."""
        off = [ahead_s for each in self._streams.partitions if each.is_leading and (ahead_s := each.clock_ahead_s())]
        if bool(off) == self._is_clock_off:
            return
        self._is_clock_off = bool(off)
        if off:
            ahead_s = max(off, key=abs)
            logger.warning(
                "the clock of this node is %.0f s %s the time of %d partitions that it leads: new records carry that "
                "time, and none goes by the clock. Set the clock right; if it is, see docs/operate/runbooks.md, "
                "Clocks differ",
                *(abs(ahead_s), "ahead of" if ahead_s > 0 else "behind", len(off)),
            )
        else:
            logger.info("the clock of this node agrees with the time of the partitions that it leads")

    def watch_ids(self, partition: Partition) -> None:
        """Forget the message ids of a partition that are too old, and say when others had to be forgotten, too."""
        dedupe, now_ns = partition.dedupe, partition.age_now_ns()
        dedupe.expire(now_ns)
        is_short = partition.is_leading and dedupe.is_shortened(now_ns)
        if is_short == (partition.key in self._short_windows):
            return
        name, number, wanted_s = partition.stream.name, partition.number, dedupe.window_ns / 1e9
        if is_short:
            self._short_windows.add(partition.key)
            logger.warning(
                "stream %s partition %d: the message ids of the last %.1f s are known, not of %g s: a message that is "
                "sent again later is stored twice; give the stream a larger dedupe_ids_max (now %d, of which %d are "
                "known), or the node a larger storage.dedupe_memory_bytes",
                *(name, number, dedupe.known_ns(now_ns) / 1e9, wanted_s, dedupe.ids_max, len(dedupe)),
            )
        else:
            self._short_windows.discard(partition.key)
            logger.info("stream %s partition %d: the message ids of %g s are known again", name, number, wanted_s)

    def retain(self, partition: Partition) -> None:
        """Drop what one partition need not keep, and close a segment that grew old.

        Raises:
            StorageFullError, PartitionOfflineError, OSError: from the log.
        """
        config, log = partition.stream.config, partition.log
        if log.log_start == log.log_end and not log.active.size:
            return
        is_tiered = self._tier is not None and config.tier
        age_s = config.retention_age_s
        if is_tiered and config.local_retention_age_s:
            age_s = config.local_retention_age_s
        before_ns = partition.too_old_before(age_s)
        if is_active_expired(log.active, partition.now_ns(), before_ns, segment_age_ns=int(config.segment_age_s * 1e9)):
            partition.roll()
        if self._tier is not None and is_tiered:
            offset = self._tier.droppable(partition)
        else:
            offset = retention_offset(
                log.segments,
                before_ns=before_ns,
                bytes_max=config.retention_bytes,
                messages_max=config.retention_messages,
            )
        if offset is not None:
            partition.drop_before(offset)
        log.flush_index()

    async def _checkpoint(self) -> None:
        self._streams.tell_records()
        self._checkpoints += 1
        unsaved = unsaved_ordered(self._streams, may_wait=self._checkpoints % _CHECKPOINTS_PER_SAVE > 0)
        checkpoint = make_checkpoint(self._streams, self._clock, clean=False)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, keep_checkpoint, self._disk, self._data_dir, checkpoint, unsaved)
        for saved in unsaved:
            saved.note()

    def _sync(self) -> None:
        for partition in self._streams.by_interval.values():
            log = partition.log
            if log.synced_end < log.log_end:
                self._request_interval_sync(log)

    def _look_at_disk(self) -> None:
        self.check_disk()

    def check_disk(self) -> None:
        """Refuse messages while the disk has no room to spare, and take them again when it has."""
        free, total = _space(self._data_dir.root)
        reserve = min(self._config.disk_reserve_bytes, total // 10)
        self.free_bytes, self.reserve_bytes = free, reserve
        if self._tier is not None:
            self._tier.note_disk(free, reserve)
        full = free < reserve if not self.storage_full else free < reserve + reserve // 10
        if not full and not self.storage_full:
            return
        if full != self.storage_full:
            self.storage_full = full
            if full:
                logger.error("%s has only %d bytes free: messages are refused", self._data_dir.root, free)
            else:
                logger.info("%s has room again: messages are taken", self._data_dir.root)
        text = Partition.full_text if self._tier is None else self._tier.tierer.full_text(Partition.full_text)
        for partition in self._streams.partitions:
            partition.storage_full = full
            partition.full_text = text


def _space(path: Path) -> tuple[int, int]:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
