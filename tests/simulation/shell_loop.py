"""An asyncio event loop under the scheduler: coroutines of a node's shell run in simulated time, one process per loop.

What belongs to a process that was killed is never run again: not even a `finally`.
"""

from __future__ import annotations

import asyncio
import warnings
from contextlib import suppress
from inspect import CORO_CLOSED, getcoroutinestate
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from simulation.scheduler import MS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine

    from simulation.scheduler import Scheduler

__all__ = ["SimLoop"]


class SimLoop(asyncio.AbstractEventLoop):
    """See the module.

    Args:
        scheduler: runs what is due.
        rng: how long other threads take.
        enter: runs an act within the process, now or when it goes on; never when it is dead.
        on_surprise: told of an error that nobody caught.

    Attributes:
        dial: makes connections.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        rng: random.Random,
        enter: Callable[..., None],
        on_surprise: Callable[[BaseException | None, str], None],
    ) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self._enter = enter
        self._on_surprise = on_surprise
        self._tasks: list[asyncio.Task[Any]] = []  # nothing that was begun is collected before the world is
        self.dial: Callable[[Any, str, int], Coroutine[Any, Any, Any]]

    def close(self) -> None:
        """What has not ended does so now, and not when it is collected, in the midst of another world."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for task in self._tasks:
                coroutine = task.get_coro()
                while isinstance(coroutine, CoroutineType) and getcoroutinestate(coroutine) != CORO_CLOSED:
                    with suppress(Exception):
                        coroutine.close()

    def dead_tasks(self) -> list[asyncio.Task[Any]]:
        """Those that ended with an error that nobody asked for."""
        return [task for task in self._tasks if getattr(task, "_log_traceback", False)]

    def time(self) -> float:
        return self._scheduler.now_us / 1e6

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by handles."""

    def _soon(self, delay_us: int, handle: asyncio.Handle) -> None:
        self._scheduler.after(max(0, delay_us), self._enter, self._run, handle)

    @staticmethod
    def _run(handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            handle._run()

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._soon(0, handle)
        return handle

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        """From another thread: the loop has the next turn a moment later."""
        handle = asyncio.Handle(callback, args, self, context)
        self._soon(int(self._rng.random() * 2 * MS), handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        # Rounded up: what looks at the clock when it is called finds that its time has come.
        self._soon(int((when - self.time()) * 1e6) + 1, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: Any = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined] - a process that is killed leaves some behind
        self._tasks.append(task)
        return task

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """By `dial`, of whoever has something to dial."""
        return await self.dial(protocol_factory, host, port)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """At once; who waits for it hears of it a moment later."""
        del executor
        future = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            self.call_soon_threadsafe(_settle, future, None, error)
        else:
            self.call_soon_threadsafe(_settle, future, result, None)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._on_surprise(context.get("exception"), str(context.get("message")))


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
