"""Starts the nats-server of `liftpy dev` again when it ends, and says so: without it nothing works."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from liftpy.cli.dev.nats_server import NatsServerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy.cli.dev.nats_server import NatsServer

__all__ = ["NatsKeeper"]

_LOOK_S: Final = 0.5
_PAUSE_S_MAX: Final = 30.0
_NOTES_MAX: Final = 3


class NatsKeeper:
    """Keeps a nats-server running.

    Args:
        server: Server that was started.
        say: Called with what happens.

    Attributes:
        notes: What happened last.
    """

    def __init__(self, server: NatsServer, say: Callable[[str], object] | None = None) -> None:
        self.notes: deque[str] = deque(maxlen=_NOTES_MAX)
        self._server = server
        self._say = say

    async def run(self) -> None:
        """Look after the server until cancelled. One that ends again and again is started ever more rarely."""
        loop = asyncio.get_running_loop()
        pause_s, started_s = _LOOK_S, loop.time()
        while True:
            await asyncio.sleep(_LOOK_S)
            obituary = self._server.obituary
            if obituary is None:
                continue
            if loop.time() - started_s > _PAUSE_S_MAX:
                pause_s = _LOOK_S
            try:
                await self._server.start_again()
                said = f"started again with pid {self._server.pid}; what was published in between is not stored"
            except (NatsServerError, OSError) as error:
                said = f"it does not start again: {error}; next attempt in {2 * pause_s:g} s"
            self._tell(f"{obituary}: {said}")
            started_s = loop.time()
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            await asyncio.sleep(pause_s)

    def _tell(self, text: str) -> None:
        self.notes.append(text)
        if self._say is not None:
            self._say(text)
