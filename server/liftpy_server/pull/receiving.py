"""A protocol in front of a stream's own: it takes the bytes in plain calls, and the stream goes on with all else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BytesTaker"]


class BytesTaker(asyncio.Protocol):
    """Takes the received bytes in plain calls, and leaves everything else to the protocol of a stream.

    Args:
        stream: The protocol that a transport had before.
        take: Called with all bytes that come.
    """

    def __init__(self, stream: asyncio.Protocol, take: Callable[[bytes], None]) -> None:
        self._stream = stream
        self._take = take

    def data_received(self, data: bytes) -> None:
        """Pass received bytes on."""
        self._take(data)

    def eof_received(self) -> bool | None:
        """No more will come."""
        return self._stream.eof_received()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        """The transport's buffer has room."""
        self._stream.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._stream.connection_lost(exc)
