"""Has gaps recorded by the metadata, where any node finds them, also when the one that found out is gone.

What is to be recorded at about the same time goes into few commands: when NATS is lost thousands of partitions have a
gap at once. What could not be recorded is told again until it is.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import LiftError
from liftpy_server.gaps.gap_log import GapLog
from liftpy_server.repeated_warnings import RepeatedWarnings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from liftpy_server.gaps.gap import Gap
    from liftpy_server.gaps.partition_gaps import PartitionGaps

__all__ = ["GapRecorder"]

logger = logging.getLogger(__name__)

_GATHER_S: Final = 0.05  # what else happens within this time goes into the same command
_RETRY_S: Final = 1.0
_COMMAND_BYTES: Final = 128 * 1024  # of a command, about; the metadata take twice as much
_ROW_BYTES: Final = 80  # of what has no length of its own
_FLUSH_TIMEOUT_S: Final = 2.0


class GapRecorder:
    """Records gaps in the metadata, and retries what was not accepted. A `GapKeeper`.

    Args:
        node_id: Id of this node.
        incarnation: Incarnation of this run, so that its gaps have other ids than those of the runs before.
        propose: Proposes commands to the metadata.
    """

    def __init__(self, node_id: str, incarnation: Callable[[], int], propose: Callable[..., Awaitable[Any]]) -> None:
        self._node_id = node_id
        self._incarnation = incarnation
        self._propose = propose
        self._loop = asyncio.get_running_loop()
        self._warnings = RepeatedWarnings(logger)
        self._count = 0
        self._log = GapLog(self._loop.call_later)
        self.begun, self.ended = self._log.begun, self._log.ended
        self._due: dict[PartitionGaps, float] = {}
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def new_id(self) -> str:
        """See `GapKeeper`."""
        self._count += 1
        return f"{self._node_id}.{self._incarnation()}.{self._count}"

    def changed(self, gaps: PartitionGaps, delay_s: float) -> None:
        """See `GapKeeper`."""
        due_s = self._loop.time() + delay_s
        if due_s < self._due.get(gaps, float("inf")):
            self._due[gaps] = due_s
            self._woken.set()

    def start(self) -> None:
        """Start to record."""
        self._task = asyncio.create_task(self._run(), name="gap recorder")

    async def stop(self) -> None:
        """Record what is known, if the metadata take it soon, and end."""
        self._log.flush()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                await self._record(list(self._due))
        except (LiftError, TimeoutError) as error:
            logger.warning("gaps of %d partitions are not recorded: %s", len(self._due), error or "no answer in time")

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            now_s = self._loop.time()
            due = [gaps for gaps, due_s in self._due.items() if due_s <= now_s]
            if due:
                await asyncio.sleep(_GATHER_S)
                await self._try_to_record()
                continue
            try:
                async with asyncio.timeout(min(self._due.values()) - now_s if self._due else None):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _try_to_record(self) -> None:
        now_s = self._loop.time()
        due = [gaps for gaps, due_s in self._due.items() if due_s <= now_s]
        try:
            await self._record(due)
        except LiftError as error:
            text = f"gaps of {len(self._due)} partitions can not be recorded yet: {error}"
            self._warnings.tell("", text, self._loop.time())
            await asyncio.sleep(_RETRY_S)
        except Exception:
            logger.exception("gaps can not be recorded; trying again")
            await asyncio.sleep(_RETRY_S)

    async def _record(self, due: list[PartitionGaps]) -> None:
        """Record what is due; what changes meanwhile is due again.

        Raises:
            LiftError: the metadata did not take all of it; the rest is still due.
        """
        for batch in _batches(due):
            for gaps in batch:
                self._due.pop(gaps, None)
            causes: dict[str, int] = {}
            rows = [_row(gaps, gap, causes) for gaps, told in batch.items() for gap in told]
            try:
                if rows:
                    await self._propose("record_gaps", causes=list(causes), gaps=rows)
            except BaseException:
                for gaps in batch:
                    self._due.setdefault(gaps, self._loop.time())
                raise
            for gaps, told in batch.items():
                gaps.were_recorded(told)


def _batches(due: list[PartitionGaps]) -> Iterator[dict[PartitionGaps, tuple[Gap, ...]]]:
    """What is to be told, as much of it at a time as fits into a command."""
    batch: dict[PartitionGaps, tuple[Gap, ...]] = {}
    size = 0
    for gaps in due:
        batch[gaps] = gaps.unrecorded()
        size += sum(len(gaps.name) + len(gap.id) + _ROW_BYTES for gap in batch[gaps])
        if size >= _COMMAND_BYTES:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


def _row(gaps: PartitionGaps, gap: Gap, causes: dict[str, int]) -> list[Any]:
    gap_id, version, since_ns, until_ns, cause, messages = gap.to_plain()
    number = causes.setdefault(cause, len(causes))
    return [gaps.name, gaps.stream, gaps.number, gap_id, version, since_ns, until_ns, number, messages]
