"""Moves the start of histories in the bucket as total retention says, and has keys compacted there.

A history is asked for only when something of it can have become too old, or too much: one that is quiet costs nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.requests import WantedStartJob
from liftpy_server.tier.schedule.places import Phase
from liftpy_server.tier.schedule.retention import counted_start, stored_limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_envelope.pull import PartitionKey
    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_log.clock import Clock
    from liftpy_server.partition.partition import Partition
    from liftpy_server.tier.schedule.places import Place
    from liftpy_server.tier.schedule.schedule import Schedule
    from liftpy_server.tier.worker.port import Worker

__all__ = ["RetentionWatch"]

logger = logging.getLogger(__name__)


class _Seen(NamedTuple):
    """A history in which everything was still wanted, but for what was given up then.

    Attributes:
        place: Leadership that it was seen in.
        config: Settings of the stream.
        tiered_end: How far it went.
        oldest_ns: Timestamp of the newest record in its oldest object; 0 where there is none.
    """

    place: Place
    config: StreamConfig
    tiered_end: int
    oldest_ns: int


class RetentionWatch:
    """Looks at partitions in turn for what may leave the bucket.

    Args:
        schedule: Has starts moved.
        partitions: Those that it knows.
        worker: Looks at the bucket.
        clock: Clock for what is tried again.
    """

    def __init__(
        self, schedule: Schedule, partitions: Mapping[PartitionKey, Partition], worker: Worker, clock: Clock
    ) -> None:
        self._schedule = schedule
        self._partitions = partitions
        self._worker = worker
        self._clock = clock
        self._seen: dict[PartitionKey, _Seen] = {}
        self._is_looking = False

    async def look(self) -> None:
        """Look at all histories, one after the other; no-op while that goes on, or while the store is not well."""
        if self._is_looking:
            return
        self._is_looking = True
        try:
            for key, partition in list(self._partitions.items()):
                if not self._schedule.health.is_usable:
                    return
                await self._look_at(key, partition)
            self._seen = {key: seen for key, seen in self._seen.items() if key in self._partitions}
        finally:
            self._is_looking = False

    async def _look_at(self, key: PartitionKey, partition: Partition) -> None:
        place, config, log = self._schedule.places.get(key), partition.stream.config, partition.log
        if place is None or not (place.phase in {Phase.KNOWN, Phase.CLAIMED} or _is_stopped_by_a_hole(place)):
            return
        if not config.tier and log.log_start > place.tiered_end:
            # Retention of a stream that is not tiered counts the log alone, and the bucket has what is older still.
            self._start(key, partition)
            return
        if place.tiered_end <= place.start:
            return
        if config.compact and place.new_bytes > config.min_dirty_ratio * _stored(partition):
            self._schedule.compacts(key)
        tiered_end = place.tiered_end
        self._give_up(key, partition, place, min(counted_start(config, partition.high_watermark), tiered_end))
        before_ns = partition.too_old_before(config.retention_age_s)
        limits = stored_limits(config, before_ns, local_bytes=log.size_bytes, log_start=log.log_start)
        if limits is None or self._is_known(place, config, before_ns):
            return
        try:
            found = await self._worker.call(
                WantedStartJob(
                    uuid=key.uuid.hex(),
                    partition=key.partition,
                    before_ns=limits.before_ns,
                    stored_bytes_max=limits.stored_bytes_max,
                    below=limits.below,
                )
            )
        except TierWorkError as error:
            logger.info("stream %s partition %d: retention in the bucket: %s", config.name, key.partition, error)
            return
        if not _is_stopped_by_a_hole(place):
            self._seen[key] = _Seen(place, config, tiered_end, found.oldest_ns)
        self._give_up(key, partition, place, min(found.start, tiered_end))

    def _give_up(self, key: PartitionKey, partition: Partition, place: Place, start: int) -> None:
        """Nobody wants what lies below `start`. One that a hole has stopped goes on where that is all there is."""
        is_over = self._partitions.get(key) is not partition or self._schedule.places.get(key) is not place
        if is_over or start <= place.start:
            return
        if not _is_stopped_by_a_hole(place):
            self._want(key, partition, start)
        elif start >= place.tiered_end:
            self._start(key, partition)

    def _start(self, key: PartitionKey, partition: Partition) -> None:
        """What the bucket has of a partition is wanted no more, and what came next never got there."""
        if self._want(key, partition, partition.log.log_start):
            logger.warning(
                "stream %s partition %d: what came next to its history in the bucket has left the disks by retention "
                "before it got there; that history begins anew at offset %d",
                *(partition.stream.name, key.partition, partition.log.log_start),
            )

    def _want(self, key: PartitionKey, partition: Partition, start: int) -> bool:
        """Have the bucket's start moved. Returns whether that is new."""
        is_new = start > self._schedule.places[key].wanted_start
        self._schedule.wants_start(key, start, self._clock.monotonic())
        if partition.cold is not None:
            partition.cold.raise_start(start)
        return is_new

    def _is_known(self, place: Place, config: StreamConfig, before_ns: int) -> bool:
        """Whether nothing can have changed since it was looked at last."""
        seen = self._seen.get(place.key)
        if seen is None or (seen.place, seen.config, seen.tiered_end) != (place, config, place.tiered_end):
            return False
        return not 0 < seen.oldest_ns < before_ns


def _is_stopped_by_a_hole(place: Place) -> bool:
    return place.phase is Phase.STOPPED and place.trouble is not None and place.trouble.code == "hole"


def _stored(partition: Partition) -> int:
    return 0 if partition.cold is None else partition.cold.stored_bytes
