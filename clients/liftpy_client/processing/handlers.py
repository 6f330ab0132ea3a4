"""Calls handlers: `async def` in the event loop, plain functions in threads.

The threads are daemons, because a function that never returns must not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
from typing import TYPE_CHECKING, Any

from liftpy_client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HandlerThreads", "is_asynchronous"]


def is_asynchronous(handle: Any) -> bool:
    """Whether a handler is awaited rather than called in a thread.

    Raises:
        UsageError: it cannot be called, or a call of it does nothing.
    """
    if not callable(handle):
        raise UsageError(f"handle: {handle!r:.60} cannot be called; pass a function that takes a message")
    called = handle, type(handle).__call__
    if any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in called):
        raise UsageError(f"handle: {handle!r:.60} is a generator, so that a call of it does nothing; leave out `yield`")
    return any(map(inspect.iscoroutinefunction, called))


class HandlerThreads:
    """Calls a plain function in threads.

    Args:
        handle: The function.
        threads_max: Most threads. They start when they are needed.
        name: Name of the threads.
    """

    def __init__(self, handle: Callable[[Any], Any], threads_max: int, name: str) -> None:
        self._handle = handle
        self._threads_max = threads_max
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._count = 0
        self._busy = 0

    async def __call__(self, *items: Any) -> None:
        """Call the function. If the wait is cancelled, the function runs on."""
        self._busy += 1
        if self._busy > self._count < self._threads_max:
            self._count += 1
            threading.Thread(target=self._run, name=f"{self._name}-{self._count}", daemon=True).start()
        call = _Call(items, self._loop.create_future(), contextvars.copy_context())
        call.ended.add_done_callback(self._free)
        self._calls.put(call)
        await asyncio.shield(call.ended)

    def _free(self, ended: asyncio.Future[None]) -> None:
        self._busy -= 1
        if not ended.cancelled():
            ended.exception()  # known, also when nobody waits any more

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            error: BaseException | None = None
            try:
                result = call.context.run(self._handle, *call.items)
                if inspect.isawaitable(result):
                    error = UsageError("handle: a plain function returned something to await; make it `async def`")
            except BaseException as raised:  # noqa: BLE001 - whatever it is, the event loop must hear of it
                error = raised
            try:
                self._loop.call_soon_threadsafe(call.end, error)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

    def close(self) -> None:
        """End the threads, each after what it calls."""
        for _ in range(self._count):
            self._calls.put(None)


class _Call:
    __slots__ = ("context", "ended", "items")

    def __init__(self, items: tuple[Any, ...], ended: asyncio.Future[None], context: contextvars.Context) -> None:
        self.items = items
        self.ended = ended
        self.context = context

    def end(self, error: BaseException | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            self.ended.set_exception(error)
        else:  # a future takes no StopIteration, and SystemExit would end the loop
            self.ended.set_exception(RuntimeError(f"the handler raised {error!r}"))
