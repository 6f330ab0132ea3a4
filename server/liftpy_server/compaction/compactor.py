"""Which partitions are compacted when: all replicas of streams with `compact = true`, one pass at a time per node."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.errors import LiftError
from liftpy_envelope.stream_config import Compression
from liftpy_log.compaction.compact import CompactionConfig, plan_compaction
from liftpy_log.errors import PartitionOfflineError
from liftpy_server.compaction.process import CompactionFailedError, CompactionWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from liftpy_envelope.pull import PartitionKey
    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_log.clock import Clock
    from liftpy_log.compaction.compact import CompactionPlan, CompactionReport
    from liftpy_log.compaction.state import Cleaned, CleanedSegment, SealedSegment
    from liftpy_log.partition_log import PartitionLog
    from liftpy_server.partition.partition import Partition

__all__ = ["Compactor", "compaction_config"]

logger = logging.getLogger(__name__)

MEMORY_BYTES_MAX: Final = 128 * 1024 * 1024  # of the map of keys: some 1.2 million in one pass, others in the next
_LOOK_AGAIN_S: Final = 60.0  # at a log of which no segment was closed: by then records and tombstones are older
_BACKOFF_MIN_S: Final = 60.0
_BACKOFF_MAX_S: Final = 3_600.0


def compaction_config(config: StreamConfig) -> CompactionConfig:
    """How a stream's logs are compacted."""
    compression = config.compression
    return CompactionConfig(
        min_lag_ns=int(config.min_compaction_lag_s * 1e9),
        dedupe_window_ns=int(config.dedupe_window_s * 1e9) if config.dedupe_ids_max else 0,
        delete_retention_ns=int(config.delete_retention_s * 1e9),
        min_dirty_ratio=config.min_dirty_ratio,
        segment_bytes=config.segment_bytes,
        memory_bytes_max=MEMORY_BYTES_MAX,
        codec=Compression.ZSTD.value if compression is Compression.NONE else compression.value,
    )


class _Seen(NamedTuple):
    """A log in which there was nothing to do.

    Attributes:
        log: The log.
        config: Settings of its stream.
        end: Where its newest segment began.
        until_s: When to look again in any case, monotonic.
    """

    log: PartitionLog
    config: StreamConfig
    end: int
    until_s: float


class _Trouble(NamedTuple):
    """A log whose last pass failed.

    Attributes:
        backoff_s: Time between the last attempt and the next, seconds.
        until_s: When the next attempt may be, monotonic.
    """

    backoff_s: float
    until_s: float


class Compactor:
    """Compacts partitions when they are due.

    Args:
        partitions: Those of which this node has a replica, in any role, as they are now.
        clock: Clock for what is looked at again later.
        make_worker: What runs the passes of one look.
    """

    def __init__(
        self,
        partitions: Callable[[], Mapping[PartitionKey, Partition]],
        clock: Clock,
        make_worker: Callable[[], CompactionWorker],
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._make_worker = make_worker
        self._seen: dict[PartitionKey, _Seen] = {}
        self._trouble: dict[PartitionKey, _Trouble] = {}

    async def look(self) -> None:
        """Compact what is due, one log after the other. When this is cancelled the pass that runs is given up."""
        candidates = [partition for partition in self._partitions().values() if partition.stream.config.compact]
        keys = {partition.key for partition in candidates}
        self._seen = {key: seen for key, seen in self._seen.items() if key in keys}
        self._trouble = {key: trouble for key, trouble in self._trouble.items() if key in keys}
        worker: CompactionWorker | None = None
        try:
            for partition in candidates:
                plan = self._plan(partition)
                if plan is not None:
                    worker = worker or self._make_worker()
                    await self._compact(partition, plan, worker)
        finally:
            if worker is not None:
                await worker.close()

    def _plan(self, partition: Partition) -> CompactionPlan | None:
        log, config, now_s = partition.log, partition.stream.config, self._clock.monotonic()
        trouble, seen = self._trouble.get(partition.key), self._seen.get(partition.key)
        if not self._is_here(partition) or log.failure is not None or (trouble is not None and now_s < trouble.until_s):
            return None
        end = log.active.base_offset
        if seen is not None and (seen.log, seen.config, seen.end) == (log, config, end) and now_s < seen.until_s:
            return None
        try:
            young_ns = partition.older_than_before(config.min_compaction_lag_s)
            wanted, now_ns = compaction_config(config), partition.age_now_ns()
            plan = plan_compaction(log.compaction, partition.high_watermark, now_ns, wanted, young_ns=young_ns)
        except OSError as error:
            self._failed(partition, str(error))
            return None
        if plan is None and partition.high_watermark >= end:
            self._seen[partition.key] = _Seen(log, config, end, now_s + _LOOK_AGAIN_S)
        return plan

    def _is_here(self, partition: Partition) -> bool:
        return self._partitions().get(partition.key) is partition

    async def _compact(self, partition: Partition, plan: CompactionPlan, worker: CompactionWorker) -> None:
        began_s = self._clock.monotonic()
        try:
            partition.save_ordered()  # merged batches have no producers
            report = await worker.run(plan, compaction_config(partition.stream.config), _Owner(partition))
        except CompactionFailedError as error:
            if error.is_damage and partition.log.compaction.cuts == plan.cuts:
                partition.fail(str(error))
            else:
                self._failed(partition, str(error))
        except LiftError as error:
            self._failed(partition, str(error))
        else:
            self._trouble.pop(partition.key, None)
            self._tell(partition, self._clock.monotonic() - began_s, report)

    def _failed(self, partition: Partition, reason: str) -> None:
        if not self._is_here(partition):
            logger.debug("%s was not compacted to the end: it is not here any more", partition.log.directory)
            return
        if partition.log.failure is not None:  # which was logged, and is looked at no more
            return
        before = self._trouble.get(partition.key)
        backoff_s = _BACKOFF_MIN_S if before is None else min(2 * before.backoff_s, _BACKOFF_MAX_S)
        self._trouble[partition.key] = _Trouble(backoff_s, self._clock.monotonic() + backoff_s)
        logger.warning(
            "stream %s partition %d could not be compacted, and is tried again in %g s: %s",
            partition.stream.name,
            partition.number,
            backoff_s,
            reason,
        )

    @staticmethod
    def _tell(partition: Partition, seconds: float, report: CompactionReport) -> None:
        name, number = partition.stream.name, partition.number
        if not report.is_complete:
            logger.info("stream %s partition %d changed while it was compacted; the rest is done later", name, number)
        elif report.bytes_before:
            logger.info(
                "stream %s partition %d: compacted up to offset %d, from %d to %d bytes in %.1f s; %d keys were new",
                *(name, number, report.clean_end, report.bytes_before, report.bytes_after, seconds, report.keys),
            )


class _Owner:
    """A partition's log, which goes offline in every respect when it fails."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._log = partition.log.compaction

    def replace_segments(self, old: Sequence[SealedSegment], new: CleanedSegment, cuts: int) -> bool:
        return self._do(lambda: self._log.replace_segments(old, new, cuts))

    def save_cleaned(self, cleaned: Cleaned, cuts: int) -> bool:
        return self._do(lambda: self._log.save_cleaned(cleaned, cuts))

    def _do(self, work: Callable[[], bool]) -> bool:
        try:
            return work()
        except PartitionOfflineError as error:
            self._partition.fail(str(error))
            raise
