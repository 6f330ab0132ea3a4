"""An ordinary nats-py publisher that wants every message acknowledged, and sends again what is not.

It knows nothing of liftpy but what any NATS client may know: a reply subject brings an ack, and a `Nats-Msg-Id`
makes sending again harmless.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from liftpy.demo.flights import Flight

__all__ = ["AckedPublisher"]

_WINDOW: Final = 4_000
_RESEND_AFTER_S: Final = 2.0


class AckedPublisher:
    """Publishes flights until every stream that stores one has acknowledged it.

    Args:
        nats: an open connection.
        flights: what to publish.
        streams_of: names of the streams that store a subject.
        on_progress: called now and then with the number of flights that are acknowledged by all of them.

    Attributes:
        resent: messages that were sent again.
        duplicates: acks that said so.
    """

    def __init__(
        self,
        nats: Client,
        flights: Sequence[Flight],
        streams_of: Callable[[str], frozenset[str]],
        on_progress: Callable[[int], None],
    ) -> None:
        self._nats = nats
        self._flights = flights
        self._on_progress = on_progress
        self._missing = [set(streams_of(flight.subject)) for flight in flights]
        self._sent_at: dict[int, float] = {}
        self._room = asyncio.Event()
        self._inbox = nats.new_inbox()
        self.acked = 0
        self.resent = 0
        self.duplicates = 0

    async def run(self) -> None:
        """Publish everything; returns when everything is acknowledged."""
        subscription = await self._nats.subscribe(f"{self._inbox}.*", cb=self._on_ack)
        for number in range(len(self._flights)):
            while len(self._sent_at) >= _WINDOW:
                await self._wait()
            await self._send(number)
        while self._sent_at:
            await self._wait()
        await subscription.unsubscribe()

    async def _send(self, number: int) -> None:
        flight = self._flights[number]
        self._sent_at[number] = time.monotonic()
        await self._nats.publish(
            flight.subject, flight.payload, reply=f"{self._inbox}.{number}", headers={"Nats-Msg-Id": str(number)}
        )

    async def _wait(self) -> None:
        """Wait for acks, and send again what has waited for too long."""
        self._room.clear()
        try:
            async with asyncio.timeout(0.25):
                await self._room.wait()
        except TimeoutError:
            overdue = time.monotonic() - _RESEND_AFTER_S
            for number in [number for number, sent_at in self._sent_at.items() if sent_at < overdue]:
                self.resent += 1
                await self._send(number)
        self._on_progress(self.acked)

    async def _on_ack(self, message: Msg) -> None:
        number = int(message.subject.rpartition(".")[2])
        if not message.data or number not in self._sent_at:
            return  # nobody was listening just then, or the ack of a message that was sent twice
        ack = json.loads(message.data)
        if "error" in ack:
            return  # sent again later
        self.duplicates += bool(ack.get("duplicate"))
        missing = self._missing[number]
        missing.discard(ack["stream"])
        if not missing:
            del self._sent_at[number]
            self.acked += 1
            self._room.set()
