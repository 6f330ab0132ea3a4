"""Commits the processed offsets of a group's consumer: one commit at a time, each repeated until it is answered."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from liftpy_envelope.group_offsets import OFFSETS_MAX, CommitOffset, CommitRefusal
from liftpy_envelope.groups import GroupError
from liftpy_envelope.pull import PartitionKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from liftpy_client.consumer.assigned import AssignedConsumer
    from liftpy_client.group.link import GroupLink
    from liftpy_client.group.member import GroupMember, Lost
    from liftpy_client.tracing.interceptors import Interceptor

__all__ = ["Commits", "Offsets"]

Offsets = dict[PartitionKey, CommitOffset]


class Commits:
    """Commits offsets to the coordinator of a group.

    Args:
        member: Decides which offsets may be committed.
        link: Connection to the coordinator.
        assigned: Reader that knows what is processed.
        note: Called when a commit shows that the membership has ended.
        interceptors: What stands around each commit.
    """

    def __init__(
        self,
        member: GroupMember,
        link: GroupLink,
        assigned: AssignedConsumer,
        note: Callable[[Lost | None], None],
        interceptors: Interceptor,
    ) -> None:
        self._interceptors = interceptors
        self._member = member
        self._link = link
        self._assigned = assigned
        self._note = note
        self._order = asyncio.Lock()
        self._stopped: Offsets = {}
        # What needs no commit: what the coordinator has, and what was finished when it got that, if that is another
        # offset. Whoever commits a message that is in hand does not want it undone because it is not finished yet.
        self._known: dict[PartitionKey, set[tuple[int, int]]] = {}

    def stop(self, positions: Mapping[tuple[str, bytes, int], tuple[int, int]]) -> None:
        """These partitions are not read any more, and were finished up to here; still to be committed."""
        self._stopped |= _offsets(positions)

    def forget(self, keys: frozenset[PartitionKey] | set[PartitionKey]) -> None:
        """Partitions are gone: nothing of them is to be committed any more."""
        for key in keys:
            self._stopped.pop(key, None)
            self._known.pop(key, None)

    def began(self, key: PartitionKey, offset: int) -> None:
        """A partition begins at an offset that needs no commit."""
        if key in self._member.owned:
            self._known[key] = {(self._member.owned[key], offset)}

    def finished(self) -> Offsets:
        """What is finished, and not known to be committed."""
        return {key: row for key, row in self.every().items() if self._mark(key, row) not in self._known.get(key, ())}

    def every(self) -> Offsets:
        """What is finished, committed or not."""
        return _offsets(self._assigned.positions()) | self._stopped

    def _mark(self, key: PartitionKey, row: CommitOffset) -> tuple[int, int]:
        return self._member.owned.get(key, -1), row.offset

    async def commit(
        self, offsets: Callable[[], Offsets], until_s: float, *, unread: bool = False
    ) -> list[CommitRefusal] | None:
        """Commit, after the commits before this one.

        Args:
            offsets: Asked when it is its turn.
            until_s: When to give up, by the loop's clock.
            unread: See `GroupMember.commit`.

        Returns:
            What was not committed; None when the membership ended before it was known what was.

        Raises:
            CoordinatorUnavailableError: time is up.
            GroupFencedError, GroupRefusedError: the coordinator does not want any of it.
        """
        refusals: list[CommitRefusal] = []
        async with self._order:
            rows = iter(offsets().items())
            while chunk := dict(islice(rows, OFFSETS_MAX)):
                with self._interceptors.committing(self._member.join_options.group):
                    refused = await self._commit(chunk, until_s, unread=unread)
                if refused is None:
                    return None
                refusals += refused
        return refusals

    async def _commit(self, chunk: Offsets, until_s: float, *, unread: bool) -> list[CommitRefusal] | None:
        member = self._member
        self._note(member.beat(asyncio.get_running_loop().time()))
        request = member.commit(chunk, unread=unread)
        if request is None:
            return [CommitRefusal(key, GroupError.NOT_ASSIGNED) for key in chunk] if member.member_id else None
        rows = {PartitionKey(stream.uuid, row.partition): row for stream in request.streams for row in stream.offsets}
        finished = self.every()
        marks = {key: {self._mark(key, row), self._mark(key, finished.get(key, row))} for key, row in rows.items()}
        result = await self._link.insist(request, until_s, lambda: member.is_current(request))
        if result is None or not member.is_current(request):
            return None
        lost = member.committed(request, result)
        if lost is not None:
            self._note(lost)
            return None
        refused = {refusal.key for refusal in result.refusals}
        self._known |= {key: mark for key, mark in marks.items() if key not in refused}
        gone = [CommitRefusal(key, GroupError.NOT_ASSIGNED) for key in chunk if key not in rows]
        return [*result.refusals, *gone]


def _offsets(positions: Mapping[tuple[str, bytes, int], tuple[int, int]]) -> Offsets:
    return {
        PartitionKey(uuid, number): CommitOffset(number, offset, epoch)
        for (_, uuid, number), (offset, epoch) in positions.items()
    }
