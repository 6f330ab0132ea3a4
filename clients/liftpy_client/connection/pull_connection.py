"""One connection to a node's pull server: requests with their responses, received straight into Arrow memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from liftpy_client.errors import DisconnectedError, PullError
from liftpy_envelope.bodies import unpack_body
from liftpy_envelope.errors import ErrorCode, FrameError
from liftpy_envelope.frames import Response, ResponseReader, encode_request
from liftpy_envelope.pull import API_VERSIONS, Api, HelloRequest, HelloResult

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

__all__ = ["PullConnection"]


class _Protocol(asyncio.BufferedProtocol):
    """Receives responses and hands each to the request that waits for it."""

    def __init__(self) -> None:
        self._reader = ResponseReader()
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._transport: asyncio.Transport | None = None
        self._failure: Exception | None = None
        self._on_response: Callable[[Response], None] | None = None
        self._on_lost: Callable[[Exception], None] | None = None
        self._now_s = asyncio.get_running_loop().time
        self.heard_s = self._now_s()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_s = self._now_s()
        try:
            responses = self._reader.filled(nbytes)
        except FrameError as error:
            self._fail(error)
            return
        for response in responses:
            self._responded(response)

    def _responded(self, response: Response) -> None:
        future = self._waiting.pop(response.correlation_id, None)
        if future is not None:
            if not future.done():
                future.set_result(response)
        elif response.correlation_id == 0 and response.error:
            self._fail(PullError(response.error, response.message))
        elif self._on_response is not None:
            self._on_response(response)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(DisconnectedError(f"the node closed the connection{f': {exc}' if exc else ''}"))

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._failure)
        self._waiting.clear()
        on_lost, self._on_response, self._on_lost = self._on_lost, None, None
        if on_lost is not None:
            on_lost(self._failure)
        if self._transport is not None:
            self._transport.abort()

    def listen(self, on_response: Callable[[Response], None], on_lost: Callable[[Exception], None]) -> None:
        if self._failure is not None:
            raise self._failure
        self._on_response, self._on_lost = on_response, on_lost

    def send(self, correlation_id: int, frame: bytes) -> asyncio.Future[Response]:
        self.post(frame)
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return future

    def post(self, frame: bytes) -> None:
        if self._failure is not None:
            raise self._failure
        assert self._transport is not None
        self._transport.write(frame)

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self) -> None:
        self._fail(DisconnectedError("the connection was closed"))


class PullConnection:
    """A connection that said hello. Several requests may be under way at once; answers come in their order."""

    def __init__(self, protocol: _Protocol) -> None:
        self._protocol = protocol
        self._last_id = 0
        self.node: HelloResult

    @classmethod
    async def open(
        cls, host: str, port: int, *, client: str, token: str, tls: ssl.SSLContext | None, timeout_s: float
    ) -> PullConnection:
        """Connect and say hello.

        Raises:
            OSError: the node cannot be reached.
            TimeoutError: it does not answer.
            PullError: it refuses us.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, protocol = await loop.create_connection(
                _Protocol, host, port, ssl=tls, server_hostname=host if tls else None
            )
            connection = cls(protocol)
            try:
                response = await connection.request(Api.HELLO, HelloRequest(client, token))
            except BaseException:
                connection.close()
                raise
        connection.node = unpack_body(HelloResult, response.result)
        return connection

    async def request(self, api: Api, body: Any) -> Response:
        """Send a request and wait for its response.

        Raises:
            PullError: the node refuses it.
            DisconnectedError: the connection broke.
            FrameError: the node does not speak the protocol.
        """
        response = await self.send(api, body)
        if response.error != ErrorCode.NONE:
            raise PullError(response.error, response.message)
        return response

    def send(self, api: Api, body: Any) -> asyncio.Future[Response]:
        """Send a request without waiting; its response to be, which may be a refusal.

        Raises:
            DisconnectedError, FrameError: the connection broke earlier.
        """
        self._last_id += 1
        frame = encode_request(self._last_id, int(api), API_VERSIONS[api], body)
        return self._protocol.send(self._last_id, frame)

    def listen(self, on_response: Callable[[Response], None], on_lost: Callable[[Exception], None]) -> None:
        """Have plain calls made for what was asked for with `post`.

        Args:
            on_response: Called with every response, which may be a refusal.
            on_lost: Called once, when the connection breaks or is closed.

        Raises:
            DisconnectedError, FrameError: the connection broke earlier.
        """
        self._protocol.listen(on_response, on_lost)

    def post(self, api: Api, body: Any, *, is_answered: bool = True) -> int:
        """Send a request whose response goes to who listens. Returns its correlation id.

        Args:
            api: Request of the pull protocol.
            body: Body of the request.
            is_answered: False for what the node takes note of without a response; its correlation id is 0.

        Raises:
            DisconnectedError, FrameError: the connection broke earlier.
        """
        self._last_id += is_answered
        correlation_id = self._last_id if is_answered else 0
        self._protocol.post(encode_request(correlation_id, int(api), API_VERSIONS[api], body))
        return correlation_id

    @property
    def unsent_bytes(self) -> int:
        """Bytes of requests that the socket has not taken."""
        return self._protocol.unsent_bytes

    @property
    def heard_s(self) -> float:
        """When bytes came from the node last, by the loop's clock: it may take long over a large response."""
        return self._protocol.heard_s

    def close(self) -> None:
        """Drop the connection; requests under way fail."""
        self._protocol.close()
