"""Tells the cluster what a node finds out about itself: by a command of the metadata, which gives it its place.

Bounded: what can not be told while nobody keeps the metadata is dropped, the newest first, and counted.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from uuid import uuid4

from liftpy_envelope.errors import LiftError
from liftpy_server.events.conditions import Condition, ConditionWatch, Refused
from liftpy_server.metadata.errors import MetadataRefusedError
from liftpy_server.metadata.event_commands import TOLD_AT_ONCE_MAX
from liftpy_server.repeated_warnings import RepeatedWarnings
from liftpy_server.tier.schedule.places import Phase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftpy_log.clock import Clock
    from liftpy_server.events.conditions import Told
    from liftpy_server.streams.streams import Streams
    from liftpy_server.tier.host.side import TierSide

__all__ = ["Disk", "EventTeller"]

logger = logging.getLogger(__name__)

_LOOK_S: Final = 2.0
_QUEUED_MAX: Final = 1_000


class Disk(Protocol):
    """Looks after the disk.

    Attributes:
        storage_full: Messages are refused.
        free_bytes: Room that is left.
        reserve_bytes: Room that is to be left.
    """

    storage_full: bool
    free_bytes: int
    reserve_bytes: int


class _Batch(NamedTuple):
    """What is told at once; told again it keeps its id."""

    command_id: str
    rows: list[list[Any]]


class EventTeller:
    """See the module.

    Args:
        node_id: This node.
        streams: The node's.
        disk: The node's.
        tier: The bucket; None without one.
        clock: Clock of the node.
        propose: Proposes commands to the metadata.

    Attributes:
        dropped: How many events could not be told.
    """

    def __init__(
        self,
        node_id: str,
        streams: Streams,
        disk: Disk,
        tier: TierSide | None,
        clock: Clock,
        propose: Callable[..., Awaitable[Any]],
    ) -> None:
        self._node_id = node_id
        self._streams = streams
        self._disk = disk
        self._tier = tier
        self._clock = clock
        self._propose = propose
        self._watch = ConditionWatch()
        self._queue: list[list[Any]] = []
        self._batch: _Batch | None = None
        self._warnings = RepeatedWarnings(logger)
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="tell events")

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                self.look()
                await self._tell()
            except LiftError as error:
                text = f"{len(self._queue)} events of this node can not be told yet: {error}"
                self._warnings.tell("", text, self._clock.monotonic())
            except Exception:
                logger.exception("events of this node can not be told; it is tried again")
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """See what has begun and ended, and have it told."""
        found, gone = self._stopped_uploads()
        disk = {"free_bytes": self._disk.free_bytes, "reserve_bytes": self._disk.reserve_bytes}
        if self._disk.storage_full:
            found[Condition("disk.full")] = disk
        told = self._watch.look(self._clock.monotonic(), found, self._refused(), {"disk.full": disk}, gone)
        now_ns = self._clock.now_ns()
        room = _QUEUED_MAX - len(self._queue)
        self.dropped += len(told[room:])
        self._queue += [self._row(each, now_ns) for each in told[:room]]

    @staticmethod
    def _row(told: Told, now_ns: int) -> list[Any]:
        return [told.kind, now_ns, told.stream, told.partition, told.details]

    def _refused(self) -> dict[Refused, int]:
        return {
            Refused(stream.info.name, reason): count
            for stream in self._streams.by_uuid.values()
            for reason, count in stream.state.counters.refused.items()
        }

    def _stopped_uploads(self) -> tuple[dict[Condition, dict[str, Any]], list[Condition]]:
        """The bucket that can not be used, and partitions that do not go there any more; and who no longer matters."""
        if self._tier is None:
            return {}, []
        found: dict[Condition, dict[str, Any]] = {}
        tierer = self._tier.tierer
        health = tierer.health
        if health.code and not health.is_usable:
            found[Condition("upload.stopped")] = {"code": health.code, "cause": health.message}
        led = set()
        for key, place in tierer.schedule.places.items():
            partition = tierer.partitions.get(key)
            if partition is None:
                continue
            condition = Condition("upload.stopped", partition.stream.name, key.partition)
            led.add(condition)
            if place.phase is Phase.STOPPED and place.trouble is not None:
                found[condition] = {"code": place.trouble.code, "cause": place.trouble.message}
        gone = [each for each in self._watch.lasting() if each.partition is not None and each not in led]
        return found, gone

    async def _tell(self) -> None:
        """Tell all that is queued.

        Raises:
            LiftError: the metadata did not take it; it is still queued.
        """
        while self._queue or self._batch is not None:
            if self._batch is None:
                self._batch = _Batch(uuid4().hex, self._queue[:TOLD_AT_ONCE_MAX])
                del self._queue[:TOLD_AT_ONCE_MAX]
            command_id, rows = self._batch
            try:
                await self._propose("tell_events", command_id=command_id, node_id=self._node_id, events=rows)
            except MetadataRefusedError:
                self.dropped += len(rows)
                self._batch = None
                raise
            self._batch = None
