"""NATS as nats-py does it at its worst: answers in the very tick in which who asked is cancelled, and flushes that
swallow a cancellation."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable


class TickNats:
    """Answers admin requests after some turns of the loop; waits as nats-py does.

    Args:
        answer: makes the answer to an endpoint and a body.
        rng: chooses how many turns.
    """

    is_connected = True
    is_closed = False
    max_payload = 2**20

    def __init__(self, answer: Callable[[str, dict[str, Any]], dict[str, Any]], rng: random.Random) -> None:
        self._answer = answer
        self._rng = rng
        self.asked = 0

    async def request(self, subject: str, data: bytes, timeout: float) -> Any:
        self.asked += 1
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        answer = self._answer(subject.removeprefix("LIFT.API."), json.loads(data))
        reply = SimpleNamespace(data=json.dumps(answer).encode())
        turns = self._rng.randrange(4)

        def turn() -> None:
            nonlocal turns
            turns -= 1
            if turns >= 0:
                loop.call_soon(turn)
            elif not future.done():
                future.set_result(reply)

        loop.call_soon(turn)
        return await asyncio.wait_for(future, timeout)

    async def flush(self, turns: int) -> None:
        """What `publish` does when much waits to be sent."""
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
