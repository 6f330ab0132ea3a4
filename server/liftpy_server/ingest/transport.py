"""The socket under nats-py's ingest connection.

nats-py connects, authenticates, speaks TLS, pings and reconnects; it reads through a transport, which is a class it
lets one replace. This one looks at the bytes first: messages go to the ingest, straight from the event loop's read
callback, and only the lines that are no messages reach nats-py's reader. So no coroutine wakes up for a chunk of
messages, and nothing that nats-py does while it handles a line can delay them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

from nats.aio.transport import TcpTransport

if TYPE_CHECKING:
    import ssl
    from urllib.parse import ParseResult

__all__ = ["ByteSink", "FilteringTransport"]

_CONTROL_BYTES_MAX = 1024 * 1024


class ByteSink(Protocol):
    """Takes everything that the server sends."""

    def connected(self, connection: FilteringProtocol) -> None:
        """A connection begins; lines that are no messages are to be given to its `hand_back`."""
        ...

    def receive(self, data: bytes) -> None:
        """The next bytes."""
        ...

    def lost(self) -> None:
        """The connection ended."""
        ...


class FilteringProtocol(asyncio.StreamReaderProtocol):
    """Shows every byte to the sink, and to nats-py's reader what the sink hands back."""

    def __init__(self, reader: asyncio.StreamReader, sink: ByteSink) -> None:
        super().__init__(reader)
        self._sink = sink
        self._transport_below: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport_below = cast("asyncio.Transport", transport)
        super().connection_made(transport)
        self._sink.connected(self)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._sink.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._sink.lost()
        super().connection_lost(exc)

    def hand_back(self, data: bytes) -> None:
        """Let nats-py read these bytes."""
        super().data_received(data)

    def pause(self) -> None:
        """Stop reading from the server until `resume`."""
        if self._transport_below is not None and self._transport_below.is_reading():
            self._transport_below.pause_reading()

    def resume(self) -> None:
        """Read from the server again."""
        below = self._transport_below
        if below is not None and not below.is_reading() and not below.is_closing():
            below.resume_reading()


class FilteringTransport(TcpTransport):
    """See the module."""

    def __init__(self, sink: ByteSink) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sink = sink

    def __bool__(self) -> bool:
        return True  # nats-py would replace a transport that is false

    def _streams(self) -> tuple[asyncio.StreamReader, FilteringProtocol]:
        reader = asyncio.StreamReader(limit=_CONTROL_BYTES_MAX)
        return reader, FilteringProtocol(reader, self._sink)

    def _adopt(self, transport: asyncio.Transport, reader: asyncio.StreamReader, protocol: FilteringProtocol) -> None:
        self._io_reader = reader
        self._io_writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """See nats-py's `Transport`."""
        del buffer_size
        reader, protocol = self._streams()
        async with asyncio.timeout(connect_timeout):
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: protocol, uri.hostname or "127.0.0.1", uri.port or 4222
            )
        self._adopt(transport, reader, protocol)
        # Kept so that the socket under an upgrade to TLS is not collected.
        self._bare_io_reader, self._bare_io_writer = self._io_reader, self._io_writer

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """See nats-py's `Transport`."""
        del buffer_size
        assert self._io_writer is not None
        reader, protocol = self._streams()
        async with asyncio.timeout(connect_timeout):
            transport = await asyncio.get_running_loop().start_tls(
                self._io_writer.transport,
                protocol,
                ssl_context,
                server_hostname=uri if isinstance(uri, str) else uri.hostname,
            )
        assert transport is not None
        protocol.connection_made(transport)
        self._adopt(transport, reader, protocol)
