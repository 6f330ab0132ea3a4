"""The node's connection for acks: frames go straight into its socket, so that a slow one delays nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nats.aio.transport import TcpTransport

from liftpy_server.limits import ACK_BUFFER_BYTES_MAX
from liftpy_server.nats_link import NatsLink

if TYPE_CHECKING:
    from liftpy_client.nats_options import NatsOptions

__all__ = ["AckConnection"]


class _Transport(TcpTransport):
    """nats-py's own, but for telling how much it has buffered."""

    def __bool__(self) -> bool:
        return True  # nats-py would replace a transport that is false

    @property
    def buffered_bytes(self) -> int:
        writer = self._io_writer
        return 0 if writer is None else writer.transport.get_write_buffer_size()


class AckConnection:
    """Writes frames to NATS.

    Args:
        options: of the NATS server.
        name: of the connection.
    """

    def __init__(self, options: NatsOptions, name: str) -> None:
        self._link = NatsLink(options, name, make_transport=self._new_transport)
        self._transport = _Transport()

    def _new_transport(self) -> _Transport:
        self._transport = _Transport()
        return self._transport

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
        await self._link.stop()

    def write(self, frames: bytes) -> bool:
        """Send whole frames; False when there is no connection."""
        if not self._link.is_connected:
            return False
        self._transport.write(frames)
        return True

    @property
    def is_congested(self) -> bool:
        """Whether the server takes acks more slowly than they are made."""
        return self._transport.buffered_bytes > ACK_BUFFER_BYTES_MAX
