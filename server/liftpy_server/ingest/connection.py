"""The node's ingest connection: its subscriptions, and what is known of the times when it was not listening.

A stream has an open gap as long as not all of its subscriptions stand: the connection is down, or the NATS server
refuses one. nats-py subscribes again whatever it knew when a connection comes back; a subscription that is refused
while the connection stands is tried again from time to time.

When a connection ends, what the server held for us is lost, and nobody says since when. What we read last may have
waited for long in a buffer. So the server is asked for a PONG every second: when it comes, everything that was
published before the question has come too, and a gap begins with the last question that was answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from nats.errors import Error

from liftpy_envelope.errors import LiftError
from liftpy_server.ingest.ingest import Ingest
from liftpy_server.ingest.server_errors import refused_bindings, split_errors
from liftpy_server.ingest.transport import FilteringTransport
from liftpy_server.limits import CONFIRM_INTERVAL_S, CONFIRM_TIMEOUT_S, RELIEF_INTERVAL_S, SUBSCRIBE_RETRY_S
from liftpy_server.nats_link import NatsLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nats.aio.client import Client
    from nats.aio.subscription import Subscription

    from liftpy_client.nats_options import NatsOptions
    from liftpy_log.clock import Clock
    from liftpy_server.ingest.binding import Binding
    from liftpy_server.ingest.transport import FilteringProtocol
    from liftpy_server.outbox import Outbox
    from liftpy_server.stream_state import StreamState

__all__ = ["IngestConnection", "SubscriptionRefusedError"]

logger = logging.getLogger(__name__)


class SubscriptionRefusedError(LiftError):
    """The NATS server does not let this node subscribe to a stream's subject."""


