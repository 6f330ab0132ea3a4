"""Has a node do what the metadata says, again at every change, for as long as it runs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from liftpy_server.metadata.state import MetadataState

__all__ = ["MetadataFollower"]

logger = logging.getLogger(__name__)


class _Metadata(Protocol):
    @property
    def state(self) -> MetadataState: ...

    def watch(self) -> AsyncIterator[MetadataState]: ...


class MetadataFollower:
    """Makes the node follow the metadata: opens, changes and closes streams.

    Args:
        metadata: Metadata of the cluster.
        follow: Does what a state says.
    """

    def __init__(self, metadata: _Metadata, follow: Callable[[MetadataState], Awaitable[None]]) -> None:
        self._metadata = metadata
        self._follow = follow
        self._followed = asyncio.Condition()
        self._revision = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to follow the metadata."""
        self._task = asyncio.create_task(self.run(), name="follow metadata")

    async def stop(self) -> None:
        """Stop following the metadata."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run(self) -> None:
        """Follow; an error at one change does not end it."""
        async for state in self._metadata.watch():
            try:
                await self._follow(state)
            except Exception:
                logger.exception("this node does not do all that the metadata says; it goes on with the next change")
            async with self._followed:
                self._revision = state.revision
                self._followed.notify_all()

    async def wait(self) -> None:
        """Wait until the node does what the metadata says now."""
        revision = self._metadata.state.revision
        async with self._followed:
            await self._followed.wait_for(lambda: self._revision >= revision)
