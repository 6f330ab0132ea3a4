"""Moves the history of what this node leads to the bucket: the asyncio shell around `Schedule`.

Partitions tell it when they have committed, and when their role changes; every now and then it looks at those that did
and starts the jobs that are due. Ingest never waits for it. What runs when a leadership ends runs on: the claim of the
next leader sees to it that it does not count.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from liftpy_envelope.errors import LiftError
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.host.counters import TierCounters
from liftpy_server.tier.host.gone_nodes import GoneNodes
from liftpy_server.tier.host.jobs import TierJobs
from liftpy_server.tier.host.retention_watch import RetentionWatch
from liftpy_server.tier.host.tiered_partition import may_have_history, waiting_bytes
from liftpy_server.tier.host.unsynced import Unsynced
from liftpy_server.tier.requests import CountsJob
from liftpy_server.tier.schedule.alarms import STORE_CODES, StoreState
from liftpy_server.tier.schedule.places import Job, Limits, Phase
from liftpy_server.tier.schedule.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.clock import Clock
    from liftpy_server.metadata.state import PartitionInfo
    from liftpy_server.partition.partition import Partition
    from liftpy_server.settings.tier import TierConfig
    from liftpy_server.tier.host.gone_nodes import Members
    from liftpy_server.tier.host.staged_rows import StagedRows
    from liftpy_server.tier.schedule.alarms import StoreHealth
    from liftpy_server.tier.schedule.places import Place, Task
    from liftpy_server.tier.worker.port import Identity, Worker

__all__ = ["TierRefusedError", "Tierer"]

logger = logging.getLogger(__name__)

_PASS_S_MAX: Final = 0.5
_LOOKED_AT_PER_PASS: Final = 500  # then others come in between
_SLOW_INTERVAL_S: Final = 5.0
_SLOW_AGES: Final = 4.0  # what waits longer than so many times `upload_age_s` waits too long
_SLOW_S_MIN: Final = 30.0
_REFUSING: Final = frozenset({"unfit", "foreign", "version"})


class TierRefusedError(LiftError):
    """The bucket can not be used with these settings."""


class Tierer:
    """Runs the schedule of the bucket.

    Args:
        config: Settings of the bucket.
        identity: Identity of this node.
        worker: Does the jobs; closed with this.
        clock: Clock for times.
        members: Members of the cluster.

    Attributes:
        staged: Reads staged batches of partitions; None until it is there.
        schedule: Decides what is done when.
        counters: Counters of finished work.
        partitions: Those that are led here and go to the bucket, or are not to go there and have a history in it.
    """

    def __init__(self, config: TierConfig, identity: Identity, worker: Worker, clock: Clock, members: Members) -> None:
        self.config = config
        self._clock = clock
        self._worker = worker
        self.counters = TierCounters()
        self.partitions: dict[PartitionKey, Partition] = {}
        self.staged: StagedRows | None = None
        self.schedule = Schedule(
            Limits(
                upload_bytes=config.upload_bytes,
                upload_age_s=config.upload_age_s,
                set_member_bytes_max=min(config.set_member_bytes_max, config.upload_bytes),
                merge_bytes=config.merge_bytes,
                object_bytes=config.object_bytes,
                gc_interval_s=config.gc_interval_s,
                grace_s=config.grace_s,
            ),
            clock.monotonic(),
        )
        self._gone = GoneNodes(members, identity.node_id, self.schedule, worker, clock, config.grace_s)
        self._jobs = TierJobs(
            config, identity, members, self.schedule, self.partitions, worker, clock, self.counters, self._gone
        )
        self._retention = RetentionWatch(self.schedule, self.partitions, worker, clock)
        self._absent: WeakKeyDictionary[Partition, int] = WeakKeyDictionary()  # the bucket had nothing in this epoch
        self._dirty: set[Partition] = set()
        self._unsynced = Unsynced(config.upload_age_s)
        self._wake = asyncio.Event()
        self._probed = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._loop_task: asyncio.Task[None] | None = None
        self._looked_s = self._retained_s = clock.monotonic()
        self._is_counted = True

    @property
    def health(self) -> StoreHealth:
        """Health of the store."""
        return self.schedule.health

    # -- what partitions say; see `PartitionWatcher`

    def opened(self, partition: Partition, info: PartitionInfo) -> None:
        """A partition is here, or the metadata says something else of it."""
        partition.watcher = self
        partition.staged = self.staged
        self.role_changed(partition)
        if partition.key in self.partitions and info.log_start:
            self.purged(partition, info.log_start)

    def purged(self, partition: Partition, offset: int) -> None:
        """Nobody wants what a partition has below `offset`."""
        self.schedule.wants_start(partition.key, offset, self._clock.monotonic())
        if partition.cold is not None:
            partition.cold.raise_start(offset)

    def committed(self, partition: Partition) -> None:
        """See `PartitionWatcher`."""
        self._dirty.add(partition)

    def role_changed(self, partition: Partition) -> None:
        """See `PartitionWatcher`."""
        has_history, is_wanted = partition.log.log_end > 0, partition.stream.config.tier
        is_absent = self._absent.get(partition) == partition.epoch or not has_history
        if not may_have_history(partition) or (is_absent and not is_wanted):
            self.closed(partition)
            return
        self._absent.pop(partition, None)
        self.partitions[partition.key] = partition
        self.schedule.led(partition.key, partition.epoch, has_history=has_history)
        if has_history:
            self._dirty.add(partition)
        self._wake.set()

    def closed(self, partition: Partition) -> None:
        """See `PartitionWatcher`."""
        if self.partitions.get(partition.key) is partition:
            del self.partitions[partition.key]
            self.schedule.lost(partition.key)
        partition.cold = None

    def tiered_end(self, key: PartitionKey, wanted: int | None = None) -> int:
        """The bucket has everything of a partition below this offset, whoever leads it next; 0 for nothing.

        Args:
            key: Key of the partition.
            wanted: Something is to be dropped below this offset, or wherever the bucket ends. What of it the bucket has
                and may lose by a change of leaders is made sure of, for the next time.
        """
        place = self.schedule.places.get(key)
        if place is None or place.phase is Phase.STOPPED:
            return 0
        there = place.tiered_end if wanted is None else min(wanted, place.tiered_end)
        if place.phase is Phase.UNKNOWN or place.proven_end < there:
            self.schedule.wants_proof(key, self._clock.monotonic())
            self._wake.set()
        return 0 if place.phase is Phase.UNKNOWN else min(place.proven_end, place.tiered_end)

    def catalog_failed(self, error: TierWorkError | None) -> None:
        """What whoever keeps the catalog found wrong with the bucket; None when nothing is any more."""
        if error is not None and error.code in STORE_CODES:
            if self.health.failed(error.code, error.message, self._clock.monotonic(), was_tried=False):
                self._tell_store()
            self._wake.set()

    # -- life

    def start(self) -> None:
        """Start to tier."""
        self._loop_task = asyncio.create_task(self._run(), name="tier")

    async def stop(self) -> None:
        """End; what is on its way to the bucket is given up, as by a crash."""
        tasks = [task for task in (self._loop_task, *self._running) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._worker.close()

    async def check(self, timeout_s: float, *, may_be_foreign: bool) -> None:
        """Wait for the first look at the bucket, but not for long.

        Args:
            timeout_s: Time limit in seconds.
            may_be_foreign: Whether it may be another cluster's; then nothing is written to it.

        Raises:
            TierRefusedError: it can not be used as it is.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._probed.wait()
        except TimeoutError:
            logger.warning("the bucket %s has not answered within %g s; it is asked on", self.config.url, timeout_s)
            return
        is_tolerated = may_be_foreign and self.health.code == "foreign"
        if self.health.state is StoreState.REFUSED and self.health.code in _REFUSING and not is_tolerated:
            raise TierRefusedError(f"tier.url {self.config.url} can not be used: {self.health.message}")

    def try_soon(self) -> None:
        """Something was changed: look at the bucket again now."""
        self.health.try_soon(self._clock.monotonic())
        self._wake.set()

    async def _run(self) -> None:
        pass_s = min(_PASS_S_MAX, self.config.upload_age_s / 4)
        while True:
            self._wake.clear()
            try:
                await self._pass()
            except Exception:
                logger.exception("looking for what is to go to the bucket failed, and is tried again")
            try:
                async with asyncio.timeout(pass_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _pass(self) -> None:
        dirty, self._dirty = self._dirty | self._unsynced.again(), set()
        for number, partition in enumerate(dirty, 1):
            self._measure(partition)
            if number % _LOOKED_AT_PER_PASS == 0:
                await asyncio.sleep(0)
        now_s = self._clock.monotonic()
        for task in self.schedule.tasks(now_s):
            self._begin(self._do(task))
        if now_s - self._looked_s >= _SLOW_INTERVAL_S:
            self._looked_s = now_s
            self._look_at_waiting(now_s)
            self._gone.look()
            if not self._is_counted:
                self._is_counted = True
                self._begin(self._count())
        if now_s - self._retained_s >= self.config.gc_interval_s:
            self._retained_s = now_s
            self._begin(self._retention.look())
            self._begin(self._gone.adopt())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        running = asyncio.create_task(work)
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _count(self) -> None:
        try:
            self.counters.take(await self._worker.call(CountsJob()))
        except TierWorkError as error:
            logger.debug("how many requests there were is not known: %s", error)

    def _measure(self, partition: Partition) -> None:
        place = self.schedule.places.get(partition.key)
        if place is None or self.partitions.get(partition.key) is not partition:
            return
        if not may_have_history(partition):  # its log has failed
            self.closed(partition)
            return
        if not partition.stream.config.tier:
            self._keep_known(partition, place)
            return
        place.has_producers = len(partition.dedupe.ordered) > 0
        end = self._unsynced.sure_end(partition, self._clock.monotonic())
        size = waiting_bytes(partition.log.segments, place.tiered_end, end) if end > place.tiered_end else 0
        self.schedule.wrote(partition.key, end, size, self._clock.monotonic())

    def _keep_known(self, partition: Partition, place: Place) -> None:
        """Nothing more of a partition goes to the bucket, but what is there is still read, retained and purged."""
        key, cold = partition.key, partition.cold
        self.schedule.wrote(key, place.tiered_end, 0, self._clock.monotonic())
        is_empty = cold is None or (cold.end <= cold.start and not cold.stored_bytes)
        if place.phase is Phase.UNKNOWN:
            self.schedule.looks(key)
        elif place.phase is Phase.KNOWN and is_empty and not place.is_busy:
            self.closed(partition)
            self._absent[partition] = partition.epoch

    def _look_at_waiting(self, now_s: float) -> None:
        since_s = [place.since_s for place in self.schedule.places.values() if place.since_s is not None]
        oldest_s = now_s - min(since_s) if since_s else 0.0
        allowed_s = max(_SLOW_S_MIN, _SLOW_AGES * self.config.upload_age_s)
        if self.health.waits(oldest_s, allowed_s, now_s):
            self._tell_store()

    async def _do(self, task: Task) -> None:
        try:
            tells = await self._jobs.do(task)
        except TierWorkError as error:
            tells = self._jobs.fail(task, error.code, error.message)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not isinstance(error, (LiftError, OSError)):
                logger.exception("the job %s of the bucket failed", task.job.value)
            tells = self._jobs.fail(task, "internal", str(error) or repr(error))
        if tells:
            self._tell(task)
        for place in task.places:
            partition = self.partitions.get(place.key)
            if partition is not None:
                self._dirty.add(partition)
        self._is_counted = False
        if task.job is Job.PROBE:
            self._probed.set()
        self._wake.set()

    # -- what people are told

    def _tell(self, task: Task) -> None:
        told = [place for place in task.places if place.trouble is not None]
        for place in told:
            self._tell_trouble(place)
        if not told:
            self._tell_store()

    def _tell_trouble(self, place: Place) -> None:
        partition, trouble = self.partitions.get(place.key), place.trouble
        if partition is None or trouble is None:
            return
        logger.error(
            "stream %s partition %d %s: %s",
            *(partition.stream.name, place.key.partition),
            "is not moved to the bucket any more" if trouble.stops else f"has trouble with the bucket ({trouble.code})",
            trouble.message,
        )

    def _tell_store(self) -> None:
        health, url = self.health, self.config.url
        if health.state is StoreState.OK:
            logger.info("the bucket %s takes what comes in", url)
        elif health.state in {StoreState.SLOW, StoreState.BUSY}:
            logger.warning("the bucket %s is %s: %s", url, health.state.value, health.message)
        else:
            logger.error(
                "the bucket %s is %s, and everything stays on disk meanwhile: %s",
                *(url, "not usable" if health.state is StoreState.REFUSED else health.state.value, health.message),
            )

    def full_text(self, usual: str) -> str:
        """What publishers are told when the disk is full: also why what it holds can not leave it."""
        if self.health.is_usable:
            return usual
        why = self.health.message or "it has not answered yet"
        return f"{usual}, and the bucket that takes what is old is {self.health.state.value}: {why}"[:500]