class IngestConnection:
    """Keeps the wanted bindings subscribed, through reconnects, and records gaps.

    Args:
        options: of the NATS server.
        name: of the connection.
        clock: tells the time of gaps.
        outbox: for acks.
        is_overloaded: while it says so, nothing is read from the socket.
        on_listening: called with a stream when all of its subscriptions are confirmed.
    """

    def __init__(
        self,
        options: NatsOptions,
        name: str,
        clock: Clock,
        outbox: Outbox,
        is_overloaded: Callable[[], bool],
        on_listening: Callable[[StreamState], None],
    ) -> None:
        self._clock = clock
        self._is_overloaded = is_overloaded
        self._on_listening = on_listening
        self._loop = asyncio.get_running_loop()
        self._looking: asyncio.TimerHandle | None = None
        self.ingest = Ingest(clock, outbox, self._hand_back, self._loop.call_later)
        self._link = NatsLink(
            options,
            name,
            on_client=self._subscribe_all,
            on_down=self._went_down,
            on_up=self._came_up,
            make_transport=lambda: FilteringTransport(self),
        )
        self._wanted: dict[Binding, Subscription | None] = {}
        self._refused: dict[Binding, str] = {}
        self._subscribing = asyncio.Lock()  # so that no binding is ever subscribed twice
        self._confirming: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_up = False  # subscriptions can be made: the connection stands, and those of before do
        self._protocol: FilteringProtocol | None = None
        self._whole_s = clock.elapsed()  # nothing that was published before is on its way still
        self._cause = ""
        self.reconnects = 0

    @property
    def is_connected(self) -> bool:
        """Whether messages arrive now."""
        return self._link.is_connected

    async def start(self, bindings: Iterable[Binding]) -> None:
        """Connect and subscribe; waits for a server that is not there.

        Raises:
            NatsRefusedError: the server refuses us.
        """
        self._wanted.update(dict.fromkeys(bindings))
        await self._link.start()
        self._tasks = [asyncio.create_task(self._retry()), asyncio.create_task(self._watch())]

    async def stop(self) -> None:
        """Close the connection, with everything read so far passed on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._link.stop()
        if self._looking is not None:
            self._looking.cancel()
        self.ingest.reset()

    async def bind(self, bindings: Sequence[Binding]) -> None:
        """Subscribe; returns when the server has confirmed it, or at once while there is no connection.

        What could not be subscribed stays wanted, and its stream has a gap until it is; see `refusal`.
        """
        async with self._subscribing:
            self._wanted.update(dict.fromkeys(bindings))
            if self._is_up:
                await self._subscribe(bindings)
            else:
                for binding in bindings:
                    binding.open_gap(self._clock.elapsed(), "there was no connection to NATS to subscribe on")

    async def unbind(self, bindings: Sequence[Binding]) -> None:
        """Unsubscribe; returns when no more messages will come."""
        async with self._subscribing:
            await self._unsubscribe(bindings)
            for binding in bindings:
                self._wanted.pop(binding, None)
                self._refused.pop(binding, None)

    def refusal(self, bindings: Iterable[Binding]) -> SubscriptionRefusedError | None:
        """Why the server does not let us have one of these subscriptions; None when it does."""
        text = next((self._refused[binding] for binding in bindings if binding in self._refused), None)
        return None if text is None else SubscriptionRefusedError(text)

    async def review(self, stream: StreamState) -> None:
        """Close the gaps of the stream's partitions of which nothing is missing any more."""
        async with self._subscribing:
            if self._is_up:
                self._settle([binding for binding in self._wanted if binding.stream is stream])

    async def _subscribe(self, bindings: Iterable[Binding]) -> bool:
        """Subscribe on the client of the moment, and close the gaps of what stands; False when there is none left."""
        client = self._link.client
        try:
            for binding in bindings:
                # Messages may come before `subscribe` returns, so their binding is there first.
                sid = client._sid + 1  # noqa: SLF001 - checked below
                self.ingest.bindings[sid] = binding
                subscription = await client.subscribe(binding.subject, queue=binding.group or "")
                assert subscription._id == sid, "nats-py numbers subscriptions in another way"  # noqa: SLF001
                self._wanted[binding] = subscription
        except (Error, OSError) as error:
            logger.warning("subscribing is put off until the NATS connection is back: %s", error)
            return False
        confirmed = await self._confirm(client)
        if confirmed:
            self._settle(bindings)
        return confirmed

    async def _unsubscribe(self, bindings: Iterable[Binding]) -> None:
        subscriptions = [found for binding in bindings if (found := self._wanted.get(binding)) is not None]
        for subscription in subscriptions:
            with contextlib.suppress(Error, OSError):  # a connection that is gone takes its subscriptions with it
                await subscription.unsubscribe()
        if subscriptions and self._is_up:
            await self._confirm(self._link.client)
        for subscription in subscriptions:
            self.ingest.bindings.pop(subscription._id, None)  # noqa: SLF001 - the number under which messages come

    async def _confirm(self, client: Client) -> bool:
        """Wait until the server has handled what was sent; False when the connection is lost meanwhile."""
        asked_s = self._clock.elapsed()
        # Not cancelled when we are, and with no time-out of its own: nats-py stops reading when the answer to a flush
        # comes that nobody waits for, and gives up a connection without answers by itself.
        confirming = asyncio.ensure_future(client.flush(CONFIRM_TIMEOUT_S))
        self._confirming.add(confirming)
        confirming.add_done_callback(self._forget)
        await asyncio.wait({confirming})
        if confirming.cancelled() or confirming.exception() is not None:
            return False
        self._whole_s = asked_s
        return True

    def _forget(self, confirming: asyncio.Task[None]) -> None:
        self._confirming.discard(confirming)
        if not confirming.cancelled() and (error := confirming.exception()) is not None:
            logger.debug("the NATS server did not answer: %s", error)

    async def _subscribe_all(self, _client: Client) -> None:
        """There is a new client, which knows no subscription yet."""
        async with self._subscribing:
            self.ingest.bindings.clear()
            self._refused.clear()
            self._wanted = dict.fromkeys(self._wanted)
            self._is_up = True
            await self._subscribe(list(self._wanted))

    def _went_down(self) -> None:
        self._is_up = False
        for confirming in self._confirming:
            confirming.cancel()
        cause, self._cause = self._cause or "the NATS connection was lost", ""
        for binding in self._wanted:
            binding.open_gap(self._whole_s, cause)

    async def _came_up(self) -> None:
        self.reconnects += 1
        async with self._subscribing:
            self._is_up = True
            if await self._subscribe([binding for binding, found in self._wanted.items() if found is None]):
                self._settle(self._wanted)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CONFIRM_INTERVAL_S)
            if self._is_up:
                await self._confirm(self._link.client)

    async def _retry(self) -> None:
        while True:
            await asyncio.sleep(SUBSCRIBE_RETRY_S)
            async with self._subscribing:
                refused = list(self._refused)
                if refused and self._is_up:
                    await self._unsubscribe(refused)
                    for binding in refused:
                        self._refused.pop(binding, None)
                    await self._subscribe(refused)

    def _settle(self, bindings: Iterable[Binding]) -> None:
        """The server has confirmed what it takes: close the gaps of partitions that miss nothing any more."""
        refused = {partition: text for each, text in self._refused.items() for partition in each.partitions.values()}
        for binding in bindings:
            for partition in binding.partitions.values():
                cause = refused.get(partition)
                if cause != partition.gaps.cause:
                    partition.gaps.close()
                if cause is not None:
                    partition.gaps.open(self._clock.elapsed(), cause)
        refused_streams = {binding.stream for binding in self._refused}
        for stream in {binding.stream for binding in bindings} - refused_streams:
            self._on_listening(stream)

    def connected(self, connection: FilteringProtocol) -> None:
        """See `ByteSink`."""
        self.ingest.reset()
        self._refused.clear()
        self._cause = ""
        self._protocol = connection

    def receive(self, data: bytes) -> None:
        """See `ByteSink`."""
        self.ingest.receive(data)
        self._pause_or_go_on()

    def _pause_or_go_on(self) -> None:
        """Pause, and look again soon: acks that the server takes, or that nobody owes any more, tell nobody of it."""
        if self._protocol is None:
            return
        if not self._is_overloaded():
            self._protocol.resume()
            return
        self._protocol.pause()
        if self._looking is None:
            self._looking = self._loop.call_later(RELIEF_INTERVAL_S, self._look_again)

    def _look_again(self) -> None:
        self._looking = None
        self._pause_or_go_on()

    def relieved(self) -> None:
        """Go on reading, when the reason to pause is gone."""
        if self._protocol is not None and not self._is_overloaded():
            self._protocol.resume()

    def lost(self) -> None:
        """See `ByteSink`."""
        self.ingest.reset()

    def _hand_back(self, data: bytes) -> None:
        if b"-ERR" in data:
            others, errors = split_errors(data)
            rest = [text for text in errors if not self._note_refusal(text)]
            data = others + b"".join(b"-ERR '%b'\r\n" % text.encode() for text in rest)
        if data and self._protocol is not None:
            self._protocol.hand_back(data)

    def _note_refusal(self, text: str) -> bool:
        """Act on an error of the server; False when it is one that nats-py has to act on."""
        asked = [binding for binding in self.ingest.bindings.values() if binding not in self._refused]
        refused = refused_bindings(text, asked)
        if refused is None:
            self._cause = f"the NATS server closed the connection: {text}"
            return False
        for binding in refused:
            cause = f"the NATS server refuses a subscription to {binding.subject}: {text}"
            self._refused[binding] = cause
            binding.open_gap(self._clock.elapsed(), cause)
        return True
