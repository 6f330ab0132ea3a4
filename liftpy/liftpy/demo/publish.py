"""An ordinary nats-py publisher that wants every message acknowledged, and sends again what is not.

It knows nothing of liftpy but what any NATS client may know: a reply subject brings an ack, and a `Nats-Msg-Id`
makes sending again harmless. When the acks stop, the leader may be gone, and with it what was on its way. Then the
oldest message is sent again and again until a leader answers, and only then all the others, in their order. Where a new
leader answers sooner than that is noticed, what was lost is sent again later, and is stored behind what came next:
behind less than a window of it, as nothing is sent that is further ahead of the oldest one without an ack.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from liftpy.demo.flights import Flight

__all__ = ["AckedPublisher", "NoAckError", "Term"]

_WINDOW: Final = 4_000
_SILENCE_S: Final = 0.5
_PROBE_EVERY_S: Final = 0.05
_GIVE_UP_S: Final = 60.0


class NoAckError(LiftError):
    """Nobody acknowledges messages any more."""


class Term(NamedTuple):
    """The time in which one leader leads a stream of one partition."""

    stream: str
    epoch: int


class AckedPublisher:
    """Publishes flights until every stream that stores one has acknowledged it.

    Args:
        nats: An open connection.
        flights: What to publish.
        streams_of: Names of the streams that store a subject.
        on_progress: Called now and then with the number of flights that are acknowledged by all of them.

    Attributes:
        acked: Flights that all of their streams have acknowledged.
        resent: How often a message was sent again.
        stored_again: Flights that were stored when they were sent again.
        known: Flights that were sent again, and that a stream had already.
        sent_again: Numbers of the flights that were sent again.
        offsets: Offsets by stream and number of the flight, where the ack says that it is.
        acks: Acks by term.
        first_ack_at: Monotonic time of the first ack of a term, in seconds.
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
        self._streams_of = streams_of
        self._on_progress = on_progress
        self._missing: dict[int, set[str]] = {}  # by the number of a flight, in ascending order
        self.sent_again: set[int] = set()
        self._known: set[int] = set()
        self._last_ack_at: dict[str, float] = {}
        self._news = asyncio.Event()
        self._refusal = "none came"
        self._inbox = nats.new_inbox()
        self.acked = 0
        self.resent = 0
        self.stored_again = 0
        self.known = 0
        self.offsets: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self.acks: Counter[Term] = Counter()
        self.first_ack_at: dict[Term, float] = {}

    async def run(self) -> None:
        """Publish everything; returns when everything is acknowledged.

        Raises:
            NoAckError: no ack came for a minute.
        """
        subscription = await self._nats.subscribe(f"{self._inbox}.*", cb=self._on_ack)
        for number, flight in enumerate(self._flights):
            while self._missing and number - next(iter(self._missing)) >= _WINDOW:
                await self._wait()
            self._missing[number] = set(self._streams_of(flight.subject))
            await self._send(number)
        while self._missing:
            await self._wait()
        await subscription.unsubscribe()

    async def _send(self, number: int) -> None:
        flight = self._flights[number]
        await self._nats.publish(
            flight.subject, flight.payload, reply=f"{self._inbox}.{number}", headers={"Nats-Msg-Id": str(number)}
        )

    async def _send_again(self, number: int) -> None:
        self.resent += 1
        self.sent_again.add(number)
        await self._send(number)

    async def _wait(self) -> None:
        """Wait until something is acknowledged, with all it takes."""
        if not await self._has_news(_SILENCE_S):
            await self._recover()
        self._on_progress(self.acked)

    async def _has_news(self, timeout_s: float) -> bool:
        self._news.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def _recover(self) -> None:
        """Wait until every stream has a leader that acknowledges, then send again what is not acknowledged."""
        began = time.monotonic()
        while oldest := self._oldest_by_silent_stream(began):
            if time.monotonic() - began > _GIVE_UP_S:
                streams = ", ".join(sorted(oldest))
                raise NoAckError(f"no ack of {streams} for {_GIVE_UP_S:g} s; the last refusal: {self._refusal}")
            for number in sorted(set(oldest.values())):
                await self._send_again(number)
            await self._has_news(_PROBE_EVERY_S)
            await asyncio.sleep(0)
        for number in list(self._missing):
            if number in self._missing:  # else acknowledged meanwhile
                await self._send_again(number)

    def _oldest_by_silent_stream(self, since: float) -> dict[str, int]:
        """For streams that have acknowledged nothing since then: the first flight that waits for them."""
        oldest: dict[str, int] = {}
        for number, streams in self._missing.items():
            for stream in streams:
                if self._last_ack_at.get(stream, 0.0) < since:
                    oldest.setdefault(stream, number)
        return oldest

    async def _on_ack(self, message: Msg) -> None:
        number = int(message.subject.rpartition(".")[2])
        missing = self._missing.get(number)
        if not message.data or missing is None:
            return  # nobody was listening just then, or the ack of a message that was sent twice
        ack = json.loads(message.data)
        if "error" in ack:
            self._refusal = ack["error"]["description"]
            return  # sent again later
        stream = ack["stream"]
        if stream not in missing:
            return
        missing.remove(stream)
        self._last_ack_at[stream] = now = time.monotonic()
        self.offsets[stream][number] = ack["offset"]
        term = Term(stream, ack["epoch"])
        self.acks[term] += 1
        self.first_ack_at.setdefault(term, now)
        if ack.get("duplicate"):
            self._known.add(number)
        if not missing:
            self._complete(number)
        self._news.set()

    def _complete(self, number: int) -> None:
        del self._missing[number]
        self.acked += 1
        if number in self._known:
            self.known += 1
        elif number in self.sent_again:
            self.stored_again += 1
