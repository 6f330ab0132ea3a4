"""What people ask takes a bounded share of a node, whatever they ask: acks, consumers and other nodes go before it."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from nats.errors import Error as NatsError

from liftpy_envelope.errors import ErrorCode
from liftpy_server.requests.answering import refuse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from nats.micro.request import Request

    from liftpy_server.listeners.refusals import ListenerRefusals
    from liftpy_server.requests.between_nodes import Body

__all__ = ["Budget", "Pace", "Refuser", "Shared"]

_REQUESTS_MAX: Final = 256
_REFUSALS_PER_S_MAX: Final = 1_000
_REFUSED_IN_A_ROW_MAX: Final = 16
_REST: Final = 4.0  # times what gathering took


class Refuser:
    """Answers refusals, a thousand a second at most: an answer costs more than a look at the request.

    Those beyond are counted by `ListenerRefusals` like all, and get no answer.
    """

    def __init__(self) -> None:
        self._second = 0
        self._refused = 0

    async def refuse(self, request: Request, code: ErrorCode, text: str) -> None:
        """Refuse a request.

        Raises:
            ValueError: it has no reply subject.
            NatsError: NATS is gone.
        """
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._second, self._refused = second, 0
        self._refused += 1
        if self._refused % _REFUSED_IN_A_ROW_MAX == 0:  # nats-py hands over all it has in one go
            await asyncio.sleep(0)
        if self._refused <= _REFUSALS_PER_S_MAX:
            await refuse(request, code, text)


class Budget:
    """Hands the requests of one endpoint to tasks, 256 at once; further ones are refused as busy.

    Args:
        listener: Listener that the requests came through, for the count and the log.
        tasks: What is under way, of this endpoint and of others.
        answer: Takes a request.
        refusals: Counts those that were sent away.
    """

    def __init__(
        self,
        listener: str,
        tasks: set[asyncio.Future[None]],
        answer: Callable[[Request], Awaitable[None]],
        refusals: ListenerRefusals,
    ) -> None:
        self._listener = listener
        self._all_tasks = tasks
        self._answer = answer
        self._refusals = refusals
        self._refuser = Refuser()
        self._under_way = 0

    async def accept(self, request: Request) -> None:
        """Accept a request."""
        if self._under_way >= _REQUESTS_MAX:
            text = f"busy: {_REQUESTS_MAX} of these requests are under way; try again later"
            self._refusals.was_busy(self._listener, request.subject, text)
            with suppress(ValueError, NatsError, OSError):  # no reply subject, or NATS is gone
                await self._refuser.refuse(request, ErrorCode.TOO_MANY_REQUESTS, text)
            return
        self._under_way += 1
        task = asyncio.ensure_future(self._answer(request))
        self._all_tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._under_way -= 1
        self._all_tasks.discard(task)


class Pace:
    """What gatherings of a kind take together: so many at once, and while others wait a fifth of the time at most.

    Args:
        at_once: Maximum number at the same time.
        rest_s_max: The longest interval between the beginnings of two, while others wait.
    """

    def __init__(self, at_once: int, rest_s_max: float) -> None:
        self._rest_s_max = rest_s_max
        self._turns = asyncio.Semaphore(at_once)
        self._rest_until_s = 0.0
        self._waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it."""
        loop = asyncio.get_running_loop()
        self._waiting += 1
        async with self._turns:
            try:
                while (rest_s := self._rest_until_s - loop.time()) > 0:  # noqa: ASYNC110 - others have their turn before
                    await asyncio.sleep(rest_s)
            finally:
                self._waiting -= 1
            began_s = loop.time()
            if self._waiting:
                self._rest_until_s = began_s + self._rest_s_max
            try:
                yield
            finally:
                if self._waiting:
                    rest_s = min(_REST * (loop.time() - began_s), self._rest_s_max)
                    self._rest_until_s = max(self._rest_until_s, loop.time() + rest_s)


class Shared:
    """Gathers an answer once for all that ask the same before it is begun.

    Whoever asks is told what is so after the question, and who asks alone does not wait.

    Args:
        handle: What answers.
        encode: Makes bytes of an answer.
        pace: Pace of this and of other endpoints.
    """

    def __init__(
        self, handle: Callable[[Body], Awaitable[Body]], encode: Callable[[dict[str, Any]], bytes], pace: Pace
    ) -> None:
        self._handle = handle
        self._encode = encode
        self._pace = pace
        self._waiting: dict[str, asyncio.Task[bytes]] = {}

    async def answer(self, body: Body) -> bytes:
        """The answer; raises what the handler raises."""
        key = json.dumps(body, sort_keys=True)
        task = self._waiting.get(key)
        if task is None:
            task = self._waiting[key] = asyncio.create_task(self._gather(key, body))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if nobody waits any more
        return await asyncio.shield(task)

    async def _gather(self, key: str, body: Body) -> bytes:
        async with self._pace.turn():
            del self._waiting[key]  # who asks from here on wants to know what is so then
            return self._encode(await self._handle(body))
