"""A pull connection without the client, to send what the client would not."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import msgpack

from liftpy_envelope.batch import read_header
from liftpy_envelope.bodies import unpack_body

if TYPE_CHECKING:
    import ssl

    import liftpy

_LENGTHS = struct.Struct("<IQ")
_Body = TypeVar("_Body")


class Answer(NamedTuple):
    """One response."""

    correlation_id: int
    error: int
    message: str
    result: Any
    body: bytes

    def decoded(self, kind: type[_Body]) -> _Body:
        """The result, as its class."""
        return unpack_body(kind, msgpack.packb(self.result))

    @property
    def offsets(self) -> list[int]:
        """The offsets of the records in the body."""
        found: list[int] = []
        position = 0
        while position < len(self.body):
            header = read_header(self.body, position)
            found.extend(range(header.base_offset, header.next_offset))
            position += header.length
        return found


def frame(correlation_id: Any, api: Any, version: Any, body: Any) -> bytes:
    """One request frame, whatever it says."""
    packed = msgpack.packb([correlation_id, api, version, body])
    return struct.pack("<I", len(packed)) + packed


class RawPull:
    """One connection to a pull server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._last_id = 0

    @classmethod
    async def open(cls, port: int, *, receive_bytes: int | None = None, tls: ssl.SSLContext | None = None) -> RawPull:
        """Connect; `receive_bytes` makes the kernel's buffer small."""
        sock = socket.socket()
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        name = "127.0.0.1" if tls else None
        return cls(*await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=name, limit=1 << 16))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection."""
        self.writer.transport.abort()

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    def send(self, api: int, body: Any, version: int = 1) -> int:
        """Send a request; its correlation id."""
        self._last_id += 1
        self.write(frame(self._last_id, api, version, body))
        return self._last_id

    async def receive(self, timeout_s: float = 30.0) -> Answer:
        """The next response."""
        async with asyncio.timeout(timeout_s):
            head, body = _LENGTHS.unpack(await self.reader.readexactly(_LENGTHS.size))
            fields = msgpack.unpackb(await self.reader.readexactly(head), strict_map_key=False)
            return Answer(*fields, await self.reader.readexactly(body))

    async def request(self, api: int, body: Any, version: int = 1, timeout_s: float = 30.0) -> Answer:
        """Send a request and wait for its response."""
        correlation_id = self.send(api, body, version)
        answer = await self.receive(timeout_s)
        assert answer.correlation_id == correlation_id
        return answer

    async def hello(self, token: str) -> Answer:
        """Say hello."""
        return await self.request(0, ["test", token])

    async def rest(self, timeout_s: float = 30.0) -> bytes:
        """Everything until the node closes the connection."""
        data = b""
        async with asyncio.timeout(timeout_s):
            try:
                while chunk := await self.reader.read(1 << 16):
                    data += chunk
            except ConnectionError:
                pass
        return data


def decode_answers(data: bytes) -> list[Answer]:
    """The responses in bytes that were read to their end."""
    answers = []
    position = 0
    while position < len(data):
        head, body = _LENGTHS.unpack_from(data, position)
        start = position + _LENGTHS.size
        position = start + head + body
        answers.append(
            Answer(*msgpack.unpackb(data[start : start + head], strict_map_key=False), data[start + head : position])
        )
    return answers


async def pull_token(lift: liftpy.Lift, node_id: str = "liftpy-1") -> str:
    """What a node admits peers by, as it tells clients over NATS."""
    await lift._session.cluster.refresh([])
    address = lift._session.cluster.node(node_id)
    assert address is not None
    return address.token
