"""Takes TCP connections of one kind, so that strangers neither fill it nor use up what others need.

A peer is a stranger until `admit` says otherwise. Strangers are few, in all and of one address; where there are too
many, the oldest goes, since a newer one may be somebody who is awaited. What is not admitted soon is closed by who
serves it. Connections are counted before TLS begins. When the process can open no more files, the oldest stranger goes,
and the listener opens again a moment later, however often that happens.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable

    from liftpy_server.listeners.refusals import ListenerRefusals

    Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

__all__ = ["Listener"]

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 0.2
_BUFFER_BYTES: Final = 64 * 1024


class _Arrival:
    """A connection that was taken, until a transport owns its socket."""

    def __init__(self, sock: socket.socket, host: str) -> None:
        self.sock: socket.socket | None = sock
        self.host = host


class Listener:
    """A TCP listener that bounds its connections and counts what it refuses.

    Args:
        name: Name of the listener, one of `refusals.LISTENERS`.
        sock: Socket that listens.
        refusals: Refusals of the node.
        strangers_max: Maximum number of unauthenticated connections.
        per_address_max: Number of connections from one address at most.
        tls: Speaks TLS with everybody, if given.
        handshake_timeout_s: Time for a TLS handshake, seconds.
    """

    def __init__(
        self,
        name: str,
        sock: socket.socket,
        refusals: ListenerRefusals,
        *,
        strangers_max: int,
        per_address_max: int,
        tls: ssl.SSLContext | None = None,
        handshake_timeout_s: float | None = None,
    ) -> None:
        self._name = name
        self._socket = sock
        self._refusals = refusals
        self._strangers_max = strangers_max
        self._per_address_max = per_address_max
        self._tls = tls
        self._handshake_timeout_s = handshake_timeout_s if tls is not None else None
        self._strangers: dict[asyncio.Task[None], str] = {}  # the oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """How many peers are connected."""
        return len(self._tasks)

    def start(self, serve: Serve) -> None:
        """Take connections; each is served by a task of its own, and closed when that ends."""
        self._socket.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(serve), name=f"listen: {self._name}")

    def admit(self) -> None:
        """The peer that the calling task serves is no stranger."""
        task = asyncio.current_task()
        assert task is not None
        self._strangers.pop(task, None)

    async def stop(self) -> None:
        """Close all connections and stop listening."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        self._socket.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, serve: Serve) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._socket)
            except OSError as error:
                self._refusals.was_busy(self._name, "a connection", f"{error}; trying again", kind="accept")
                self._send_away(next(iter(self._strangers), None))
                await asyncio.sleep(_AGAIN_S)
                continue
            arrival = _Arrival(sock, str(address[0]))
            task = loop.create_task(self._serve(arrival, serve), name=f"serve a peer: {self._name}")
            task.add_done_callback(lambda done, arrival=arrival: self._left(done, arrival))  # type: ignore[misc]
            self._tasks.add(task)
            self._enter(task, arrival.host)

    def _enter(self, task: asyncio.Task[None], host: str) -> None:
        of_address = [stranger for stranger, at in self._strangers.items() if at == host]
        if len(of_address) >= self._per_address_max:
            self._refusals.was_busy(
                *(
                    self._name,
                    host,
                    f"{len(of_address)} connections of one address say nothing: the oldest is closed",
                )
            )
            self._send_away(of_address[0])
        elif len(self._strangers) >= self._strangers_max:
            self._refusals.was_busy(
                *(self._name, host, f"{len(self._strangers)} connections say nothing: the oldest is closed")
            )
            self._send_away(next(iter(self._strangers)))
        self._strangers[task] = host

    def _send_away(self, task: asyncio.Task[None] | None) -> None:
        if task is not None:
            self._strangers.pop(task, None)
            task.cancel()

    def _left(self, task: asyncio.Task[None], arrival: _Arrival) -> None:
        self._tasks.discard(task)
        self._strangers.pop(task, None)
        if arrival.sock is not None:
            arrival.sock.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a peer of %s at the listener %s met an error", arrival.host, self._name, exc_info=error)

    async def _serve(self, arrival: _Arrival, serve: Serve) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_BUFFER_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        assert arrival.sock is not None
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, arrival.sock, ssl=self._tls, ssl_handshake_timeout=self._handshake_timeout_s
            )
        except OSError as error:  # of TLS as well
            self._refusals.was_malformed(self._name, arrival.host, f"no TLS: {error}")
            return
        arrival.sock = None
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await serve(reader, writer)
        except asyncio.CancelledError:
            transport.abort()
            raise
        finally:
            writer.close()
