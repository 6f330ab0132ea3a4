"""The node's end of a tier worker: starts the process at the first call, and again after it died.

Calls run side by side, up to `jobs_max`; further ones wait their turn, which is the back-pressure. A call that is
cancelled keeps its place until the worker has answered, so that the worker never has more to do than it may. A worker
that says nothing of a job for too long is killed: whatever it does to the bucket may end at any moment without harm.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.worker.wire import encode_call
from liftpy_server.workers.child_process import end_child, kill_child, start_child
from liftpy_server.workers.json_lines import LINE_BYTES_MAX, read_line, to_line
from liftpy_server.workers.requests import from_plain, to_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from liftpy_server.workers.requests import WorkerRequest

__all__ = ["TierWorkError", "TierWorker"]

logger = logging.getLogger(__name__)

R = TypeVar("R")

_MODULE: Final = "liftpy_server.tier.worker.main"
_ENVIRONMENTS: Final = {"upload": {"MIMALLOC_PURGE_DELAY": "60000"}}
"""In ms: Arrow gives free memory back after each job, not after a second: a twentieth of the CPU of uploads."""

_JOBS_MAX: Final = 8  # twice as many as run at once
_SILENCE_MAX_S: Final = 300.0  # longer than every attempt at one request together may take


class TierWorker:
    """A worker process, which is started when it is needed.

    Args:
        settings: The tier configuration as plain values; `context.Context.open` says what is read of it.
        name: "upload" (which goes behind all other processes) or "read".
        jobs_max: How many calls the worker has at once.
        silence_max_s: How long it may say nothing of a call.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        name: str,
        *,
        jobs_max: int = _JOBS_MAX,
        silence_max_s: float = _SILENCE_MAX_S,
    ) -> None:
        self._settings = dict(settings)
        self._name = name
        self._silence_max_s = silence_max_s
        self._places = asyncio.Semaphore(jobs_max)
        self._starting = asyncio.Lock()
        self._running: _Running | None = None

    async def call(self, request: WorkerRequest[R], /, told: Callable[[Any], None] | None = None) -> R:
        """Have something done; see `liftpy_server.tier.requests`, and `port` for what is told.

        Raises:
            TierWorkError: it failed, with a code that tells why; "unavailable" where the worker died.
        """
        await self._places.acquire()
        try:
            running = await self._started()
            answer = running.ask(request, told)
        except BaseException:
            self._places.release()
            raise
        answer.add_done_callback(lambda _answer: self._places.release())
        return await asyncio.shield(answer)

    async def close(self) -> None:
        """End the process; calls that run fail, and what they did is as after a crash."""
        async with self._starting:
            running, self._running = self._running, None
            if running is not None:
                await running.close()

    async def _started(self) -> _Running:
        async with self._starting:
            if self._running is None or self._running.is_over:
                if self._running is not None:
                    await self._running.close()
                self._running = await self._start()
            return self._running

    async def _start(self) -> _Running:
        try:
            process = await start_child(_MODULE, self._name, environment=_ENVIRONMENTS.get(self._name))
        except OSError as error:
            message = f"the tier worker {self._name!r} could not be started: {error}"
            raise TierWorkError("unavailable", message, retriable=True) from error
        logger.debug("the tier worker %r runs with process id %d", self._name, process.pid)
        return _Running(process, self._name, self._settings, self._silence_max_s)


class _Call:
    """One that is under way.

    Attributes:
        request: What was asked for.
        told: Hears of parts of it; None: nobody does.
        answer: Future of the outcome.
        heard_s: When the worker spoke of it last, or got it, by the loop's clock.
        is_begun: The worker has spoken of it.
    """

    __slots__ = ("answer", "heard_s", "is_begun", "request", "told")

    def __init__(
        self,
        request: type[WorkerRequest[Any]],
        told: Callable[[Any], None] | None,
        answer: asyncio.Future[Any],
        now_s: float,
    ) -> None:
        self.request = request
        self.told = told
        self.answer = answer
        self.heard_s = now_s
        self.is_begun = False


class _Running:
    """A process, the calls it has, and the two tasks that look after them."""

    def __init__(
        self, process: asyncio.subprocess.Process, name: str, settings: dict[str, Any], silence_max_s: float
    ) -> None:
        self._process = process
        self._name = name
        self._silence_max_s = silence_max_s
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self.is_over = self._is_closing = False
        self._write(to_line({"settings": settings}))
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]

    def ask(self, request: WorkerRequest[Any], told: Callable[[Any], None] | None) -> asyncio.Future[Any]:
        """Send a call; its outcome."""
        number = next(self._numbers)
        line = encode_call(number, request.job, to_plain(request))
        if len(line) > LINE_BYTES_MAX:
            raise TierWorkError("internal", f"a call of {len(line)} bytes for the job {request.job!r} is too long")
        call = _Call(type(request), told, self._loop.create_future(), self._loop.time())
        call.answer.add_done_callback(_heard_by_nobody)
        self._calls[number] = call
        self._write(line)
        return call.answer

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():  # else `_read` is about to tell the calls
            self._process.stdin.write(line)  # bounded by the number of calls

    async def _read(self) -> None:
        assert self._process.stdout is not None
        reason = "it ended"
        try:
            while line := await self._process.stdout.readline():
                self._take(read_line(line))
        except (ValueError, KeyError, TypeError, OSError) as error:
            reason = f"it said something that makes no sense: {error}"
        finally:
            await self._fail(reason)

    def _take(self, message: dict[str, Any]) -> None:
        call = self._calls[message["id"]]
        call.heard_s = self._loop.time()
        call.is_begun = True
        if "progress" in message:
            if message["progress"] and call.told is not None:
                call.told(from_plain(call.request.part, message["progress"]))
            return
        if "result" in message:
            result = from_plain(call.request.result, message["result"])
            del self._calls[message["id"]]
            call.answer.set_result(result)
        else:
            del self._calls[message["id"]]
            call.answer.set_exception(TierWorkError(**message["error"]))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._silence_max_s / 10)
            # A call that waits behind others says nothing, and need not as long as those do.
            begun = [call.heard_s for call in self._calls.values() if call.is_begun]
            oldest_s = min(begun or [call.heard_s for call in self._calls.values()], default=self._loop.time())
            if self._loop.time() - oldest_s > self._silence_max_s:
                await self._fail(f"it said nothing for {self._silence_max_s:g} s")
                return

    async def _fail(self, reason: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        if self._calls and not self._is_closing:
            logger.warning("the tier worker %r is gone: %s; it is started again when needed", self._name, reason)
        calls, self._calls = self._calls, {}
        message = f"the tier worker {self._name!r}: {reason}"
        for call in calls.values():
            call.answer.set_exception(TierWorkError("unavailable", message, retriable=True))
        await kill_child(self._process)

    async def close(self) -> None:
        """End the process, and with it the calls."""
        self._is_closing = True  # that it ends is no news then
        await end_child(self._process, f"the tier worker {self._name!r}")
        await self._fail("it was told to end")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _heard_by_nobody(answer: asyncio.Future[Any]) -> None:
    """Whoever was cancelled asks no more for the failure of the call; then it is none of the loop's business either."""
    answer.exception()
