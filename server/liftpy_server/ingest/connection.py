"""The node's ingest connection: its subscriptions, and what is known of the times when it was not listening."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from liftpy_envelope.errors import LiftError
from liftpy_server.ingest.ingest import Ingest
from liftpy_server.ingest.transport import FilteringTransport
from liftpy_server.nats_link import NatsLink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nats.aio.client import Client
    from nats.aio.subscription import Subscription

    from liftpy_client.nats_options import NatsOptions
    from liftpy_log.clock import Clock
    from liftpy_server.ingest.binding import Binding
    from liftpy_server.ingest.transport import FilteringProtocol
    from liftpy_server.outbox import Outbox

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
    """

    def __init__(
        self, options: NatsOptions, name: str, clock: Clock, outbox: Outbox, is_overloaded: Callable[[], bool]
    ) -> None:
        self._clock = clock
        self._is_overloaded = is_overloaded
        loop = asyncio.get_running_loop()
        self.ingest = Ingest(clock, outbox, self._hand_back, loop.call_later)
        self._link = NatsLink(
            options,
            name,
            on_client=self._subscribe_all,
            on_down=self._went_down,
            on_up=self._came_up,
            on_error=self._heard_error,
            make_transport=lambda: FilteringTransport(self),
        )
        self._wanted: dict[Binding, tuple[int, Subscription | None]] = {}
        self._protocol: FilteringProtocol | None = None
        self._heard_ns = clock.now_ns()
        self._errors: list[str] = []
        self._cause = ""
        self.reconnects = 0

    @property
    def is_connected(self) -> bool:
        """Whether messages arrive now."""
        return self._link.is_connected

    async def start(self, bindings: Sequence[Binding]) -> None:
        """Connect and subscribe; waits for a server that is not there.

        Raises:
            NatsRefusedError: the server refuses us.
        """
        self._wanted.update(dict.fromkeys(bindings, (0, None)))
        await self._link.start()

    async def stop(self) -> None:
        """Close the connection, with everything read so far passed on."""
        await self._link.stop()
        self.ingest.reset()

    async def bind(self, binding: Binding) -> None:
        """Subscribe; returns when the server has confirmed it. While the server is away this waits for it.

        Raises:
            SubscriptionRefusedError: the server does not let us.
        """
        self._wanted[binding] = (0, None)
        if not self._link.is_connected:
            binding.stream.open_gap(self._clock.now_ns(), "the NATS connection was down when the stream was bound")
            return  # the subscription is made when the connection is back
        self._errors.clear()
        await self._subscribe(self._link.client, binding)
        await self._link.client.flush()
        refusal = next((text for text in self._errors if f'"{binding.subject}"' in text.replace("'", '"')), None)
        if refusal is not None:
            await self.unbind(binding)
            raise SubscriptionRefusedError(f"the NATS server refuses a subscription to {binding.subject}: {refusal}")

    async def unbind(self, binding: Binding) -> None:
        """Unsubscribe; returns when no more messages will come."""
        sid, subscription = self._wanted.pop(binding, (0, None))
        if subscription is not None and self._link.is_connected:
            await subscription.unsubscribe()
            await self._link.client.flush()
        self.ingest.bindings.pop(sid, None)

    async def _subscribe(self, client: Client, binding: Binding) -> None:
        # Messages may come before `subscribe` returns, so their binding is there first.
        sid = client._sid + 1  # noqa: SLF001 - checked below
        self.ingest.bindings[sid] = binding
        subscription = await client.subscribe(binding.subject, queue=binding.stream.config.group or "")
        assert subscription._id == sid, "nats-py numbers subscriptions in another way"  # noqa: SLF001
        self._wanted[binding] = (sid, subscription)

    async def _subscribe_all(self, client: Client) -> None:
        self.ingest.bindings.clear()
        for binding in list(self._wanted):
            await self._subscribe(client, binding)
        if self._wanted:
            await client.flush()

    def _went_down(self) -> None:
        cause = self._cause or "the NATS connection was lost"
        self._cause = ""
        for binding in self._wanted:
            binding.stream.open_gap(self._heard_ns, cause)

    async def _came_up(self) -> None:
        self.reconnects += 1
        late = [binding for binding, (sid, _) in self._wanted.items() if not sid]
        for binding in late:  # bound while the connection was down
            await self._subscribe(self._link.client, binding)
        if late:
            await self._link.client.flush()
        now_ns = self._clock.now_ns()
        for binding in self._wanted:
            binding.stream.close_gap(now_ns)

    def _heard_error(self, text: str) -> None:
        self._errors.append(text)
        del self._errors[:-100]
        if "slow consumer" in text.lower():
            self._cause = "the NATS server dropped this node as a slow consumer"

    def connected(self, connection: FilteringProtocol) -> None:
        """See `ByteSink`."""
        self.ingest.reset()
        self._protocol = connection
        self._heard_ns = self._clock.now_ns()

    def receive(self, data: bytes) -> None:
        """See `ByteSink`."""
        self._heard_ns = self._clock.now_ns()
        self.ingest.receive(data)
        if self._protocol is not None and self._is_overloaded():
            self._protocol.pause()

    def relieved(self) -> None:
        """Go on reading, when the reason to pause is gone."""
        if self._protocol is not None and not self._is_overloaded():
            self._protocol.resume()

    def lost(self) -> None:
        """See `ByteSink`."""
        self.ingest.reset()

    def _hand_back(self, data: bytes) -> None:
        if self._protocol is not None:
            self._protocol.hand_back(data)
