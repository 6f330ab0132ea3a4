"""A NATS connection without a client library, to send what no library would."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Self

_MSG = re.compile(rb"MSG (\S+) (\d+) (?:(\S+) )?(\d+)")
_HMSG = re.compile(rb"HMSG (\S+) (\d+) (?:(\S+) )?(\d+) (\d+)")
_CONNECT = {
    "verbose": False,
    "pedantic": False,
    "lang": "test",
    "version": "1",
    "headers": True,
    "no_responders": True,
    "echo": True,
}


def pub(subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    """A `PUB` frame."""
    return b"PUB %b %b%d\r\n%b\r\n" % (subject, reply + b" " if reply else b"", len(payload), payload)


def hpub(subject: bytes, block: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    """A `HPUB` frame; the block is sent as it is."""
    sizes = len(block), len(block) + len(payload)
    return b"HPUB %b %b%d %d\r\n%b%b\r\n" % (subject, reply + b" " if reply else b"", *sizes, block, payload)


def block(*lines: bytes) -> bytes:
    """A NATS header block out of whole header lines."""
    return b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


class RawNats:
    """One connection, with a subscription on which answers come back.

    Attributes:
        errors: the texts of `-ERR` lines.
        answers: payloads by reply subject, in the order in which they came.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._pongs: asyncio.Queue[None] = asyncio.Queue()
        self._numbers = 0
        self._news = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())
        self.errors: list[str] = []
        self.answers: dict[bytes, list[bytes]] = {}

    @classmethod
    async def open(cls, port: int) -> RawNats:
        """Connect to a server on this machine."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        await reader.readline()
        self = cls(reader, writer)
        writer.write(b"CONNECT " + json.dumps(_CONNECT).encode() + b"\r\nSUB answers.%d.> 1\r\n" % id(self))
        await self.flush()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.close()

    @property
    def is_closed(self) -> bool:
        """Whether the server has closed the connection."""
        return self._reading.done()

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)

    async def flush(self, timeout_s: float = 30.0) -> None:
        """Wait until the server has handled what was sent."""
        self._writer.write(b"PING\r\n")
        await self._writer.drain()
        async with asyncio.timeout(timeout_s):
            await self._pongs.get()

    async def closed(self, timeout_s: float = 30.0) -> None:
        """Wait until the server closes the connection."""
        async with asyncio.timeout(timeout_s):
            await asyncio.wait({self._reading})

    def reply(self) -> bytes:
        """A new subject to be answered on."""
        self._numbers += 1
        return b"answers.%d.%d" % (id(self), self._numbers)

    async def answer(self, reply: bytes, timeout_s: float = 30.0) -> Any:
        """The first answer on a reply subject, as JSON; None when nobody listens."""
        async with asyncio.timeout(timeout_s):
            while reply not in self.answers:
                self._news.clear()
                await self._news.wait()
        data = self.answers[reply][0]
        return json.loads(data) if data else None

    async def ask(self, subject: bytes, payload: bytes, timeout_s: float = 30.0) -> Any:
        """Publish a plain message and wait for its answer."""
        reply = self.reply()
        self.write(pub(subject, payload, reply))
        return await self.answer(reply, timeout_s)

    async def ask_with(self, subject: bytes, headers: bytes, payload: bytes, timeout_s: float = 30.0) -> Any:
        """As `ask`, with a header block."""
        reply = self.reply()
        self.write(hpub(subject, headers, payload, reply))
        return await self.answer(reply, timeout_s)

    async def _read(self) -> None:
        while line := await self._reader.readline():
            line = line.rstrip(b"\r\n")
            if found := _MSG.fullmatch(line) or _HMSG.fullmatch(line):
                head = int(found[4]) if found.re is _HMSG else 0
                body = await self._reader.readexactly(int(found[found.re.groups]) + 2)
                self.answers.setdefault(found[1], []).append(body[head:-2])
                self._news.set()
            elif line == b"PING":
                self._writer.write(b"PONG\r\n")
            elif line == b"PONG":
                self._pongs.put_nowait(None)
            elif line.startswith(b"-ERR"):
                self.errors.append(line.decode())
