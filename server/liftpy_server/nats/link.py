"""A NATS connection that is looked after.

nats-py reconnects by itself; this adds what it leaves open. A server that is absent at start is waited for, one that
refuses our credentials at start is an error at once. A client that nats-py closed for good is replaced. A reader task
that died without telling anyone is noticed and the connection renewed. Every change is told to the owner.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from typing import TYPE_CHECKING, Any

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import AuthorizationError, Error, SlowConsumerError

from liftpy_client.connection.cancelling import KeptCancellation, end_tasks
from liftpy_envelope.errors import LiftError
from liftpy_server.nats.session import NatsRefusedError
from liftpy_server.repeated_warnings import RepeatedWarnings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from liftpy_client.connection.nats_options import NatsOptions

__all__ = ["NatsLink", "check_nats_version"]

logger = logging.getLogger(__name__)

_NATS_PY = "2.16."
_WATCH_INTERVAL_S = 0.5
_RETRY_S = 0.5
_PENDING_MAX = 1_024
_LOOK_S = 0.001
_TURNS = 4
_REST = 9.0  # times what that took
_REST_S_MAX = 0.25
_BEHIND_S_MAX = 2.0
_PENDING_BYTES_MAX = 16 * 1024 * 1024


def check_nats_version() -> None:
    """Refuse a nats-py whose inside is not the one that this was written against.

    Raises:
        LiftError: it is another version.
    """
    found = importlib.metadata.version("nats-py")
    if not found.startswith(_NATS_PY):
        raise LiftError(
            f"nats-py {found} is installed; liftpy's server needs {_NATS_PY}*: pip install 'nats-py~=2.16.0'"
        )


class _BoundedClient(Client):
    """Holds no more of what others send than is worked off in moments; beyond that nats-py drops it and says so."""

    async def subscribe(
        self,
        subject: str,
        queue: str = "",
        cb: Callable[[Msg], Awaitable[None]] | None = None,
        future: asyncio.Future[Any] | None = None,
        max_msgs: int = 0,
        pending_msgs_limit: int = _PENDING_MAX,
        pending_bytes_limit: int = _PENDING_BYTES_MAX,
    ) -> Subscription:
        return await super().subscribe(subject, queue, cb, future, max_msgs, pending_msgs_limit, pending_bytes_limit)


class _PatientTransport(TcpTransport):
    """Rests after a chunk that took long: what others send takes about a tenth of the time, and less on a busy node.

    Meanwhile the server holds what is sent. A chunk that is not full was all there was, so the connection keeps up,
    however slow the machine is or for how long the process stood still.

    Attributes:
        rested_s: Time for which it has rested between chunks that were full, seconds.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._returned_s = 0.0
        self.rested_s = 0.0

    def __bool__(self) -> bool:
        return True  # nats-py would replace a transport that is false

    async def read(self, buffer_size: int) -> bytes:
        loop = asyncio.get_running_loop()
        rest_s = 0.0
        if self._returned_s and loop.time() - self._returned_s > _LOOK_S:
            for _ in range(_TURNS):  # in which the handlers get what was in it, and others what is theirs
                await asyncio.sleep(0)
            rest_s = min(_REST * (loop.time() - self._returned_s), _REST_S_MAX)
            await asyncio.sleep(rest_s)
        data: bytes = await super().read(buffer_size)
        self.rested_s = self.rested_s + rest_s if len(data) == buffer_size else 0.0
        self._returned_s = loop.time()
        return data


