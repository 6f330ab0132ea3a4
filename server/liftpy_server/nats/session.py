"""Connections to NATS, one after the other: there is always one, or one is sought.

A server that is not there is waited for. One that does not take our credentials is an error at the start, and waited
for later on. A server that says that it will shut down is left for another, which is joined before.
"""

from __future__ import annotations

import asyncio
import logging
import random
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from liftpy_envelope.errors import LiftError
from liftpy_server.nats.connection import NatsConnection, NatsConnectionError, TlsUse
from liftpy_server.nats.credentials import connect_line
from liftpy_server.nats.server_pool import ServerAddress, ServerPool, of_same_cluster
from liftpy_server.repeated_warnings import RepeatedWarnings
from liftpy_server.settings.limits import KNOCK_TIMEOUT_S, SHORT_CONNECTION_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_client.connection.nats_options import NatsOptions
    from liftpy_log.clock import Clock

__all__ = ["ConnectionOwner", "Knock", "NatsRefusedError", "NatsSession"]

logger = logging.getLogger(__name__)

_ASKED_MAX: Final = 32  # servers at once, each of which is a connection
_SHUTS_DOWN: Final = "the NATS server is going to shut down"


class NatsRefusedError(LiftError):
    """The NATS server refuses our credentials."""


class ConnectionOwner(Protocol):
    """Who uses the connections."""

    def opening(self, connection: NatsConnection) -> None:
        """A connection is going to be opened: say what becomes of its chunks and errors."""
        ...

    async def opened(self, connection: NatsConnection, previous: NatsConnection | None) -> None:
        """There is a connection: set up what it is for.

        Args:
            connection: The new one.
            previous: The one before if it still stands; it is ended when this returns.
        """
        ...

    def told(self, connection: NatsConnection, info: dict[str, Any]) -> None:
        """The server of a connection says something of itself and of the others."""
        ...

    def lost(self, connection: NatsConnection) -> None:
        """A connection that was open has ended."""
        ...


class Knock(NamedTuple):
    """What became of a knock at a server.

    Attributes:
        info: What it says of itself; None when it says nothing.
        was_taken: Whether its host took the connection, and it did not speak in another way than we want.
    """

    info: dict[str, Any] | None
    was_taken: bool


