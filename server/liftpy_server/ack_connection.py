"""The node's connection for acks.

Frames go straight into the socket's transport, past nats-py's queue and its flusher task, and a NATS server that is
slow to take them delays neither ingest nor pings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nats.aio.transport import TcpTransport

from liftpy_server.limits import ACK_BUFFER_BYTES_MAX
from liftpy_server.nats_link import NatsLink

if TYPE_CHECKING:
    import asyncio

    from nats.aio.client import Client

    from liftpy_client.nats_options import NatsOptions

__all__ = ["AckConnection"]


class _Transport(TcpTransport):
    """nats-py's own, but for showing what is under it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __bool__(self) -> bool:
        return True  # nats-py would replace a transport that is false

    @property
    def below(self) -> asyncio.WriteTransport | None:
        return None if self._io_writer is None else self._io_writer.transport


class AckConnection:
    """Writes frames to NATS.

    Args:
        options: of the NATS server.
        name: of the connection.
    """

    def __init__(self, options: NatsOptions, name: str) -> None:
        self._link = NatsLink(
            options,
            name,
            on_client=self._take_up,
            on_up=self._resume,
            on_down=self._pause,
            make_transport=self._new_transport,
        )
        self._transport = _Transport()
        self._below: asyncio.WriteTransport | None = None

    def _new_transport(self) -> _Transport:
        self._transport = _Transport()
        return self._transport

    async def _take_up(self, _client: Client) -> None:
        self._below = self._transport.below

    async def _resume(self) -> None:
        self._below = self._transport.below

    def _pause(self) -> None:
        self._below = None

    async def start(self) -> None:
        """Connect.

        Raises:
            NatsRefusedError: the server refuses us.
        """
        await self._link.start()

    async def stop(self) -> None:
        """Send what is buffered, and close."""
        if self._link.is_connected:
            await self._link.client.flush()
        self._below = None
        await self._link.stop()

    def write(self, frames: bytes) -> bool:
        """Send whole frames; False when there is no connection."""
        below = self._open
        if below is None:
            return False
        below.write(frames)
        return True

    @property
    def is_congested(self) -> bool:
        """Whether the server takes acks more slowly than they are made."""
        below = self._open
        return below is not None and below.get_write_buffer_size() > ACK_BUFFER_BYTES_MAX

    @property
    def _open(self) -> asyncio.WriteTransport | None:
        """The transport, unless it is closed; uvloop closes it before anybody is told, and refuses all calls then."""
        below = self._below
        return None if below is None or below.is_closing() else below