class NatsLink:
    """A connection of nats-py that is renewed when it is lost, closed or silent.

    Args:
        options: Where to, and as whom.
        name: Shown by `nats server report connections`.
        on_client: Awaited with a new client whenever there is one: set up its subscriptions there.
        is_bounded: What anybody sends on it takes little of the node's time and memory.
    """

    def __init__(
        self,
        options: NatsOptions,
        name: str,
        *,
        on_client: Callable[[Client], Awaitable[None]] | None = None,
        is_bounded: bool = False,
    ) -> None:
        self._make_client = _BoundedClient if is_bounded else Client
        self._patient = _PatientTransport() if is_bounded else None
        self._options = options
        self._name = name
        self._on_client = on_client
        self._client: Client | None = None
        self._closed = asyncio.Event()
        self._refused = asyncio.Event()
        self._refusal = ""
        self._task: asyncio.Task[None] | None = None
        self._is_shedding = False
        self._last_error = ""
        self._warnings = RepeatedWarnings(logger)

    @property
    def client(self) -> Client:
        """The client of the moment."""
        assert self._client is not None, "start the link first"
        return self._client

    @property
    def is_connected(self) -> bool:
        """Whether the server hears us now."""
        return self._client is not None and self._client.is_connected

    async def start(self) -> None:
        """Connect; waits for a server that is not there.

        Raises:
            NatsRefusedError: the server is there and refuses us.
        """
        await self._connect(first=True)
        self._task = asyncio.get_running_loop().create_task(self._look_after(), name=f"nats {self._name}")

    async def stop(self) -> None:
        """Close the connection."""
        if self._task is not None:
            await end_tasks([self._task])
        if self._client is not None and not self._client.is_closed:
            with KeptCancellation():
                await self._client.close()

    async def _connect(self, *, first: bool) -> None:
        client = self._make_client()
        if self._patient is not None:
            client._transport = self._patient = _PatientTransport()  # noqa: SLF001 - the one way to hand it in
        self._closed.clear()
        self._refused.clear()
        connecting = asyncio.ensure_future(client.connect(**self._arguments()))
        refused = asyncio.ensure_future(self._refused.wait())
        try:
            await asyncio.wait({connecting, refused}, return_when=asyncio.FIRST_COMPLETED)
            if first and not connecting.done():
                raise NatsRefusedError(f"{self._options.shown_url} refuses our credentials: {self._refusal}")
            await connecting
        finally:
            await end_tasks([connecting, refused])
        self._client = client
        self._last_error = ""
        if self._on_client is not None:
            with KeptCancellation():  # it subscribes
                await self._on_client(client)

    def _arguments(self) -> dict[str, Any]:
        return self._options.connect_arguments() | {
            "name": self._name,
            "no_echo": True,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": _RETRY_S,
            "ping_interval": 10,
            "max_outstanding_pings": 2,
            "error_cb": self._error,
            "reconnected_cb": self._reconnected,
            "closed_cb": self._was_closed,
        }

    async def _error(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if isinstance(error, AuthorizationError) or "authorization violation" in text.lower():
            self._refusal = text
            self._refused.set()
        if isinstance(error, SlowConsumerError):  # nats-py says so for every message that it drops
            text = f"more is asked on {error.subject} than this node can work off; some of it is dropped"
            self._warnings.tell("dropped", text, asyncio.get_running_loop().time())
        elif text != self._last_error:
            self._last_error = text
            logger.warning("NATS connection %s to %s: %s", self._name, self._options.shown_url, text)

    async def _reconnected(self) -> None:
        if self._is_shedding:
            self._is_shedding = False
        else:
            logger.info("NATS connection %s is back", self._name)
        self._last_error = ""

    async def _was_closed(self) -> None:
        self._closed.set()

    async def _look_after(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_WATCH_INTERVAL_S):
                    await self._closed.wait()
            except TimeoutError:
                await self._renew_when_deaf()
                await self._shed()
                continue
            logger.warning("NATS connection %s was closed; connecting anew", self._name)
            await asyncio.sleep(_RETRY_S)
            try:
                await self._connect(first=False)
            except (Error, LiftError, OSError) as error:
                logger.warning("NATS connection %s: %s", self._name, error)
                self._closed.set()

    async def _shed(self) -> None:
        """Leave behind what the server holds for a flooded connection: who sent it would wait no longer by its turn."""
        if self._patient is not None and self._patient.rested_s > _BEHIND_S_MAX and self.client.is_connected:
            text = f"NATS connection {self._name}: more is sent to it than this node looks at; what waits is dropped"
            self._warnings.tell("dropped", text, asyncio.get_running_loop().time())
            self._is_shedding, self._patient.rested_s = True, 0.0
            with KeptCancellation():
                await self.client.force_reconnect()

    async def _renew_when_deaf(self) -> None:
        client = self.client
        reading = client._reading_task  # noqa: SLF001 - nats-py says nothing when it ends
        if client.is_connected and reading is not None and reading.done():
            logger.error("NATS connection %s: nats-py stopped reading; connecting again", self._name)
            with KeptCancellation():
                await client.force_reconnect()
