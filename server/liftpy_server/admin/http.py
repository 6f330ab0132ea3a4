"""Health and metrics over HTTP, for probes and scrapers. Read-only, no keep-alive.

A connection has five seconds, and the oldest goes where there are too many: a probe needs milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from liftpy_envelope.errors import LiftError
from liftpy_server.listeners.listener import Listener
from liftpy_server.settings.limits import HTTP_CONNECTIONS_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from liftpy_server.listeners.refusals import ListenerRefusals
    from liftpy_server.settings.config import HttpConfig

__all__ = ["HttpServer", "Page", "health_page", "json_page", "metrics_page"]

_TIMEOUT_S = 5.0
_REQUEST_BYTES_MAX = 8 * 1024


class Page(NamedTuple):
    """What a path answers.

    Attributes:
        kind: Its content type.
        body: Its bytes.
        is_ok: Whether the status is 200; it is 503 otherwise.
    """

    kind: bytes
    body: bytes
    is_ok: bool = True


def metrics_page(text: bytes) -> Page:
    """Metrics in the text format of Prometheus."""
    return Page(b"text/plain; version=0.0.4; charset=utf-8", text)


def json_page(value: Any, *, is_ok: bool = True) -> Page:
    """A value as JSON."""
    return Page(b"application/json", json.dumps(value).encode(), is_ok)


def health_page(problems: Sequence[str], *, is_ok: bool) -> Page:
    """Problems as probes get them; without any the status in the body is `ok`."""
    return json_page({"status": "error" if problems else "ok", "problems": list(problems)}, is_ok=is_ok)


class HttpServer:
    """Serves health and metrics over HTTP.

    Args:
        config: Where to listen.
        refusals: Counts and logs who sends what cannot be read.
        page: Called with a path, such as `/metrics`. Returns what is there, or None.
    """

    def __init__(
        self, config: HttpConfig, refusals: ListenerRefusals, page: Callable[[str], Awaitable[Page | None]]
    ) -> None:
        self._config = config
        self._refusals = refusals
        self._page = page
        self._port: int | None = None
        self._listener: Listener | None = None

    @property
    def port(self) -> int | None:
        """The port, when there is one."""
        return self._port

    async def start(self) -> None:
        """Listen, if the configuration says so.

        Raises:
            LiftError: the address is taken or not ours.
        """
        config = self._config
        if config.port is None:
            return
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        try:
            sock = socket.create_server((config.host, config.port), family=family)
        except OSError as error:
            raise LiftError(f"can not listen on {config.host}:{config.port} for http: {error.strerror}") from error
        self._port = int(sock.getsockname()[1])
        self._listener = Listener(
            "http",
            sock,
            self._refusals,
            strangers_max=HTTP_CONNECTIONS_MAX,
            per_address_max=HTTP_CONNECTIONS_MAX // 2,
        )
        self._listener.start(self._serve)

    async def stop(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            await self._listener.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = await self._answer(head)
                writer.write(
                    b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
                    % (status, kind, len(body), body)
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it went away, as peers do
        except (TimeoutError, asyncio.LimitOverrunError):
            peer = str(writer.get_extra_info("peername"))
            text = f"no request of at most {_REQUEST_BYTES_MAX} bytes within {_TIMEOUT_S:g} s: closed"
            self._refusals.was_malformed("http", peer, text)
            writer.transport.abort()

    async def _answer(self, head: bytes) -> tuple[bytes, bytes, bytes]:
        words = head.split(b" ", 2)
        if words[0] != b"GET" or len(words) < 3:
            return b"405 Method Not Allowed", b"text/plain", b"only GET\n"
        page = await self._page(words[1].split(b"?", 1)[0].decode(errors="replace"))
        if page is None:
            return b"404 Not Found", b"text/plain", b"try /healthz, /readyz, /varz or /metrics\n"
        return (b"200 OK" if page.is_ok else b"503 Service Unavailable"), page.kind, page.body
