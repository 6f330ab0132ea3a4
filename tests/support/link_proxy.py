"""A proxy between the nodes of a cluster: every way between two of them can be cut, slowed down, or dropped.

It runs in a thread of its own, so that a test that is busy does not hold the nodes up. Each node is told an address of
the proxy as its own; who connects to it is found out by `owner`, from the port that the connection comes from.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

CHUNK_BYTES = 65_536
CALL_TIMEOUT_S = 30.0


@dataclass(slots=True)
class _Way:
    """From one node to another."""

    is_open: asyncio.Event
    delay_s: float = 0.0


class LinkProxy:
    """See the module.

    Args:
        owner: who has the local port that a connection comes from.
    """

    def __init__(self, owner: Callable[[int], str]) -> None:
        self._owner = owner
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link proxy", daemon=True)
        self._ways: defaultdict[tuple[str, str], _Way] = defaultdict(self._open_way)
        self._servers: list[asyncio.Server] = []
        self._connections: dict[asyncio.Task[None], frozenset[str]] = {}

    @staticmethod
    def _open_way() -> _Way:
        way = _Way(asyncio.Event())
        way.is_open.set()
        return way

    def start(self) -> None:
        """Begin to run."""
        self._thread.start()

    def stop(self) -> None:
        """End every connection, and listen no more."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._thread.is_alive()

    def listen(self, name: str, here: tuple[str, int], there: tuple[str, int]) -> None:
        """Pass on to a node what comes to an address of ours.

        Args:
            name: of the node.
            here: where it is said to be.
            there: where it is.
        """
        self._call(self._listen(name, here, there))

    def cut(self, source: str, target: str) -> None:
        """Whatever one node sends the other is held back, also the end of a connection."""
        self._call(self._set(source, target, is_open=False))

    def delay(self, source: str, target: str, delay_s: float) -> None:
        """Whatever one node sends the other comes later."""
        self._call(self._set(source, target, delay_s=delay_s))

    def mend(self) -> None:
        """Everything passes at once, beginning with what was held back."""
        self._call(self._mend())

    def drop(self, one: str, other: str) -> int:
        """End the connections between two nodes; how many there were."""
        return self._call(self._drop(frozenset((one, other))))

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await self._end(list(self._connections))

    async def _listen(self, name: str, here: tuple[str, int], there: tuple[str, int]) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(name, there, reader, writer)

        self._servers.append(await asyncio.start_server(serve, *here))

    async def _set(self, source: str, target: str, *, is_open: bool = True, delay_s: float = 0.0) -> None:
        way = self._ways[source, target]
        way.delay_s = delay_s
        if is_open:
            way.is_open.set()
        else:
            way.is_open.clear()

    async def _mend(self) -> None:
        for way in self._ways.values():
            way.delay_s = 0.0
            way.is_open.set()

    async def _drop(self, pair: frozenset[str]) -> int:
        found = [task for task, ends in self._connections.items() if ends == pair]
        await self._end(found)
        return len(found)

    @staticmethod
    async def _end(tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(
        self, name: str, there: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        source = self._owner(writer.get_extra_info("peername")[1])
        self._connections[task] = frozenset((source, name))
        behind: asyncio.StreamWriter | None = None
        try:
            for way in ((source, name), (name, source)):  # a connection takes both
                await self._ways[way].is_open.wait()
            behind_reader, behind = await asyncio.open_connection(*there)
            await self._pass_both(
                asyncio.ensure_future(self._pass(self._ways[source, name], reader, behind)),
                asyncio.ensure_future(self._pass(self._ways[name, source], behind_reader, writer)),
            )
        except (OSError, asyncio.CancelledError):
            return  # the one side or the other has gone, or is to go
        finally:
            self._connections.pop(task, None)
            for end in (writer, behind):
                if end is not None:
                    end.close()

    async def _pass_both(self, *passing: asyncio.Task[None]) -> None:
        try:
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._end(list(passing))

    @staticmethod
    async def _pass(way: _Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if way.delay_s:
                await asyncio.sleep(way.delay_s)
            await way.is_open.wait()
            writer.write(data)
            await writer.drain()
        await way.is_open.wait()
