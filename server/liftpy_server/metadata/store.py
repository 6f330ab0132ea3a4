"""`MetadataStore`: propose commands, read the state, watch it change. The only door to the metadata.

A command is durable in the journal before it is applied and before its proposer hears of it. This is a cluster of
one; the interface is that of any cluster.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgpack

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_server.metadata.commands import Command, Outcome, apply_command
from liftpy_server.metadata.journal import Journal, JournalError
from liftpy_server.metadata.state import MetadataState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from liftpy_log.clock import Clock

__all__ = ["MetadataRefusedError", "MetadataStore", "MetadataUnavailableError"]

logger = logging.getLogger(__name__)

_COMPACT_AFTER_COMMANDS = 10_000


class MetadataRefusedError(LiftError):
    """A command was applied, and its outcome is a refusal.

    Attributes:
        code: why.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class MetadataUnavailableError(LiftError):
    """The command was not made durable; nothing changed."""

    retriable = True


class MetadataStore:
    """See the module.

    Args:
        path: the journal file.
        clock: stamps the commands.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._state = MetadataState()
        self._queue: asyncio.Queue[tuple[Command, asyncio.Future[Outcome]]] = asyncio.Queue(maxsize=10_000)
        self._changed = asyncio.Condition()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="liftpy-metadata")
        self._since_compaction = 0
        self._journal: Journal
        self._task: asyncio.Task[None]

    @property
    def state(self) -> MetadataState:
        """The state as this node knows it."""
        return self._state

    async def start(self) -> None:
        """Open the journal and apply what it holds.

        Raises:
            JournalError: it can not be used.
        """
        loop = asyncio.get_running_loop()
        self._journal = await loop.run_in_executor(self._executor, Journal, self._path)
        snapshot, commands = await loop.run_in_executor(self._executor, self._journal.load)
        if snapshot is not None:
            self._state = MetadataState.from_plain(msgpack.unpackb(snapshot))
        for command in commands:
            self._state, _ = apply_command(self._state, Command.decode(command))
        self._since_compaction = len(commands)
        self._task = loop.create_task(self._run(), name="metadata")

    async def stop(self) -> None:
        """Stop; commands that wait are not applied."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        while not self._queue.empty():
            _, future = self._queue.get_nowait()
            future.cancel()
        await asyncio.get_running_loop().run_in_executor(self._executor, self._journal.close)
        self._executor.shutdown()

    async def propose(self, op: str, /, *, command_id: str | None = None, **args: Any) -> Any:
        """Apply a command.

        Args:
            op: the command.
            command_id: the same id proposed again is applied once.
            args: the command's arguments.

        Returns:
            The value of its outcome.

        Raises:
            MetadataRefusedError: its outcome is a refusal.
            MetadataUnavailableError: it could not be made durable; nothing changed.
        """
        command = Command(id=command_id or uuid4().hex, op=op, now_ns=self._clock.now_ns(), args=args)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        await self._queue.put((command, future))
        outcome = await future
        if outcome.error is not ErrorCode.NONE:
            raise MetadataRefusedError(outcome.error, outcome.message)
        return outcome.value

    async def read(self, *, linearizable: bool = True) -> MetadataState:
        """The state; with `linearizable`, one that includes every command that was answered before the call."""
        del linearizable  # a cluster of one has no other state to be behind of
        return self._state

    async def watch(self) -> AsyncIterator[MetadataState]:
        """The state now, and after changes. A slow watcher skips states, and always gets the newest."""
        seen = -1
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._state.revision != seen)  # noqa: B023 - awaited right here
                state = self._state
            seen = state.revision
            yield state

    async def _run(self) -> None:
        while True:
            proposals = [await self._queue.get()]
            while not self._queue.empty():
                proposals.append(self._queue.get_nowait())
            await self._commit(proposals)

    async def _commit(self, proposals: list[tuple[Command, asyncio.Future[Outcome]]]) -> None:
        """One transaction for all commands that wait, then apply them in order."""
        loop = asyncio.get_running_loop()
        commands = [command.encode() for command, _ in proposals]
        try:
            await loop.run_in_executor(self._executor, self._journal.append, commands)
        except JournalError as error:
            logger.error("%s", error)  # noqa: TRY400 - the trace adds nothing
            for _, future in proposals:
                if not future.done():
                    future.set_exception(MetadataUnavailableError(str(error)))
            return
        async with self._changed:
            for command, future in proposals:
                self._state, outcome = apply_command(self._state, command)
                if not future.done():
                    future.set_result(outcome)
            self._changed.notify_all()
        self._since_compaction += len(commands)
        if self._since_compaction >= _COMPACT_AFTER_COMMANDS:
            await self._compact()

    async def _compact(self) -> None:
        loop = asyncio.get_running_loop()
        state = bytes(msgpack.packb(self._state.to_plain()))
        try:
            await loop.run_in_executor(self._executor, self._journal.compact, state)
            self._since_compaction = 0
        except JournalError as error:
            logger.warning("%s; trying again after the next command", error)
