"""The listening side of the pull protocol."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_server.listeners.listener import Listener
from liftpy_server.listeners.refusals import ListenerRefusals
from liftpy_server.pull.connection import ServedConnection
from liftpy_server.pull.requests import RequestError

if TYPE_CHECKING:
    from liftpy_server.pull.connection import PullBackend
    from liftpy_server.settings.config import PullConfig

__all__ = ["ListenError", "PullServer"]


class ListenError(LiftError):
    """The address can not be listened on."""


class PullServer:
    """Accepts pull connections.

    Other nodes of the cluster are always let in: what follows here must not wait for clients. Strangers, who have not
    said hello, have places of their own, see `Listener`.

    Args:
        config: Where to listen, and how patiently.
        connections_max: Clients beyond it are refused.
        refusals: Refusals of the node.
        strangers_max: Connections that have not said hello, half of them from one address.
    """

    def __init__(
        self,
        config: PullConfig,
        connections_max: int,
        refusals: ListenerRefusals | None = None,
        strangers_max: int = 64,
    ) -> None:
        host, port = config.host, config.port
        self._connections_max = connections_max
        self._clients: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.refusals = refusals or ListenerRefusals()
        tls = config.tls_context()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            sock = socket.create_server((host, port), family=family, backlog=512)
        except OSError as error:
            raise ListenError(f"can not listen on {host}:{port} for consumers: {error.strerror}") from error
        self._port = int(sock.getsockname()[1])
        self._listener = Listener(
            "pull",
            sock,
            self.refusals,
            strangers_max=strangers_max,
            per_address_max=max(1, strangers_max // 2),
            tls=tls,
            handshake_timeout_s=config.hello_timeout_s,
        )

    @property
    def port(self) -> int:
        """The port that was taken."""
        return self._port

    @property
    def connection_count(self) -> int:
        """How many peers are connected."""
        return self._listener.count

    async def start(self, backend: PullBackend) -> None:
        """Start to accept connections."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await ServedConnection(reader, writer, backend, self).run()
            finally:
                self._clients.discard(_this_task())

        self._listener.start(serve)

    def admit(self, *, is_node: bool) -> None:
        """The peer that the calling task serves has shown a token.

        Raises:
            RequestError: there are as many clients as may be.
        """
        if not is_node and len(self._clients) >= self._connections_max and _this_task() not in self._clients:
            text = f"the node serves {len(self._clients)} clients, and no more"
            raise RequestError(ErrorCode.TOO_MANY_REQUESTS, f"{text}; close some, or raise pull.connections_max")
        if not is_node:
            self._clients.add(_this_task())
        self._listener.admit()

    async def stop(self) -> None:
        """Close all connections and stop listening."""
        if not self._stopping:
            self._stopping = True
            await self._listener.stop()


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task
