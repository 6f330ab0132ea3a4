"""A proxy in front of a nats-server that cuts off connections by the name that their clients give themselves."""

from __future__ import annotations

import asyncio
import json
from typing import Self


class NatsProxy:
    """Passes bytes on, both ways.

    Args:
        port: of the server behind it, on this machine.
    """

    def __init__(self, port: int) -> None:
        self._behind = port
        self._cut: str | None = None
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], str] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._end(list(self._connections))

    @property
    def url(self) -> str:
        """Its address."""
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def cut(self, word: str = "") -> None:
        """End the connections whose names end in a word, all of them without one, and take no more of them."""
        self._cut = word
        await self._end([task for task, name in self._connections.items() if name.endswith(word)])

    def mend(self) -> None:
        """Take every connection again."""
        self._cut = None

    @staticmethod
    async def _end(tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = ""
        behind_reader, behind = await asyncio.open_connection("127.0.0.1", self._behind)
        try:
            writer.write(await behind_reader.readuntil(b"\r\n"))  # INFO
            connect = await reader.readuntil(b"\r\n")
            name = self._connections[task] = json.loads(connect.removeprefix(b"CONNECT ")).get("name", "")
            if self._cut is not None and name.endswith(self._cut):
                return
            behind.write(connect)
            passing = {
                asyncio.ensure_future(_pass_on(reader, behind)),
                asyncio.ensure_future(_pass_on(behind_reader, writer)),
            }
            try:
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await self._end(list(passing))
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            return  # the one side or the other has gone, or is to go
        finally:
            self._connections.pop(task, None)
            writer.close()
            behind.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
