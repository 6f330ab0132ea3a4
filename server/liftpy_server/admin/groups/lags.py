"""How far the groups that a node coordinates are behind.

Leaders alone know where their partitions end, so they are asked, and only when somebody reads the node's metrics.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.pull import PartitionKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from liftpy_server.admin.node_parts import NodeParts
    from liftpy_server.metadata.state import StreamInfo

__all__ = ["GROUPS_MAX", "GROUP_PARTITIONS_MAX", "GroupLags"]

logger = logging.getLogger(__name__)

GROUPS_MAX: Final = 1_000
"""Of so many groups a node tells the metrics."""
GROUP_PARTITIONS_MAX: Final = 10_000
"""Of so many partitions of all groups together."""
_FRESH_S: Final = 5.0
_WAIT_S: Final = 1.0  # scrapers are not kept waiting by a leader that is silent


class GroupLags:
    """Finds how many offsets each group has yet to read in each partition.

    Args:
        node: This node.
        show: Shows streams with what their leaders know; see `Gatherer.show`.
    """

    def __init__(
        self, node: NodeParts, show: Callable[[Sequence[StreamInfo]], Awaitable[list[dict[str, Any]]]]
    ) -> None:
        self._node = node
        self._show = show
        self._lags: dict[tuple[str, PartitionKey], int] = {}
        self._read_s = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def read(self) -> Mapping[tuple[str, PartitionKey], int]:
        """The lags of some seconds ago, by group and partition; without those that nobody could tell in time."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._read_s >= _FRESH_S and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._ask(), name="asking for the lags of groups")
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=_WAIT_S)
        return self._lags

    async def stop(self) -> None:
        """Ask nobody any more."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _ask(self) -> None:
        try:
            places = self._places()
            names = {key.uuid.hex() for _, key in places}
            streams = [info for info in self._node.metadata.state.streams.values() if info.uuid in names]
            ends = _ends(await self._show(streams)) if streams else {}
            self._lags = {
                (group, key): max(0, end - max(offset, start))
                for (group, key), offset in places.items()
                if (found := ends.get(key)) is not None
                for start, end in [found]
            }
            self._read_s = asyncio.get_running_loop().time()
        except Exception:
            self._lags = {}
            logger.exception("the lags of groups can not be told now")

    def _places(self) -> dict[tuple[str, PartitionKey], int]:
        """Where each group is: what it has committed, and the beginning of what its members have beside that."""
        places: dict[tuple[str, PartitionKey], int] = {}
        for group in self._node.groups.told(GROUPS_MAX):
            room = GROUP_PARTITIONS_MAX - len(places)
            places |= {(group.name, key): 0 for key in islice(group.assigned, room)}
            places |= {(group.name, key): each.offset for key, each in islice(group.committed, room)}
        return places


def _ends(streams: Sequence[Mapping[str, Any]]) -> dict[PartitionKey, tuple[int, int]]:
    """The first offset of each partition and the one behind its last, where its leader has told."""
    return {
        PartitionKey(bytes.fromhex(stream["uuid"]), each["partition"]): (each["log_start"], each["high_watermark"])
        for stream in streams
        for each in stream["partitions"]
        if not each["unreachable"]
    }
