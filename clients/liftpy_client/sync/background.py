"""An event loop in a thread of its own, for callers that have no event loop or cannot await in theirs.

The caller waits for the result, in a script or in a notebook whose own loop runs. Ctrl-C interrupts the wait and
cancels the work.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from contextlib import AbstractAsyncContextManager, suppress
from functools import wraps
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, NoReturn, ParamSpec, Self, TypeVar

from liftpy_client.connection.cancelling import end_tasks
from liftpy_client.errors import DisconnectedError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from types import TracebackType

__all__ = ["BackgroundLoop", "EnteredFacade", "Facade", "blocking", "collected", "on_loop", "synchronous"]

logger = logging.getLogger(__name__)

_CANCEL_S: Final = 2.0
_SIGNALS_S: Final = 1.0
_CLOSE_S: Final = 10.0
_T_co = TypeVar("_T_co", covariant=True)
_E_co = TypeVar("_E_co", bound=AbstractAsyncContextManager[Any, Any], covariant=True)
_R = TypeVar("_R")
_P = ParamSpec("_P")


class BackgroundLoop:
    """An event loop that runs in a daemon thread. Several threads may call it.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._calls: set[_Call[Any]] = set()
        self._is_closing = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _R]) -> _R:
        """Run a coroutine in the loop and wait for it.

        Raises:
            DisconnectedError: the loop is closed.
            UsageError: it is the loop's own thread that calls: it would wait for itself.
            BaseException: what the coroutine raises. When the waiting is interrupted, the coroutine is cancelled.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise UsageError(
                "a synchronous method was called in the event loop that it needs; use the asynchronous one"
            )
        if os.getpid() != self._pid:
            coroutine.close()
            raise UsageError("this connection was made before a fork: connect again in each process")
        call = _Call(coroutine)
        try:
            self._begin(call)
            return call.result()
        except BaseException:
            if not call.is_done:
                self._abandon(call)
            raise
        finally:
            self._calls.discard(call)

    def _begin(self, call: _Call[Any]) -> None:
        with self._lock:  # a call that begins while the loop is closed would never end
            if not self._is_closing:
                self._calls.add(call)
                self._schedule(call.start)
                return
        call.cancel()
        call.fail()

    def _schedule(self, step: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(step)
        except RuntimeError:
            raise DisconnectedError("the connection is closed") from None

    def _abandon(self, call: _Call[Any]) -> None:
        """Cancel a call whose caller was interrupted, perhaps before it knew whether the call was scheduled."""
        if self._loop.is_closed():
            call.cancel()
            return
        self._schedule(call.cancel)
        call.wait_for_end(_CANCEL_S)

    def call(self, function: Callable[[], _R]) -> _R:
        """Call a plain function in the loop's thread and wait for it; raises as `run` does."""

        async def call() -> _R:
            return function()

        return self.run(call())

    def soon(self, function: Callable[[], object]) -> None:
        """Call a plain function in the loop's thread, without waiting for it.

        Raises:
            DisconnectedError: the loop is closed.
        """
        self._schedule(function)

    def end(self, tidy_up: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run what tidies up, from wherever that is noticed; once the loop is closed there is no need."""
        if self._is_closing or os.getpid() != self._pid:
            return
        if threading.current_thread() is self._thread:  # the garbage collector runs in any thread
            self._tidying = self._loop.create_task(tidy_up())
            return
        try:
            self.run(tidy_up())
        except DisconnectedError:
            if not self._is_closing:
                raise

    def close(self) -> None:
        """Cancel whatever still runs there, and end the thread; idempotent. Calls of other threads raise."""
        if os.getpid() != self._pid:
            return  # the thread is the parent's
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        try:
            asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result(_CLOSE_S)
        except TimeoutError:
            logger.warning("what ran in thread %s did not end within %g s", self._thread.name, _CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)
        for call in list(self._calls):
            call.fail()
        if not self._thread.is_alive():
            self._loop.close()

    async def _finish(self) -> None:
        await end_tasks(asyncio.all_tasks() - {asyncio.current_task()}, within_s=_CLOSE_S / 2)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


class _Call(Generic[_R]):
    """A coroutine that another thread waits for; its steps run in the loop's thread.

    The waiting is that of a `SimpleQueue`, which can be interrupted at any moment. A `threading.Condition`, with which
    futures and events wait, can not, and the outcome is in no future either: a Ctrl-C while it takes its lock back ends
    as "release unlocked lock", and one right after it took its lock leaves that taken, for which the loop's thread then
    waits for ever.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, _R]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[_R] | None = None
        self._is_ended = False  # the coroutine runs no more, and never will
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._told: SimpleQueue[None] = SimpleQueue()
        self._outcomes: list[Callable[[], _R]] = []  # the first counts: it returns what came of it, or raises it

    @property
    def is_done(self) -> bool:
        """Whether there is an outcome."""
        return bool(self._outcomes)

    def result(self) -> _R:
        """Wait for the outcome, and return or raise it.

        A signal that comes after Python looked for signals, and before the thread sleeps, does not wake it. So it
        wakes by itself now and then.
        """
        while not self._outcomes:
            with suppress(Empty):
                self._told.get(timeout=_SIGNALS_S)
        return self._outcomes[0]()

    def wait_for_end(self, within_s: float) -> None:
        """Wait until the coroutine runs no more."""
        with suppress(Empty):
            self._ended.get(timeout=within_s)

    def start(self) -> None:
        if not self._is_ended:
            self._task = asyncio.get_running_loop().create_task(self._coroutine)
            self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self._coroutine.close()
            self._end_waiting()

    def fail(self) -> None:
        """Tell whoever waits that the loop ends."""
        self._tell(_raising(DisconnectedError("the connection is closed")))

    def _end(self, task: asyncio.Task[_R]) -> None:
        self._end_waiting()
        if task.cancelled():
            self.fail()
        else:
            task.exception()  # seen, also when nobody waits any more
            self._tell(task.result)

    def _tell(self, outcome: Callable[[], _R]) -> None:
        self._outcomes.append(outcome)
        self._told.put(None)

    def _end_waiting(self) -> None:
        self._is_ended = True
        self._ended.put(None)


