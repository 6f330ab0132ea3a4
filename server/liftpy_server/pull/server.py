"""The listening side of the pull protocol."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any

from liftpy_envelope.errors import LiftError
from liftpy_server.limits import LOG_REPEAT_S
from liftpy_server.pull.connection import PullConnection

if TYPE_CHECKING:
    from liftpy_server.config import PullConfig
    from liftpy_server.pull.connection import PullBackend

__all__ = ["ListenError", "PullServer"]

logger = logging.getLogger(__name__)


class ListenError(LiftError):
    """The address can not be listened on."""


class PullServer:
    """Accepts pull connections.

    Args:
        config: where to listen, and how patiently.
        connections_max: connections beyond it are closed at once.
    """

    def __init__(self, config: PullConfig, connections_max: int) -> None:
        host, port = config.host, config.port
        self._config = config
        self._connections_max = connections_max
        self._tls = config.tls_context()
        self._warned_s = -LOG_REPEAT_S
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._stopping = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=512)
        except OSError as error:
            raise ListenError(f"can not listen on {host}:{port} for consumers: {error.strerror}") from error

    @property
    def port(self) -> int:
        """The port that was taken."""
        return int(self._socket.getsockname()[1])

    @property
    def connection_count(self) -> int:
        """How many peers are connected."""
        return len(self._connections)

    async def start(self, backend: PullBackend) -> None:
        """Serve who connects."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(reader, writer, backend)

        tls: dict[str, Any] = {}
        if self._tls is not None:
            tls = {"ssl": self._tls, "ssl_handshake_timeout": self._config.hello_timeout_s}
        self._server = await asyncio.start_server(accept, sock=self._socket, **tls)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, backend: PullBackend) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= self._connections_max:
            self._warn_of_many()
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            await PullConnection(reader, writer, backend).run()
        except asyncio.CancelledError:
            writer.transport.abort()
            if not self._stopping:
                raise
        finally:
            self._connections.discard(task)

    def _warn_of_many(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._warned_s >= LOG_REPEAT_S:
            self._warned_s = now_s
            logger.warning("%d pull connections are open: refusing more", self._connections_max)

    async def stop(self) -> None:
        """Close all connections and stop listening."""
        if self._stopping:
            return
        self._stopping = True
        if self._server is None:
            self._socket.close()
            return
        self._server.close()
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await self._server.wait_closed()
