"""`MetadataStore`: propose commands, read the state, watch it change. The only door to the metadata.

A command is durable in the journal before it is applied and before its proposer hears of it. This is a cluster of
one; the interface is that of any cluster.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple
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
_WAITING_MAX = 10_000


class _Proposal(NamedTuple):
    command: Command
    encoded: bytes
    outcome: asyncio.Future[Outcome]


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
        self._queue: asyncio.Queue[_Proposal | None] = asyncio.Queue(_WAITING_MAX)
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
        try:
            self._journal = await loop.run_in_executor(self._executor, Journal, self._path)
            try:
                await self._restore()
            except BaseException:
                await loop.run_in_executor(self._executor, self._journal.close)
                raise
        except BaseException:
            self._executor.shutdown()
            raise
        self._task = loop.create_task(self._run(), name="metadata")

    async def _restore(self) -> None:
        loop = asyncio.get_running_loop()
        snapshot, commands = await loop.run_in_executor(self._executor, self._journal.load)
        try:
            if snapshot is not None:
                self._state = MetadataState.from_plain(msgpack.unpackb(snapshot))
            for command in commands:
                self._state, _ = apply_command(self._state, Command.decode(command))
        except (LiftError, ValueError, LookupError, TypeError) as error:
            raise JournalError(f"the metadata journal {self._path} can not be used: {error}") from error
        self._since_compaction = len(commands)

    async def stop(self) -> None:
        """Stop. Commands that wait are applied and answered first: nobody is left not knowing what became of one."""
        try:
            await self._queue.put(None)
            await self._task
        finally:
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
        proposal = self._proposal(Command(id=command_id or uuid4().hex, op=op, now_ns=self._clock.now_ns(), args=args))
        try:
            self._queue.put_nowait(proposal)
        except asyncio.QueueFull:
            raise MetadataUnavailableError(f"{_WAITING_MAX} changes of the metadata wait already") from None
        try:
            answer_or_end: set[asyncio.Future[Any]] = {proposal.outcome, self._task}
            await asyncio.wait(answer_or_end, return_when=asyncio.FIRST_COMPLETED)
            if not proposal.outcome.done():
                raise MetadataUnavailableError("the node is stopping")
            outcome = proposal.outcome.result()
        finally:
            proposal.outcome.cancel()  # nobody asks for it any more
        if outcome.error is not ErrorCode.NONE:
            raise MetadataRefusedError(outcome.error, outcome.message)
        return outcome.value

    @staticmethod
    def _proposal(command: Command) -> _Proposal:
        """What is applied now is what will be read back from the journal, or neither is."""
        try:
            encoded = command.encode()
            command = Command.decode(encoded)
        except (LiftError, ValueError, ArithmeticError, TypeError, RecursionError) as error:
            text = f"{command.op}: an argument can not be written down: {error}"
            raise MetadataRefusedError(ErrorCode.INVALID_REQUEST, text) from error
        return _Proposal(command, encoded, asyncio.get_running_loop().create_future())

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
        is_stopping = False
        while not is_stopping:
            waiting = [await self._queue.get()]
            while not self._queue.empty():
                waiting.append(self._queue.get_nowait())
            is_stopping = None in waiting
            await self._commit([proposal for proposal in waiting if proposal is not None])

    async def _commit(self, proposals: list[_Proposal]) -> None:
        """One transaction for all commands that wait, then apply them in order."""
        if not proposals:
            return
        loop = asyncio.get_running_loop()
        commands = [proposal.encoded for proposal in proposals]
        try:
            await loop.run_in_executor(self._executor, self._journal.append, commands)
        except JournalError as error:
            logger.error("%s", error)  # noqa: TRY400 - the trace adds nothing
            for proposal in proposals:
                if not proposal.outcome.done():
                    proposal.outcome.set_exception(MetadataUnavailableError(str(error)))
            return
        async with self._changed:
            for proposal in proposals:
                self._state, outcome = apply_command(self._state, proposal.command)
                if not proposal.outcome.done():
                    proposal.outcome.set_result(outcome)
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
