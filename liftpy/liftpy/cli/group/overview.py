"""Looking at all consumer groups, for `liftpy status`: bounded, and without holding up what else is looked at."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from liftpy.cli.group.lags import lags_of, total_lag
from liftpy_client.errors import AdminError
from liftpy_envelope.errors import ErrorCode, LiftError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from liftpy_client.admin.admin import Admin
    from liftpy_client.admin.details import StreamDetails
    from liftpy_client.admin.groups import GroupDetails, GroupSummary

__all__ = ["GroupSeen", "GroupsLook", "GroupsSeen"]

_ASKED_MAX: Final = 100
_AT_ONCE: Final = 8


class GroupSeen(NamedTuple):
    """A group, and by how many offsets it lags; None when it was not asked, or did not tell."""

    summary: GroupSummary
    lag: int | None

    def to_plain(self) -> dict[str, Any]:
        """For scripts."""
        return asdict(self.summary) | {"lag": self.lag}


class GroupsSeen(NamedTuple):
    """All groups, as they were seen last, and why that is not now; None when it is."""

    groups: list[GroupSeen]
    error: str | None = None


class GroupsLook:
    """Looks at the groups; to be used in an `async with`.

    While a coordinator is being replaced an answer takes seconds, in which everything else is to be shown.

    Args:
        lift: Whom to ask.
    """

    def __init__(self, lift: Admin) -> None:
        self._lift = lift
        self._asking: asyncio.Task[list[tuple[GroupSummary, GroupDetails | None]]] | None = None
        self._told: list[tuple[GroupSummary, GroupDetails | None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def look(self, streams: Iterable[StreamDetails], wait_s: float) -> GroupsSeen:
        """The groups as they are, or as they were when that takes longer than `wait_s`; that goes on until next time.

        Args:
            streams: All there are.
            wait_s: How long to wait.
        """
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        await asyncio.wait({self._asking}, timeout=wait_s)
        error = "the consumer groups have not answered yet"
        if self._asking.done():
            asked, self._asking = self._asking, None
            try:
                self._told, error = asked.result(), ""
            except LiftError as refusal:
                error = f"consumer groups: {refusal}"
        by_name = {stream.name: stream for stream in streams}
        seen = [
            GroupSeen(summary, None if details is None else total_lag(lags_of(details, by_name)))
            for summary, details in self._told
        ]
        return GroupsSeen(seen, error or None)

    async def _ask(self) -> list[tuple[GroupSummary, GroupDetails | None]]:
        groups = await self._lift.groups()
        busiest = sorted(groups, key=lambda group: (group.state != "active", group.group))[:_ASKED_MAX]
        few = asyncio.Semaphore(_AT_ONCE)

        async def ask(name: str) -> GroupDetails | None:
            async with few:
                try:
                    return await self._lift.group(name)
                except AdminError as error:
                    if error.code is not ErrorCode.UNKNOWN_GROUP:
                        raise
                    return None  # it was deleted meanwhile

        names = [group.group for group in busiest]
        found = dict(zip(names, await asyncio.gather(*map(ask, names)), strict=True))
        return [
            (group, found.get(group.group))
            for group in groups
            if group.group not in found or found[group.group] is not None
        ]