def _raising(error: Exception) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail


class Facade(Generic[_T_co]):
    """Something asynchronous, and the loop in which it lives.

    Args:
        loop: Loop that everything runs in.
        inner: Object that is called there.
    """

    def __init__(self, loop: BackgroundLoop, inner: _T_co) -> None:
        self._loop = loop
        self._inner = inner


class EnteredFacade(Facade[_E_co]):
    """One of something that is used in an `async with`: it is used in a `with`."""

    def __enter__(self) -> Self:
        self._loop.run(_entered(self._inner))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.end(lambda: _left(self._inner, kind, error, trace))


async def _entered(inner: AbstractAsyncContextManager[Any, Any]) -> None:
    await inner.__aenter__()


async def _left(
    inner: AbstractAsyncContextManager[Any, Any],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    await inner.__aexit__(kind, error, trace)


def blocking(
    method: Callable[Concatenate[_T_co, _P], Coroutine[Any, Any, _R]],
) -> Callable[Concatenate[Facade[_T_co], _P], _R]:
    """A coroutine method as one that waits."""

    @wraps(method)
    def call(self: Facade[_T_co], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._loop.run(method(self._inner, *args, **kwargs))

    return synchronous(call)


def on_loop(method: Callable[Concatenate[_T_co, _P], _R]) -> Callable[Concatenate[Facade[_T_co], _P], _R]:
    """A plain method as one that is called in the loop's thread."""

    @wraps(method)
    def call(self: Facade[_T_co], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._loop.call(lambda: method(self._inner, *args, **kwargs))

    return synchronous(call)


def collected(
    method: Callable[Concatenate[_T_co, _P], AsyncIterator[_R]],
) -> Callable[Concatenate[Facade[_T_co], _P], list[_R]]:
    """A method that returns an asynchronous iterator as one that returns a list."""

    @wraps(method)
    def call(self: Facade[_T_co], /, *args: _P.args, **kwargs: _P.kwargs) -> list[_R]:
        async def collect() -> list[_R]:
            return [item async for item in method(self._inner, *args, **kwargs)]

        return self._loop.run(collect())

    return synchronous(call, returns="list")


def synchronous(function: Callable[_P, _R], returns: str | None = None) -> Callable[_P, _R]:
    """Have a function that stands for an asynchronous one tell of itself as it is.

    Args:
        function: Made with `functools.wraps`, so that it tells of the asynchronous one.
        returns: What it returns, when that is something else.
    """
    text = function.__doc__ or ""
    function.__doc__ = text.replace("`async for`", "`for`").replace("`async with`", "`with`")
    if returns is not None:
        signature = inspect.signature(function).replace(return_annotation=returns)
        function.__signature__ = signature  # type: ignore[attr-defined]  # what `inspect` and `help` look at
    return function
