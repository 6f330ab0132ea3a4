"""Finds where a group member starts in partitions it gains: at the committed offset, or as its options say."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from liftpy_client.connection.cluster import is_passing
from liftpy_client.consumer.positions import Position
from liftpy_client.consumer.start_finder import StartFinder
from liftpy_client.errors import AdminError, NodeUnavailableError, NoStreamError, PullError, UsageError
from liftpy_envelope.group_offsets import CommitOffset
from liftpy_envelope.pull import PartitionKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.options import ConsumeOptions
    from liftpy_client.group.commits import Commits
    from liftpy_client.group.link import GroupLink
    from liftpy_client.group.member import GroupMember, Lost
    from liftpy_client.group.options import GroupOptions

__all__ = ["GroupStarts"]

logger = logging.getLogger(__name__)

_COMMIT_S: Final = 30.0


class GroupStarts:
    """Finds the start offsets of gained partitions.

    A partition without a committed offset starts as the options say. Unless that is the earliest message, the offset is
    committed before the partition is read. Otherwise the next member would start at what is the latest message then.
    """

    def __init__(
        self,
        session: Session,
        member: GroupMember,
        link: GroupLink,
        commits: Commits,
        options: tuple[ConsumeOptions, GroupOptions],
    ) -> None:
        self._session = session
        self._member = member
        self._link = link
        self._commits = commits
        self._options, self._group_options = options

    async def find(self) -> tuple[dict[PartitionKey, Position], Lost | None]:
        """Positions of partitions that wait for one. Those for which there is none now wait on.

        Raises:
            CoordinatorUnavailableError, GroupRefusedError: see `GroupLink` and `GroupMember`.
            CorruptRecordsError: a partition is offline.
        """
        member = self._member
        request = member.fetch()
        if request is None:
            return {}, None
        result = await self._link.insist(
            request, float("inf"), lambda: member.is_current(request) and member.pending is None
        )
        if result is None:
            return {}, None
        found, lost = member.fetched(request, result)
        positions: dict[PartitionKey, Position] = {}
        for key, row in found.items():
            if row is not None:
                positions[key] = Position(row.offset, None, epoch=row.epoch)
                self._commits.began(key, row.offset)
        new = [key for key, row in found.items() if row is None]
        if new:
            positions |= await self._find_new(new)
        return {key: at for key, at in positions.items() if member.is_waiting(key, request.generation)}, lost

    async def _find_new(self, keys: list[PartitionKey]) -> Mapping[PartitionKey, Position]:
        numbers: dict[bytes, list[int]] = {}
        for key in keys:
            numbers.setdefault(key.uuid, []).append(key.partition)
        positions: dict[PartitionKey, Position] = {}
        for uuid, of_stream in numbers.items():
            positions |= await self._ask_leaders(uuid, of_stream)
        if self._group_options.start == "earliest":
            for key, at in positions.items():
                self._commits.began(key, at.offset)  # retention may remove it while nothing was read: no commit of it
            return positions
        return await self._committed(positions)

    async def _ask_leaders(self, uuid: bytes, numbers: list[int]) -> dict[PartitionKey, Position]:
        name = self._member.names[uuid]
        finder = StartFinder(self._session, self._group_options.start, None, numbers, self._options)
        try:
            place, positions = await finder.find(name)
        except (NodeUnavailableError, NoStreamError, AdminError, PullError, UsageError) as error:
            # What is known here of the stream may be older or newer than what the coordinator knows.
            if isinstance(error, PullError) and not is_passing(error.code):
                raise
            logger.warning("group %s: where %s begins cannot be told: %s", self._member.join_options.group, name, error)
            return {}
        if place.uuid != uuid:
            return {}
        return {PartitionKey(uuid, number): at for number, at in positions.items()}

    async def _committed(self, positions: dict[PartitionKey, Position]) -> dict[PartitionKey, Position]:
        """Those of the positions that are committed now."""
        rows = {key: CommitOffset(key.partition, at.offset) for key, at in positions.items()}
        until_s = asyncio.get_running_loop().time() + _COMMIT_S
        refusals = await self._commits.commit(lambda: rows, until_s, unread=True)
        if refusals is None:
            return {}
        refused = {refusal.key for refusal in refusals}
        return {key: at for key, at in positions.items() if key not in refused}
