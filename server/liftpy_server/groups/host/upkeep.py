"""Groups that nobody used for long are forgotten, and so is what was committed for streams that are no more."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from liftpy_server.groups.core.inputs import DeleteGroup
from liftpy_server.groups.host.limits import SLICE_GROUPS
from liftpy_server.groups.host.pending import PendingRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_server.consensus.store import RaftMetadataStore
    from liftpy_server.groups.host.group_partition import GroupPartition

__all__ = ["GroupUpkeep"]

logger = logging.getLogger(__name__)


class GroupUpkeep:
    """Looks at all groups of the node from time to time, some at a time.

    Args:
        hosted: The partitions, by number; they come and go.
        metadata: Metadata of the cluster.
        idle_s: A group without members that committed nothing for so long goes.
        interval_s: Interval in seconds.
    """

    def __init__(
        self,
        hosted: Mapping[int, GroupPartition],
        metadata: RaftMetadataStore,
        idle_s: float,
        interval_s: float,
    ) -> None:
        self._hosted = hosted
        self._metadata = metadata
        self._idle_s = idle_s
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the periodic upkeep."""
        self._task = asyncio.create_task(self._run(), name="look after consumer groups")

    async def stop(self) -> None:
        """Stop the periodic upkeep."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            for hosted in list(self._hosted.values()):
                try:
                    await self.look_after(hosted)
                except Exception:
                    logger.exception("consumer groups of partition %d are looked at again", hosted.partition.number)

    async def look_after(self, hosted: GroupPartition) -> None:
        """Look at the groups of one partition.

        A stream counts as gone when the metadata that are newer than all that was committed do not have it: what is
        committed comes from members, who were told of streams by this coordinator, or one before it.
        """
        coordinators = hosted.coordinators
        if coordinators is None:
            return
        live = {bytes.fromhex(info.uuid) for info in self._metadata.state.streams.values()}
        for number, group in enumerate(coordinators.groups, 1):
            if number % SLICE_GROUPS == 0:
                await asyncio.sleep(0)
                live |= {bytes.fromhex(info.uuid) for info in self._metadata.state.streams.values()}
            if hosted.coordinators is not coordinators:
                return
            gone = coordinators.table.streams_of(group) - live
            if gone:
                hosted.forget_streams(group, gone)
            if coordinators.is_idle(group, hosted.partition.older_than_before(self._idle_s)):
                hosted.ask(PendingRequest(group, DeleteGroup(int(self._idle_s * 1e9))))
