"""Keeps a table up to date: reads its stream from the beginning, follows it, and reads it again when it must.

The stream is read again from its beginning when records were missed: tombstones were compacted away, or retention
removed records, before they were read. The same happens when the cluster lost records that were read, by an unclean
election or a restore from its bucket; `on_diverged` is called then. The old rows stay visible until the new ones are
complete, and are replaced in one step.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from liftpy_client.connection.cancelling import end_tasks
from liftpy_client.connection.cluster import is_passing
from liftpy_client.errors import (
    LogDivergedError,
    NodeUnavailableError,
    OffsetLostError,
    PullError,
    TableTimeoutError,
    UsageError,
)
from liftpy_client.table.reading import TombstonesGoneError

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

    from liftpy_client.table.changes import Changes
    from liftpy_client.table.ends import StreamEnds
    from liftpy_client.table.reading import TableReading

__all__ = ["DivergedCallback", "TableFollowing"]

DivergedCallback = Callable[[LogDivergedError], Awaitable[Any] | Any]
"""Told that the cluster has lost what a table shows. A plain function, or one that is awaited."""

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.05
_PAUSE_S_MIN: Final = 0.5
_PAUSE_S_MAX: Final = 10.0
_ENDS_TIMEOUT_S: Final = 10.0


class TableFollowing:
    """Follows the stream of one table.

    Args:
        stream: Name of the stream.
        ends: Finds the log ends of the stream.
        begin: Starts a reading, given callbacks for before and after records are applied.
        on_diverged: Called when the cluster lost records that the table shows, before the stream is read again. Its
            errors end the table.

    Attributes:
        feeds: Receivers of every change of the visible rows.
    """

    def __init__(
        self,
        stream: str,
        ends: StreamEnds,
        begin: Callable[[Callable[[TableReading, pa.RecordBatch], None], Callable[[], None]], TableReading],
        on_diverged: DivergedCallback | None = None,
    ) -> None:
        self.feeds: weakref.WeakSet[Changes[Any]] = weakref.WeakSet()
        self._stream = stream
        self._ends = ends
        self._begin = begin
        self._on_diverged = on_diverged
        self._shown: TableReading | None = None
        self._newest: TableReading | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._trace: TracebackType | None = None
        self._progress = asyncio.Event()

    @property
    def shown(self) -> TableReading:
        """What the table shows.

        Raises:
            UsageError: the table is not open.
            LiftError: it has failed.
        """
        self._check()
        if self._shown is None:
            raise UsageError(f"the table of stream {self._stream} needs an `async with`")
        return self._shown

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(self._trace)  # it would grow each time that it is raised

    async def start(self, timeout_s: float) -> None:
        """Begin, and wait until the stream was read once.

        Raises:
            UsageError: it was begun before.
            LiftError: it failed, or took too long.
        """
        if self._task is not None:
            raise UsageError(f"this table of stream {self._stream} was entered before; create another one")
        self._task = asyncio.create_task(self._run(), name=f"follow {self._stream}")
        await self.wait(lambda: self._shown is not None, timeout_s, "has read the stream once")

    @property
    def has_ended(self) -> bool:
        """Whether it was stopped, or has failed."""
        return self._failure is not None

    async def stop(self) -> None:
        """End; whoever waits is told."""
        if self._task is not None:
            await end_tasks([self._task])
        if self._failure is None:
            self._end(UsageError(f"the table of stream {self._stream} is closed"), None)

    async def wait(self, is_there: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for the table to get somewhere.

        Args:
            is_there: Whether it has.
            timeout_s: How long to wait.
            what: `has ...`, for the error.

        Raises:
            TableTimeoutError: it took too long.
            LiftError: the table has failed.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while True:
            self._check()
            if is_there():
                return
            left_s = until_s - loop.time()
            if left_s <= 0:
                read = {} if self._newest is None else self._newest.offsets()
                raise TableTimeoutError(
                    f"after {timeout_s:g} s the table of stream {self._stream} is not where it {what}: it has read up "
                    f"to these offsets by partition: {read}"
                )
            await self._look(left_s)

    async def _look(self, wait_s: float = _LOOK_S) -> None:
        """Wait until there is something to look at; a position may move without telling, so not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(wait_s, _LOOK_S)):
                await self._progress.wait()
        self._progress.clear()

    async def _run(self) -> None:
        try:
            await self._ends.confirm()
            pause_s = _PAUSE_S_MIN
            while True:
                was_shown = self._shown
                await self._follow()
                pause_s = min(2 * pause_s, _PAUSE_S_MAX) if self._shown is was_shown else _PAUSE_S_MIN
                await asyncio.sleep(pause_s)
        except Exception as error:  # noqa: BLE001 - raised again by whatever is asked of the table
            self._end(error, error)

    async def _follow(self) -> None:
        """Read the stream from its beginning, show it, and go on until it must be read anew.

        Raises:
            LiftError: that would not help.
        """
        self._newest = self._begin(self._before, self._progress.set)
        try:
            async with self._newest as reading:
                ends = await self._ends.ask(_ENDS_TIMEOUT_S)
                while not reading.has_passed(ends):
                    await self._look()
                    reading.check()
                await self._ends.confirm()  # what was read is of the stream that is meant
                self._show(reading)
                await reading.ended()
        except LogDivergedError as error:
            logger.error("the table of stream %s is read again from the beginning: %s", self._stream, error)  # noqa: TRY400
            await self._tell(error)
        except Exception as error:
            if not _is_outdated(error) and (self._shown is None or not _is_passing(error)):
                raise
            logger.warning("the table of stream %s is read again from the beginning: %s", self._stream, error)

    async def _tell(self, error: LogDivergedError) -> None:
        if self._on_diverged is not None and self._shown is not None:
            told = self._on_diverged(error)
            if inspect.isawaitable(told):
                await told

    def _show(self, reading: TableReading) -> None:
        before, self._shown = self._shown, reading
        if before is not None and self.feeds:
            for change in before.rows.differences(reading.rows):
                for feed in self.feeds:
                    feed.put(change)
        self._progress.set()

    def _before(self, reading: TableReading, records: pa.RecordBatch) -> None:
        if reading is self._shown and self.feeds:
            for change in reading.rows.changes(records):
                for feed in self.feeds:
                    feed.put(change)

    def _end(self, failure: Exception, told: Exception | None) -> None:
        self._failure, self._trace = failure, failure.__traceback__
        self._shown = self._newest = None
        for feed in self.feeds:
            feed.finish(told)
        self._progress.set()


def _is_outdated(error: Exception) -> bool:
    """Whether the stream is well, but what was read of it is not what it holds."""
    return isinstance(error, (TombstonesGoneError, OffsetLostError))


def _is_passing(error: Exception) -> bool:
    """Whether the cluster could not be asked for a while, which does not matter to what is shown."""
    if isinstance(error, PullError):
        return is_passing(error.code)
    return isinstance(error, (NodeUnavailableError, OSError, TimeoutError))
