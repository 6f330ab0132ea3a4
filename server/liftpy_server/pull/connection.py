"""One pull connection, on the node's side: requests in order, answers in the same order, everything bounded.

Clients are served by a coroutine. What another node of the cluster sends is taken in plain calls, because it follows
with several requests per batch of messages; the coroutine does what of it has to be waited for.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from msgspec import Raw

from liftpy_envelope.bodies import unpack_body
from liftpy_envelope.errors import ErrorCode, FrameError, FrameTooLargeError
from liftpy_envelope.frames import Request, RequestReader, encode_response
from liftpy_envelope.pull import API_VERSIONS, Api, HelloRequest, HelloResult
from liftpy_server.pull.follow_answers import FollowAnswers
from liftpy_server.pull.receiving import BytesTaker
from liftpy_server.pull.requests import ClientRequests, PullBackend, RequestError
from liftpy_server.pull.sending import ResponseSender
from liftpy_server.pull.session import FetchSession
from liftpy_server.settings.limits import PULL_HELLO_BYTES_MAX, PULL_REQUESTS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.listeners.refusals import ListenerRefusals

__all__ = ["PullBackend", "ServedConnection"]

logger = logging.getLogger(__name__)

_READ_BYTES: Final = 64 * 1024
_WAKE: Final = Request(0, 0, 0, Raw(b""))


def _host_of(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if peer else ""


class PullListener(Protocol):
    """What a connection came through."""

    refusals: ListenerRefusals

    def admit(self, *, is_node: bool) -> None:
        """The peer that the calling task serves has shown a token.

        Raises:
            RequestError: there are as many clients as may be.
        """
        ...


class ServedConnection:
    """Serves one peer until it leaves, breaks the protocol, or is too slow."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, backend: PullBackend, listener: PullListener
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._backend = backend
        self._listener = listener
        self._config = backend.config
        self._session = FetchSession(backend.lookup, backend.readable, backend.cold)
        self._sender = ResponseSender(writer, backend.executor, backend.config.send_timeout_s)
        self._frames = RequestReader()
        self._queue: asyncio.Queue[Request | None] = asyncio.Queue(PULL_REQUESTS_MAX)
        self._held: deque[Request] = deque()  # of another node, that found no room in the queue
        self._follow_answers = FollowAnswers(
            replicas=backend.replicas,
            heard=backend.heard,
            asked=backend.asked,
            files=backend.files,
            executor=backend.executor,
            sender=self._sender,
            may_send=lambda: not self._is_serving,
            on_unfinished=self._wake,
            on_failure=writer.transport.abort,
        )
        self._requests = ClientRequests(backend, self._session, self._sender, _host_of(writer), self._queue.empty)
        self._handlers = {Api.HELLO: self._hello, Api.FOLLOW: self._follow, **self._requests.handlers()}
        self._is_serving = False  # by the coroutine
        self._has_ended = False
        self._admitted = False
        self._is_node = False
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._admit_until_s = self._heard_s + self._config.hello_timeout_s
        self._frame_error: FrameError | None = None
        self._peer = str(writer.get_extra_info("peername"))

    async def run(self) -> None:
        """Serve the connection until it ends."""
        reading = asyncio.create_task(self._read())
        try:
            while (request := await self._next()) is not None:
                await self._serve(request)
            if self._frame_error is not None:
                await self._refuse(0, self._frame_error)
        except TimeoutError:
            if self._admitted:
                logger.info("pull connection of %s: too slow or silent, closed", self._peer)
            else:
                text = f"no hello with the right token within {self._config.hello_timeout_s:g} s"
                self._listener.refusals.auth_failed("pull", self._peer, text, kind="silent")
            self._writer.transport.abort()
        except ConnectionError:
            pass  # it went away, as peers do
        except OSError as error:
            self._listener.refusals.was_busy("pull", self._peer, f"{error}: closed", kind="error")
            self._writer.transport.abort()
        finally:
            reading.cancel()
            (result,) = await asyncio.gather(reading, return_exceptions=True)
            if isinstance(result, Exception):
                logger.error("pull connection of %s: reading failed", self._peer, exc_info=result)
            self._session.close()
            self._follow_answers.close()
            self._sender.close()
            self._writer.close()

    async def _next(self) -> Request | None:
        """The next request that the coroutine serves, or `_WAKE`; None at the end."""
        while True:
            if self._has_ended and self._queue.empty():
                return None
            until_s = self._patient_until_s()
            try:
                async with asyncio.timeout_at(until_s):
                    request = await self._queue.get()
            except TimeoutError:
                if self._loop.time() >= self._patient_until_s():
                    raise
                continue  # what came meanwhile was not for the coroutine
            self._heard_s = self._loop.time()
            self._unhold()
            return request

    def _patient_until_s(self) -> float:
        return self._heard_s + self._config.idle_timeout_s if self._admitted else self._admit_until_s

    async def _serve(self, request: Request) -> None:
        self._is_serving = True
        if self._follow_answers.is_unfinished:
            await self._follow_answers.finish()
        if request is not _WAKE:
            await self._answer(request)
            self._heard_s = self._loop.time()
        self._is_serving = False
        self._follow_answers.look()

    def _wake(self) -> None:
        """Have the coroutine look for what is to be finished; where something is in its queue, it does anyway."""
        if self._queue.empty():
            self._queue.put_nowait(_WAKE)

    async def _read(self) -> None:
        """Put requests in the queue; None at the end, unless it is full and nobody waits at its other side."""
        stranger_bytes = 0
        try:
            while data := await self._reader.read(_READ_BYTES):
                if not self._admitted:
                    stranger_bytes += len(data)
                    if stranger_bytes > PULL_HELLO_BYTES_MAX:
                        raise FrameTooLargeError(f"say hello first; no more than {PULL_HELLO_BYTES_MAX} bytes before")
                if self._is_node and len(data) < _READ_BYTES:  # then the reader has nothing more
                    self._take_over()
                    self._take(data)
                    continue
                for request in self._frames.feed(data):
                    await self._queue.put(request)
                    self._requests.hurry()  # what waits makes room for it
        except FrameError as error:
            self._end(error)
        except OSError:
            pass  # it went away, as peers do
        finally:
            self._end()

    def _end(self, error: FrameError | None = None) -> None:
        if error is not None:
            self._frame_error = error
            self._listener.refusals.was_malformed("pull", self._peer, str(error))
        self._has_ended = True
        self._requests.hurry()
        if not self._queue.full():
            self._queue.put_nowait(None)

    def _take_over(self) -> None:
        """From now on no byte comes to the reader; it hears only of the end."""
        transport = self._writer.transport
        transport.set_protocol(BytesTaker(cast("asyncio.Protocol", transport.get_protocol()), self._take))

    def _take(self, data: bytes) -> None:
        """Bytes of another node came."""
        if self._has_ended:
            return
        self._heard_s = self._loop.time()
        try:
            requests = self._frames.feed(data)
        except FrameError as error:
            self._end(error)
            return
        for request in requests:
            if not self._take_follow(request):
                self._hold(request)

    def _take_follow(self, request: Request) -> bool:
        """Serve a follower, if nothing has to be waited for before; a request that is not as it must be is left."""
        is_free = self._queue.empty() and not self._is_serving and not self._follow_answers.is_unfinished
        if not is_free or request.api != Api.FOLLOW or not 1 <= request.version <= API_VERSIONS[Api.FOLLOW]:
            return False
        try:
            self._follow_answers.take(request)
        except FrameError:
            return False
        return True

    def _hold(self, request: Request) -> None:
        """Leave a request to the coroutine; while there is no room for more, the socket is not read."""
        self._held.append(request)
        self._unhold()
        if self._held:
            self._writer.transport.pause_reading()  # type: ignore[attr-defined]
        self._requests.hurry()

    def _unhold(self) -> None:
        if not self._held:
            return
        while self._held and not self._queue.full():
            self._queue.put_nowait(self._held.popleft())
        if not self._held and not self._writer.transport.is_closing():
            self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    async def _answer(self, request: Request) -> None:
        try:
            handler = self._handler(request)
            await handler(request)
        except RequestError as error:
            await self._sender.send(encode_response(request.correlation_id, error=error.code, message=str(error)))
        except FrameError as error:
            await self._refuse(request.correlation_id, error)

    async def _refuse(self, correlation_id: int, error: FrameError) -> None:
        is_large = isinstance(error, FrameTooLargeError)
        code = ErrorCode.FRAME_TOO_LARGE if is_large else ErrorCode.INVALID_REQUEST
        await self._sender.send(encode_response(correlation_id, error=code, message=str(error)))

    def _handler(self, request: Request) -> Callable[[Request], Any]:
        if request.api not in self._handlers:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"api {request.api} is not known here")
        api = Api(request.api)
        if not 1 <= request.version <= API_VERSIONS[api]:
            text = f"{api.name.lower()} version {request.version}: this node speaks 1 to {API_VERSIONS[api]}"
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION, text)
        if not self._admitted and api is not Api.HELLO:
            raise RequestError(ErrorCode.UNAUTHENTICATED, "say hello first")
        if api is Api.FOLLOW and not self._is_node:
            raise RequestError(ErrorCode.UNAUTHENTICATED, "only nodes of the cluster follow; clients fetch")
        return self._handlers[api]

    async def _hello(self, request: Request) -> None:
        hello = unpack_body(HelloRequest, request.body)
        backend = self._backend
        token = hello.token.encode()
        self._is_node = hmac.compare_digest(token, backend.follow_token.encode())
        if not self._is_node and not hmac.compare_digest(token, backend.token.encode()):
            text = "the token is not this node's; clients get it over NATS from LIFT.API.METADATA"
            self._listener.refusals.auth_failed("pull", self._peer, text)
            raise RequestError(ErrorCode.UNAUTHENTICATED, text)
        try:
            self._listener.admit(is_node=self._is_node)
        except RequestError as error:
            self._listener.refusals.was_busy("pull", self._peer, str(error))
            raise
        self._admitted = True
        self._frames.admit()
        result = HelloResult(backend.node_id, backend.incarnation, {int(api): top for api, top in API_VERSIONS.items()})
        await self._sender.send(encode_response(request.correlation_id, result))

    async def _follow(self, request: Request) -> None:
        self._follow_answers.take(request)
        if self._follow_answers.is_unfinished:
            await self._follow_answers.finish()