class NatsSession:
    """Keeps a node connected to NATS: opens connections, and replaces those that are lost.

    Args:
        options: Where to, and as whom.
        name: Shown by `nats server report connections`.
        clock: Tells connections the time.
        owner: Uses them.
        rng: Chooses servers and waits.
    """

    def __init__(
        self,
        options: NatsOptions,
        name: str,
        clock: Clock,
        owner: ConnectionOwner,
        rng: random.Random | None = None,
    ) -> None:
        self._options = options
        self._name = name
        self._clock = clock
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._pool = ServerPool(options.servers, rng or random.Random())  # noqa: S311 - no secret
        self._tls = TlsUse(lru_cache(options.tls_context), options.tls_first, options.prefers_tls)
        self._news = asyncio.Event()
        self._leaving: NatsConnection | None = None
        self._opened_s = 0.0
        self._stopping = False
        self._warnings = RepeatedWarnings(logger)
        self._task: asyncio.Task[None] | None = None
        self.connection: NatsConnection | None = None

    async def start(self) -> None:
        """Connect; waits for a server that is not there.

        Raises:
            NatsRefusedError: a server is there and refuses us.
        """
        self.connection = await self._connect(first=True)
        await self._owner.opened(self.connection, None)
        self._task = self._loop.create_task(self._look_after(), name=f"nats {self._name}")

    async def stop(self) -> None:
        """End the connection."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.connection is not None:
            self.connection.end("the node stops")

    @property
    def places(self) -> list[str]:
        """The servers that the user names, and those that the servers name."""
        return [address.place for address in self._pool.addresses]

    async def introductions(self, places: Iterable[str]) -> dict[str, dict[str, Any]]:
        """What servers say of themselves to anybody, by address; without those that say nothing."""
        knocks = await self.knock(places, KNOCK_TIMEOUT_S)
        return {place: each.info for place, each in knocks.items() if each.info is not None}

    async def knock(self, places: Iterable[str], timeout_s: float) -> dict[str, Knock]:
        """Have servers say what they are, by address."""
        addresses = list(filter(None, map(_address, sorted(places)[:_ASKED_MAX])))
        found = await asyncio.gather(*(self._knock(address, timeout_s) for address in addresses))
        return {each.place: knock for each, knock in zip(addresses, found, strict=True)}

    async def _knock(self, address: ServerAddress, timeout_s: float) -> Knock:
        connection = NatsConnection(self._clock)
        info = await connection.introduce(address, self._tls, timeout_s)
        return Knock(info, connection.was_taken)

    async def beside(self, old: NatsConnection, new: NatsConnection) -> tuple[list[NatsConnection], bool]:
        """Connections to every server of a cluster but one; end them.

        Args:
            old: Connection to the server that is left out.
            new: Connection to the server that comes first.

        Returns:
            The connections, and whether there is one to each server that is known to run.
        """
        assert old.address is not None, "it is open"
        assert new.address is not None, "it is open"
        places = {*self.places, new.address.place} - {old.address.place}
        is_told = of_same_cluster(old.info, new.info) and bool(new.info.get("connect_urls"))
        if not is_told or len(places) > _ASKED_MAX:
            return [], False
        found = await asyncio.gather(*(self._open_beside(place) for place in sorted(places)))
        servers = {str(old.info["server_id"]): None} | {str(each.info["server_id"]): each for each in found if each}
        first = servers.pop(str(new.info["server_id"]), None)
        rest = [each for each in servers.values() if each is not None]
        chosen = [] if first is None else [first, *(each for each in rest if of_same_cluster(new.info, each.info))]
        for each in found:
            if each and each not in chosen:
                each.end("it is not needed")
        return chosen, None not in found and first is not None

    async def _open_beside(self, place: str) -> NatsConnection | Literal[False] | None:
        """A connection to a server; False when none runs there, None when that can not be known."""
        address = next((each for each in self._pool.addresses if each.place == place), None) or _address(place)
        if address is None:
            return None
        connection = NatsConnection(self._clock)
        try:
            await connection.open(address, partial(self._introduce, address), self._tls, KNOCK_TIMEOUT_S)
        except NatsConnectionError as error:
            return False if isinstance(error.__cause__, ConnectionRefusedError) else None
        return connection

    def _introduce(self, address: ServerAddress, info: dict[str, Any]) -> bytes:
        return connect_line(self._options, self._name, address, info)

    def warn(self, text: str) -> None:
        """Log what the server says or does not say; what differs only in a quoted subject is the same."""
        line = f"NATS connection {self._name} to {self._options.shown_url}: {text}"
        self._warnings.tell(text.partition('"')[0], line, self._loop.time())

    async def _look_after(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            previous = self.connection
            if previous is not None and previous.is_open and self._leaving is not previous:
                continue
            try:
                await self._renew(previous)
            except Exception:
                logger.exception("NATS connection %s: an error of this node; connecting anew", self._name)
                self._end(self.connection, "of an error in this node")

    async def _renew(self, previous: NatsConnection | None) -> None:
        if previous is not None and previous.is_open:
            found = await self._connect_elsewhere(previous)
            if found is None:
                return
        else:
            found = await self._connect()
        self.connection, self._leaving = found, None
        standing = previous if previous is not None and previous.is_open else None
        try:
            await self._owner.opened(found, standing)
        except BaseException:
            self._end(standing, "the move to another server was broken off")
            raise
        if found.is_open:
            self._end(standing, _SHUTS_DOWN)
            logger.info("NATS connection %s is back", self._name)
        elif standing is not None and standing.is_open:
            self.connection = self._leaving = standing
            self._news.set()

    async def _connect(self, *, first: bool = False) -> NatsConnection:
        while True:
            address = self._pool.next()
            assert address is not None, "the options name a server"
            await asyncio.sleep(address.not_before - self._loop.time())
            try:
                return await self._open(address)
            except NatsConnectionError as error:
                if first and error.refused:
                    text = f"{self._options.shown_url} refuses our credentials: {error.refused}"
                    raise NatsRefusedError(text) from error
                self.warn(str(error))

    async def _connect_elsewhere(self, previous: NatsConnection) -> NatsConnection | None:
        """A connection to another server; None when none is known, or the previous connection has ended meanwhile."""
        while previous.is_open:
            address = self._pool.next(previous.address)
            if address is None:
                self.warn("the server is going to shut down, and it names no other")
                return None  # there is news when the connection ends, or the server names one
            await asyncio.sleep(address.not_before - self._loop.time())
            try:
                return await self._open(address)
            except NatsConnectionError as error:
                self.warn(str(error))
        self._news.set()
        return None

    async def _open(self, address: ServerAddress) -> NatsConnection:
        connection = NatsConnection(self._clock)
        connection.on_error = self.warn
        connection.on_info = partial(self._told, connection)
        connection.on_end = partial(self._ended, connection)
        self._owner.opening(connection)
        try:
            await connection.open(address, partial(self._introduce, address), self._tls, self._options.timeout_s)
        except NatsConnectionError:
            self._pool.failed(address, self._loop.time())
            raise
        self._pool.learn(connection.info, address)
        self._opened_s = self._loop.time()
        return connection

    def _told(self, connection: NatsConnection, info: dict[str, Any]) -> None:
        assert connection.address is not None, "it was opened"
        self._pool.learn(info, connection.address)
        if info.get("ldm"):
            self._leaving = connection
        if self._leaving is connection:
            self._news.set()
        self._owner.told(connection, info)

    def _ended(self, connection: NatsConnection) -> None:
        assert connection.address is not None, "it was opened"
        now_s = self._loop.time()
        if now_s - self._opened_s < SHORT_CONNECTION_S:
            self._pool.failed(connection.address, now_s)
        else:
            self._pool.left(connection.address, now_s)
        if not self._stopping:
            self._owner.lost(connection)
        self._news.set()

    @staticmethod
    def _end(connection: NatsConnection | None, cause: str) -> None:
        if connection is not None:
            connection.end(cause)


def _address(place: str) -> ServerAddress | None:
    """None for what a server names, and that is no address."""
    try:
        return ServerAddress.parse(place)
    except ValueError:
        return None
