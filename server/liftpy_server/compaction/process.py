"""The node's end of a compaction worker: starts the process when there is a pass to run, and does what it asks for."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from liftpy_envelope.errors import LiftError
from liftpy_log.compaction.compact import CompactionReport
from liftpy_server.compaction.wire import decode_cleaned, decode_new_segment, decode_sealed, encode_pass
from liftpy_server.workers.child_process import end_child, kill_child, start_child
from liftpy_server.workers.json_lines import read_line, to_line

if TYPE_CHECKING:
    from liftpy_log.compaction.compact import CompactionConfig, CompactionPlan, LogOwner

__all__ = ["CompactionFailedError", "CompactionWorker", "WorkerProcess"]

logger = logging.getLogger(__name__)

_SILENCE_MAX_S: Final = 300.0


class CompactionFailedError(LiftError):
    """A pass failed; nothing half done is visible.

    Attributes:
        is_damage: A segment is damaged; the partition can not be used further.
    """

    def __init__(self, message: str, *, is_damage: bool = False) -> None:
        super().__init__(message)
        self.is_damage = is_damage


class CompactionWorker(Protocol):
    """Protocol of what runs passes of key compaction."""

    async def run(self, plan: CompactionPlan, config: CompactionConfig, owner: LogOwner) -> CompactionReport:
        """Run one pass.

        Raises:
            CompactionFailedError: it failed.
            LiftError: the owner could not do what it was asked for.
        """
        ...

    async def close(self) -> None:
        """End; a pass that runs is given up."""
        ...


class WorkerProcess:
    """A `CompactionWorker` in a child process, which starts with the first pass."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, plan: CompactionPlan, config: CompactionConfig, owner: LogOwner) -> CompactionReport:
        """See `CompactionWorker`."""
        try:
            process = await self._started()
            return await self._serve(process, encode_pass(plan, config), owner)
        except (OSError, ValueError, TimeoutError) as error:
            await self._kill()
            reason = str(error) or f"it said nothing for {_SILENCE_MAX_S:g} s"
            raise CompactionFailedError(f"the compaction worker: {reason}") from error
        except BaseException:
            await self._kill()
            raise

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            self._process = await start_child("liftpy_server.compaction.worker")
            logger.debug("the compaction worker runs with process id %d", self._process.pid)
        return self._process

    async def _serve(self, process: asyncio.subprocess.Process, line: bytes, owner: LogOwner) -> CompactionReport:
        assert process.stdin is not None
        assert process.stdout is not None
        failure: LiftError | None = None
        while True:
            process.stdin.write(line)
            async with asyncio.timeout(_SILENCE_MAX_S):
                await process.stdin.drain()
            message = await self._next(process.stdout)
            if "report" in message:
                return CompactionReport(*message["report"])
            if "failure" in message:
                raise failure or CompactionFailedError(
                    message["message"], is_damage=message["failure"] == "corrupt"
                ) from None
            try:
                line = to_line({"done": _do(message, owner)})
            except LiftError as error:
                failure = error
                line = to_line({"failed": str(error)})

    @staticmethod
    async def _next(reader: asyncio.StreamReader) -> dict[str, Any]:
        while True:
            async with asyncio.timeout(_SILENCE_MAX_S):
                line = await reader.readline()
            if not line:
                raise ConnectionError("the process ended amid a pass")
            message = read_line(line)
            if "alive" not in message:
                return message

    async def close(self) -> None:
        """See `CompactionWorker`."""
        process, self._process = self._process, None
        if process is not None:
            await end_child(process, "the compaction worker")

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await kill_child(process)


def _do(message: dict[str, Any], owner: LogOwner) -> bool:
    """What the worker asks for, in the thread that owns the log."""
    if message["ask"] == "replace":
        new = decode_new_segment(message["new"])
        return owner.replace_segments(decode_sealed(message["old"]), new, message["cuts"])
    return owner.save_cleaned(decode_cleaned(message["cleaned"]), message["cuts"])
