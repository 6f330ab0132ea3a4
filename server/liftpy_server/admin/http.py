"""Health and metrics over HTTP, for probes and scrapers. Read-only, no keep-alive.

`/healthz` answers 200 while the event loop turns, `/readyz` while the node works and is in step with its cluster.

A connection has five seconds, and the oldest goes where there are too many: a probe needs milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING

from liftpy_envelope.errors import LiftError
from liftpy_server.admin.health import find_problems, find_waits
from liftpy_server.admin.info import node_info
from liftpy_server.admin.metrics import render_metrics
from liftpy_server.listeners.listener import Listener
from liftpy_server.settings.limits import HTTP_CONNECTIONS_MAX

if TYPE_CHECKING:
    from liftpy_server.admin.node_parts import NodeParts

__all__ = ["HttpServer"]

_TIMEOUT_S = 5.0
_REQUEST_BYTES_MAX = 8 * 1024


class HttpServer:
    """Serves health and metrics over HTTP.

    Args:
        node: the node to tell of.
    """

    def __init__(self, node: NodeParts) -> None:
        self._node = node
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
        config = self._node.config.http
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
            self._node.refusals,
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
                status, kind, body = self._answer(head)
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
            self._node.refusals.was_malformed("http", peer, text)
            writer.transport.abort()

    def _answer(self, head: bytes) -> tuple[bytes, bytes, bytes]:
        words = head.split(b" ", 2)
        if words[0] != b"GET" or len(words) < 3:
            return b"405 Method Not Allowed", b"text/plain", b"only GET\n"
        path = words[1].split(b"?", 1)[0]
        if path == b"/metrics":
            return b"200 OK", b"text/plain; version=0.0.4; charset=utf-8", render_metrics(self._node)
        if path == b"/varz":
            return b"200 OK", b"application/json", json.dumps(node_info(self._node)).encode()
        if path == b"/healthz":
            return _told(find_problems(self._node), is_ok=True)  # it answers: a restart would mend nothing
        if path == b"/readyz":
            problems = find_problems(self._node) + find_waits(self._node)
            return _told(problems, is_ok=not problems)
        return b"404 Not Found", b"text/plain", b"try /healthz, /readyz, /varz or /metrics\n"


def _told(problems: list[str], *, is_ok: bool) -> tuple[bytes, bytes, bytes]:
    body = json.dumps({"status": "error" if problems else "ok", "problems": problems}).encode()
    return (b"200 OK" if is_ok else b"503 Service Unavailable"), b"application/json", body
