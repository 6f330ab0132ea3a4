"""The node's connection for acks: a NATS server that is slow to take them delays neither ingest nor pings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from liftpy_server.nats.session import NatsSession
from liftpy_server.settings.limits import ACK_BUFFER_BYTES_MAX, ACKS_TAKEN_TIMEOUT_S

if TYPE_CHECKING:
    import random

    from liftpy_client.connection.nats_options import NatsOptions
    from liftpy_log.clock import Clock
    from liftpy_server.nats.connection import NatsConnection

__all__ = ["AckConnection"]


class AckConnection:
    """Writes frames to NATS.

    Args:
        options: Options of the NATS server.
        name: Name of the connection.
        clock: Clock of the node.
        rng: Chooses servers and waits.
    """

    def __init__(self, options: NatsOptions, name: str, clock: Clock, rng: random.Random | None = None) -> None:
        self._session = NatsSession(options, name, clock, self, rng)
        self._open: NatsConnection | None = None

    async def start(self) -> None:
        """Connect to NATS.

        Raises:
            NatsRefusedError: the server refuses us.
        """
        await self._session.start()

    async def stop(self) -> None:
        """Wait until the server has taken what was written, for some seconds, and close."""
        if self._open is not None:
            await asyncio.wait({self._open.ask()}, timeout=ACKS_TAKEN_TIMEOUT_S)
        self._open = None
        await self._session.stop()

    def write(self, frames: bytes) -> bool:
        """Send whole frames; False when there is no connection."""
        return self._open is not None and self._open.write(frames)

    @property
    def is_congested(self) -> bool:
        """Whether the server takes acks more slowly than they are made."""
        return self._open is not None and self._open.unsent_bytes > ACK_BUFFER_BYTES_MAX

    def opening(self, connection: NatsConnection) -> None:
        """See `ConnectionOwner`; nothing to do, as this connection has no subscriptions."""

    async def opened(self, connection: NatsConnection, previous: NatsConnection | None) -> None:
        """See `ConnectionOwner`."""
        self._open = connection
        if previous is not None:
            await previous.ask()

    def told(self, connection: NatsConnection, info: dict[str, Any]) -> None:
        """See `ConnectionOwner`."""

    def lost(self, connection: NatsConnection) -> None:
        """See `ConnectionOwner`."""
        if self._open is connection:
            self._open = None
