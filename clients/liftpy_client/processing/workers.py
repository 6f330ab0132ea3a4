"""Runs handlers for what the schedule allows: with a time limit, retries and dead letters.

A fixed number of tasks, the workers, take work one after the other. A watch looks several times per time limit at
what runs. It interrupts an `async def` handler that takes too long. A plain function cannot be interrupted: it gets as
much time again. What runs on even then is stuck, and ends everything: only another process can go on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from typing import TYPE_CHECKING, Any, Final

from liftpy_client.errors import HandlerFailedError, HandlerStuckError, UndecodableError
from liftpy_client.processing.schedule import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from liftpy_client.group.transaction import Transaction
    from liftpy_client.processing.options import ProcessOptions
    from liftpy_client.processing.outputs import Outputs
    from liftpy_client.processing.schedule import Schedule, Work
    from liftpy_envelope.pull import PartitionKey

__all__ = ["Workers"]

logger = logging.getLogger(__name__)
_LOOKS_PER_TIMEOUT: Final = 8
_LOOK_S_MAX: Final = 1.0
_END_S: Final = 2.0  # for handlers that were cancelled at the end


class Workers:
    """The workers of one process.

    Args:
        schedule: Decides what may be handled.
        handle: Handles a message or batch.
        bury: Stores a dead letter, and returns when it is acknowledged; None to end with the error instead.
        outputs: Stores the outputs of handlers in order, dead letters among them; None if handlers have no outputs.
        options: Options of the process.
        is_member: Whether this process still has what it got; if not, it returns when that is dropped.
        is_interruptible: Whether a call ends soon after it is interrupted.

    Attributes:
        failure: The error that ends the process.
        on_failure: Set when there is one.
        on_progress: Called when some work has ended; None for nothing to call.
    """

    def __init__(
        self,
        schedule: Schedule,
        handle: Callable[..., Awaitable[Any]],
        bury: Callable[[Work, Exception], Awaitable[None]] | None,
        options: ProcessOptions,
        is_member: Callable[[], Awaitable[bool]],
        *,
        is_interruptible: bool,
        outputs: Outputs | None = None,
    ) -> None:
        self._outputs = outputs
        self._schedule = schedule
        self._handle = handle
        self._bury = bury
        self._options = options
        self._is_member = is_member
        self._is_interruptible = is_interruptible
        self._loop = asyncio.get_running_loop()
        self._random = random.Random()  # noqa: S311 - spreads retries
        self._tasks: list[asyncio.Task[None]] = []
        self._idle: list[asyncio.Future[None]] = []
        self._progress: list[asyncio.Future[None]] = []
        self._watcher: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None
        self.on_failure = asyncio.Event()
        self.on_progress: Callable[[], None] | None = None

    # -- what the others ask

    def wake(self) -> None:
        """There may be something to handle."""
        if self._watcher is None:
            self._watcher = self._loop.create_task(self._watch(), name="process: watch")
        if self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
        elif len(self._tasks) < self._options.concurrency:
            task = self._loop.create_task(self._work(), name=f"process: worker {len(self._tasks)}")
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    async def progress(self) -> None:
        """Wait until some work has ended."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._progress.append(waiter)
        await waiter

    def notify(self) -> None:
        """Wake those that wait for progress."""
        if self.on_progress is not None:
            self.on_progress()
        waiters, self._progress = self._progress, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def finish(self, keys: Collection[PartitionKey] | None, timeout_s: float) -> bool:
        """Wait until nothing of these partitions, or of all, is to be handled any more.

        Returns:
            Whether that is so. If not, nothing more of them starts.
        """
        schedule = self._schedule
        try:
            async with asyncio.timeout(timeout_s):
                while schedule.is_busy(keys):
                    await self.progress()
        except TimeoutError:
            schedule.cut(schedule.partitions if keys is None else keys)
            return False
        return True

    def interrupt(self, works: Collection[Work]) -> None:
        """End handlers early, as far as that is possible. What they return does not matter any more."""
        for work in works:
            self._interrupt(work)

    def _interrupt(self, work: Work) -> None:
        scope = work.interrupt
        if scope is not None and self._is_interruptible and not scope.expired():
            scope.reschedule(self._loop.time())

    async def close(self) -> None:
        """End the workers. A handler that does not end in time is left behind."""
        tasks = [*self._tasks, *([] if self._watcher is None else [self._watcher])]
        if self._outputs is not None:
            tasks += self._outputs.tasks
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_END_S)
        self.notify()

    # -- the work

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
        self._schedule.stop()
        self._schedule.cut(self._schedule.partitions)
        self.on_failure.set()
        self.notify()

    async def _work(self) -> None:
        schedule = self._schedule
        while True:
            work = schedule.start()
            if work is None:
                waiter: asyncio.Future[None] = self._loop.create_future()
                self._idle.append(waiter)
                await waiter
                continue
            if schedule.has_ready and self._idle:
                self.wake()  # one piece of work may have made several ready
            try:
                await self._run(work)
            finally:
                if work in schedule.running:  # the worker was cancelled, or could not store a dead letter
                    schedule.abandon(work)
                self.notify()

    async def _run(self, work: Work) -> None:
        if not await self._is_member() or not work.is_wanted:
            self._schedule.abandon(work)
            return
        work.started_s, work.looks = self._loop.time(), 0
        try:
            async with asyncio.timeout(None) as scope:
                work.interrupt = scope
                transaction = None if self._outputs is None else self._outputs.begin(work)
                await (self._handle(work.item) if transaction is None else self._handle(work.item, transaction))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            work.interrupt = None  # the handler awaited something that was cancelled; nobody cancelled the worker
            await self._failed(work, RuntimeError("the handler raised CancelledError"))
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            work.interrupt = None
            if isinstance(error, TimeoutError) and scope.expired():
                error = TimeoutError(
                    f"the handler took longer than handler_timeout_s={self._options.handler_timeout_s:g}"
                )
            await self._failed(work, error)
        else:
            if work.state is State.RUNNING:  # else it was given up
                self._handled(work, transaction)

    def _handled(self, work: Work, transaction: Transaction | None) -> None:
        """A handler has ended, and what it published is to be stored."""
        if transaction is None or self._outputs is None:
            self._schedule.finish(work)
            return
        transaction.end()
        if len(transaction):
            self._schedule.handled(work, transaction, transaction.size)
        else:
            self._schedule.finish(work)
        self._outputs.send_soon(work.key, self._sent, self._fail)

    def _sent(self) -> None:
        """Outputs were stored; others may have become ready."""
        self.notify()
        self.wake()

    async def _failed(self, work: Work, error: Exception) -> None:
        retry, schedule = self._options.retry, self._schedule
        if work.state is not State.RUNNING:
            return
        is_final = work.attempts >= retry.attempts or isinstance(error, UndecodableError)
        if not is_final or not work.is_wanted:
            if schedule.postpone(work):
                wait_s = retry.wait_s(work.attempts, self._random.random())
                self._loop.call_later(wait_s, self._resume, work)
            return
        if self._outputs is not None and self._options.dead_letter is not None:
            self._handled(work, self._outputs.letter(work, error))
            return
        if self._bury is not None:
            await self._bury(work, error)
            schedule.finish(work)
            return
        failure = HandlerFailedError(where(work), work.attempts, error)
        failure.__cause__ = error
        self._fail(failure)
        schedule.abandon(work)

    def _resume(self, work: Work) -> None:
        self._schedule.resume(work)
        self.wake()

    async def _watch(self) -> None:
        """Count the looks during which a handler runs, not the time: the whole process may have stood still."""
        limit_s = self._options.handler_timeout_s
        looks = max(_LOOKS_PER_TIMEOUT, math.ceil(limit_s / _LOOK_S_MAX))
        while True:
            await asyncio.sleep(limit_s / looks)
            for work in list(self._schedule.running):
                if work.interrupt is None:
                    continue
                work.looks += 1
                if work.looks > 2 * looks:
                    self._fail(HandlerStuckError(where(work), self._loop.time() - work.started_s))
                    self._schedule.abandon(work)
                elif work.looks > looks:
                    self._interrupt(work)
                    if work.looks == looks + 1 and not self._is_interruptible:
                        logger.warning("%s: the handler runs for more than %g s", where(work), limit_s)


def where(work: Work) -> str:
    """What an error says of a piece of work."""
    item = work.item
    stream = getattr(item, "stream", None)
    name = f"stream {stream} " if stream is not None else ""
    offsets = f"offset {work.offset}" if work.end == work.offset + 1 else f"offsets {work.offset} to {work.end - 1}"
    return f"{name}partition {work.key.partition} {offsets}"
