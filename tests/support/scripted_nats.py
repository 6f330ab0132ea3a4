"""A NATS server that does what a test tells it: it answers or does not, refuses, says INFO, and goes away."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self


class ScriptedNats:
    """Speaks the protocol as far as a test lets it.

    Args:
        info: what it says of itself beyond the usual.
        refusal: the text of the error with which it refuses everybody.
        tls: an SSL context, for a server that speaks TLS before all else.

    Attributes:
        answers: whether it answers PINGs.
        stands_still: its host takes connections, and it says nothing to whoever comes.
        clients: who has connected, oldest first.
    """

    def __init__(self, info: dict[str, Any] | None = None, refusal: str = "", tls: Any = None) -> None:
        self.info = {"server_id": "S", "version": "2.15.1", "headers": True, "max_payload": 1 << 20} | (info or {})
        self.refusal = refusal
        self.answers = True
        self.stands_still = False
        self.clients: list[ScriptedClient] = []
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._port = 0
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def listen(self) -> None:
        """Take connections, on the port of before if there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, ssl=self._tls)
        self._port = self._server.sockets[0].getsockname()[1]

    async def leave(self) -> None:
        """Take no more connections, and end those that there are."""
        self._server.close()
        for client in self.clients:
            client.writer.transport.abort()
        self.news()

    @property
    def place(self) -> str:
        """Its address without the scheme."""
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """Its address."""
        return f"nats://{self.place}"

    def news(self) -> None:
        """Let those look who wait."""
        self._news.set()

    async def until(self, condition) -> Any:
        """Wait until something is true after a line that has come; what it returned."""
        async with asyncio.timeout(30):
            while not (found := condition()):
                self._news.clear()
                await self._news.wait()
        return found

    async def client(self, number: int) -> ScriptedClient:
        """Wait for a client that has been let in."""
        return await self.until(lambda: len(self.clients) > number and self.clients[number])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = ScriptedClient(self, writer)
        if not self.stands_still:
            client.send_info(self.info)
        try:
            while line := await reader.readline():
                client.take(line.rstrip(b"\r\n"))
                self.news()
        except ConnectionError:
            pass
        finally:
            client.is_gone = True
            self.news()
            writer.close()


class ScriptedClient:
    """Who is connected to it.

    Attributes:
        connect: what it says of itself.
        subscriptions: number by subject, of those that stand.
        unanswered: PINGs that wait.
        refusals: what it is answered when it subscribes to a subject.
    """

    def __init__(self, server: ScriptedNats, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self.writer = writer
        self.connect: dict[str, Any] = {}
        self.subscriptions: dict[str, int] = {}
        self.refusals: dict[str, bytes] = {}
        self.lines: list[bytes] = []
        self.unanswered = 0
        self.is_gone = False

    def send(self, data: bytes) -> None:
        """Send bytes as they are, if the connection stands."""
        if not self.writer.is_closing():
            self.writer.write(data)

    def send_info(self, info: dict[str, Any]) -> None:
        """Say something of itself."""
        self.send(b"INFO " + json.dumps(info).encode() + b" \r\n")

    def message(self, subject: str, payload: bytes) -> None:
        """Send a message to the subscription of just this subject."""
        self.send(b"MSG %b %d %d\r\n%b\r\n" % (subject.encode(), self.subscriptions[subject], len(payload), payload))

    def answer(self) -> None:
        """Answer everything that waits."""
        self.send(b"PONG\r\n" * self.unanswered)
        self.unanswered = 0

    def take(self, line: bytes) -> None:
        """Act on a line."""
        self.lines.append(line)
        words = line.decode().split(" ")
        if words[0] == "CONNECT":
            self.connect = json.loads(line[8:])
            if self._server.refusal:
                self.send(f"-ERR '{self._server.refusal}'\r\n".encode())
                self.writer.close()
            else:
                self._server.clients.append(self)
        elif words[0] == "SUB" and words[1] in self.refusals:
            self.send(self.refusals[words[1]])
        elif words[0] == "SUB":
            self.subscriptions[words[1]] = int(words[-1])
        elif words[0] == "UNSUB":
            self.subscriptions = {key: sid for key, sid in self.subscriptions.items() if sid != int(words[1])}
        elif words[0] == "PING":
            self.unanswered += 1
            if self._server.answers:
                self.answer()
