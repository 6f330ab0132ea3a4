"""The node's ingest connection: its subscriptions, and what is known of the times when it was not listening.

A stream has an open gap as long as not all of its subscriptions stand: the connection is down, or the NATS server
refuses one. Every new connection subscribes to everything that is wanted; a subscription that is refused while the
connection stands is tried again from time to time.

When a connection ends, what the server held for us is lost, and nobody says since when. What we read last may have
waited for long in a buffer. So the server is asked for a PONG every second: when it comes, everything that was
published before the question has come too, and a gap begins with the last question that was answered.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from liftpy_envelope.errors import LiftError
from liftpy_server.ingest.cluster_watch import ClusterWatch, unnamed
from liftpy_server.ingest.ingest import Ingest
from liftpy_server.ingest.slow_consumer import advice_on_pending, probable_cause, small_room
from liftpy_server.ingest.stalled_servers import StalledServers
from liftpy_server.ingest.subscriptions import Subscriptions
from liftpy_server.nats.connection import LOST, SILENT
from liftpy_server.nats.knocking import nobody_listens
from liftpy_server.nats.monitoring import MonitoringError
from liftpy_server.nats.server_pool import of_same_cluster
from liftpy_server.nats.session import NatsSession
from liftpy_server.settings.limits import (
    KNOCK_TIMEOUT_S,
    MOVE_OVERLAP_S,
    RELIEF_INTERVAL_S,
    ROUTE_SILENT_S_MAX,
    STALLED_S,
    SUBSCRIBE_RETRY_S,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

    from liftpy_client.connection.nats_options import NatsOptions
    from liftpy_log.clock import Clock
    from liftpy_server.ingest.binding import Binding
    from liftpy_server.ingest.cluster_watch import LostServer
    from liftpy_server.ingest.marks import Marks
    from liftpy_server.nats.connection import NatsConnection, Question
    from liftpy_server.nats.monitoring import SlowConsumerLimits
    from liftpy_server.partition.outbox import Outbox
    from liftpy_server.partition.stream_state import StreamState

__all__ = ["IngestConnection", "SubscriptionRefusedError"]

logger = logging.getLogger(__name__)


class ServerChange(Protocol):
    """A change from one NATS server to another, while both are heard."""

    def hold(self, binding: Binding) -> Binding:
        """What takes the messages of a binding from the new server for now."""
        ...

    def subscribed(self) -> None:
        """The new server has the subscriptions: from now on no more is held than there is room for."""
        ...

    async def leave(self, wanted: Sequence[Binding], servers: Sequence[NatsConnection], *, are_all: bool) -> None:
        """Leave the old server, and let the bindings take what comes from the new one.

        Args:
            wanted: What is subscribed at both.
            servers: Connections to the new server, and to each other server of the cluster but the old one.
            are_all: Whether there is one for each.
        """
        ...


class SubscriptionRefusedError(LiftError):
    """The NATS server does not let this node subscribe to a stream's subject."""


class IngestConnection:
    """Keeps the wanted bindings subscribed, through reconnects, and records gaps.

    Args:
        options: Options of the NATS server.
        name: Name of the connection.
        clock: Tells the time of gaps.
        outbox: Outbox for acks.
        is_overloaded: Says whether nothing may be read from the socket.
        on_listening: Called with a stream when all of its subscriptions are confirmed.
        rng: Chooses servers and waits.
        marks: Marks of planned changes of leaders; None where there are none.
        ask_limits: Asks a server how long it puts up with a node that is behind; None asks nobody.
        make_change: Begins a change of servers; without it messages of the time in which both are heard come twice.

    Attributes:
        is_changing: Whether it moves from one server to another; no planned change of leaders begins meanwhile.
        before_change: Returns when no planned change of leaders is under way any more; bounded in time.
        on_route_lost: Called with the time from which messages may be missing, and the cause. It tells of partitions
            that this node does not lead any more: the next leader may listen to a server that has lost nothing.
        whole_s: Nothing that was published before is on its way still.
    """

    def __init__(
        self,
        options: NatsOptions,
        name: str,
        clock: Clock,
        outbox: Outbox,
        is_overloaded: Callable[[], bool],
        on_listening: Callable[[StreamState], None],
        rng: random.Random | None = None,
        *,
        marks: Marks | None = None,
        ask_limits: Callable[[NatsConnection], Awaitable[SlowConsumerLimits]] | None = None,
        make_change: Callable[[Subscriptions, Subscriptions], ServerChange] | None = None,
    ) -> None:
        self._clock = clock
        self._outbox = outbox
        self._is_overloaded = is_overloaded
        self._on_listening = on_listening
        self._loop = asyncio.get_running_loop()
        self._session = NatsSession(options, name, clock, self, rng)
        self._marks = marks
        self._ask_limits = ask_limits
        self._make_change = make_change
        self._wanted: dict[Binding, None] = {} if marks is None else {marks: None}
        self._opening: Subscriptions | None = None
        self._standing: dict[NatsConnection, Subscriptions] = {}  # two while the node moves from server to server
        self._current: Subscriptions | None = None
        self._subscribing = asyncio.Lock()  # so that no binding is ever subscribed twice
        self._looking: asyncio.TimerHandle | None = None
        self._cluster = ClusterWatch()
        self._stalled = StalledServers()
        self._left_silent: set[str] = set()  # of the connections before
        self._unchecked: dict[Binding, float] = {}  # since when they are subscribed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.whole_s = clock.elapsed()
        self.is_changing = False
        self.before_change: Callable[[], Awaitable[None]] = partial(asyncio.sleep, 0)
        self.on_route_lost: Callable[[float, str], None] = lambda _since_s, _cause: None
        self._unbound = 0
        self._connections = 0

    @property
    def is_connected(self) -> bool:
        """Whether messages arrive now."""
        return self._current is not None

    @property
    def hearing(self) -> Subscriptions | None:
        """The subscriptions that bring messages now, as long as it is the same: nothing was missed between."""
        return self._current

    @property
    def misses(self) -> str | None:
        """Why messages may be missing that others hear, though this node is connected; None while none are."""
        return self._cluster.cause or self._stalled.cause

    @property
    def reconnects(self) -> int:
        """How often a connection took the place of another."""
        return max(0, self._connections - 1)

    @property
    def unbound_messages(self) -> int:
        """Messages of subscriptions that were ended in the meantime."""
        return self._unbound + sum(each.ingest.unbound for each in self._standing.values())

    async def start(self, bindings: Iterable[Binding]) -> None:
        """Connect and subscribe; waits for a server that is not there.

        Raises:
            NatsRefusedError: the server refuses us.
        """
        self._wanted.update(dict.fromkeys(bindings))
        await self._session.start()
        self._tasks["retrying"] = asyncio.create_task(self._retry())

    async def stop(self) -> None:
        """Close the connection, with everything read so far passed on."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._session.stop()
        if self._looking is not None:
            self._looking.cancel()
        for subscriptions in self._standing.values():
            subscriptions.ingest.reset()
        self._current = None

    async def bind(self, bindings: Sequence[Binding]) -> None:
        """Subscribe; returns when the server has confirmed it, or at once while there is no connection.

        What could not be subscribed stays wanted, and its stream has a gap until it is; see `refusal`.
        """
        async with self._subscribing:
            self._wanted.update(dict.fromkeys(bindings))
            current = self._current
            if current is None:
                for binding in bindings:
                    binding.open_gap(self._clock.elapsed(), "there was no connection to NATS to subscribe on")
                return
            since_s = self._clock.elapsed()
            if await current.subscribe(bindings):
                self._settle(current, bindings)
                self._check(bindings, since_s)

    async def unbind(self, bindings: Sequence[Binding]) -> None:
        """Unsubscribe; returns when no more messages will come."""
        async with self._subscribing:
            for binding in bindings:
                self._wanted.pop(binding, None)
            if self._current is not None:
                await self._current.unsubscribe(bindings)

    def refusal(self, bindings: Iterable[Binding]) -> SubscriptionRefusedError | None:
        """Why the server does not let us have one of these subscriptions; None when it does."""
        refused = {} if self._current is None else self._current.refused
        text = next((refused[binding] for binding in bindings if binding in refused), None)
        return None if text is None else SubscriptionRefusedError(text)

    async def review(self, stream: StreamState) -> None:
        """Close the gaps of the stream's partitions of which nothing is missing any more."""
        async with self._subscribing:
            if self._current is not None:
                self._settle(self._current, [binding for binding in self._wanted if binding.stream is stream])

    async def _retry(self) -> None:
        while True:
            await asyncio.sleep(SUBSCRIBE_RETRY_S)
            async with self._subscribing:
                current = self._current
                refused = [] if current is None else list(current.refused)
                if current is not None and refused:
                    await current.unsubscribe(refused)
                    since_s = self._clock.elapsed()
                    if await current.subscribe(refused):
                        self._settle(current, refused)
                        self._check(refused, since_s)

    def _settle(self, current: Subscriptions, bindings: Iterable[Binding]) -> None:
        """The server has confirmed what it takes: close the gaps of partitions that miss nothing any more."""
        if current is not self._current:
            return  # it was lost in this moment
        refused = {partition: text for each, text in current.refused.items() for partition in each.partitions.values()}
        for binding in bindings:
            for partition in binding.partitions.values():
                if not partition.is_leading:
                    continue  # its leader tells of its gaps
                cause = refused.get(partition) or self._cluster.cause or self._stalled.cause_of(binding)
                if cause != partition.gaps.cause:
                    partition.gaps.close()
                if cause is not None:
                    now_s = self._clock.elapsed()
                    since_s = min(now_s, self.whole_s) if partition in refused else now_s
                    partition.gaps.open(since_s, cause)
        refused_streams = {binding.stream for binding in current.refused}
        for stream in {binding.stream for binding in bindings} - refused_streams:
            self._on_listening(stream)

    def opening(self, connection: NatsConnection) -> None:
        """See `ConnectionOwner`."""
        ingest = Ingest(self._clock, self._outbox, connection.take_lines, self._loop.call_later, connection.end)
        ingest.marks = self._marks
        subscriptions = self._opening = Subscriptions(connection, ingest)
        connection.receive = partial(self._receive, ingest.receive)
        connection.on_error = partial(self._note_error, subscriptions)
        connection.on_answer = partial(self._note_answer, subscriptions)

    async def opened(self, connection: NatsConnection, previous: NatsConnection | None) -> None:
        """See `ConnectionOwner`. When there is a previous one it is left as soon as the new one stands."""
        new = self._opening
        assert new is not None, "it was announced"
        assert new.connection is connection, "one is opened after the other"
        self.is_changing = previous in self._standing
        try:
            if self.is_changing:
                await self.before_change()
            await self._listen(new, None if previous is None else self._standing.get(previous))
        finally:
            self.is_changing = False

    async def _listen(self, new: Subscriptions, before: Subscriptions | None) -> None:
        """Subscribe to everything on a new connection, and leave the one before it."""
        connection = new.connection
        async with self._subscribing:
            if before is None:
                self._standing[connection] = self._current = new
            wanted, since_s = list(self._wanted), self._clock.elapsed()
            change = None if before is None or self._make_change is None else self._make_change(before, new)
            if not await new.subscribe(wanted, None if change is None else change.hold):
                return
            if before is not None:
                await self._leave(before, wanted, new, change)
            self._connections += 1
            self._note_servers(connection, connection.info)
            self._settle(new, wanted)
            self._ask_others(connection)
            self._check(wanted, since_s)
            if self._ask_limits is not None:
                self._start(f"asking for limits, connection {self._connections}", self._advise(connection))

    async def _advise(self, connection: NatsConnection) -> None:
        """Warn of a server that may drop this node as a slow consumer."""
        assert self._ask_limits is not None, "there is somebody to ask"
        limits = None
        try:
            limits = await self._ask_limits(connection)
        except MonitoringError as error:
            logger.info("max_pending and write_deadline of the NATS server are not known here: %s", error)
        if connection in self._standing:
            self._standing[connection].room = small_room(connection.info, limits)
        advice = advice_on_pending(connection.info, limits)
        if advice is not None:
            self._session.warn(advice)

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[name] = asyncio.create_task(work, name=name)
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def _leave(
        self, before: Subscriptions, wanted: Sequence[Binding], new: Subscriptions, change: ServerChange | None
    ) -> None:
        """Take what is still on its way between the servers, and then everything from the new one, in its order."""
        if change is None:
            new.connection.pause()
            await asyncio.sleep(MOVE_OVERLAP_S)
            await before.unsubscribe(wanted)
        else:
            change.subscribed()
            servers, are_all = await self._session.beside(before.connection, new.connection)
            try:
                await change.leave(wanted, servers, are_all=are_all)
            finally:
                for server in servers:
                    server.end("the marks were heard")
        self._standing[new.connection] = self._current = new
        self._pause_or_go_on()
        if not new.connection.is_open:
            self.lost(new.connection)

    def told(self, connection: NatsConnection, info: dict[str, Any]) -> None:
        """See `ConnectionOwner`."""
        if self._current is None or connection is not self._current.connection:
            return
        self._note_servers(connection, info)
        identifying = self._tasks.get("asking who servers are")
        if self._cluster.unidentified and (identifying is None or identifying.done()):
            self._tasks["asking who servers are"] = asyncio.create_task(self._identify())

    def _note_servers(self, connection: NatsConnection, info: dict[str, Any]) -> None:
        assert connection.address is not None, "it is open"
        if self._cluster.told(info, connection.address.place, self.whole_s, self._clock.elapsed()):
            self._route_is_lost(self.whole_s)
        self._look_on()

    async def _identify(self) -> None:
        """Ask servers that have a route who they are, so that they are known again when they come back."""
        asked: set[str] = set()
        while places := self._cluster.unidentified - asked:
            losses = self._cluster.losses
            self._cluster.introduced(await self._session.introductions(places), losses)
            asked |= places

    def _route_is_lost(self, since_s: float) -> None:
        cause = str(self._cluster.cause)
        self._miss(since_s, cause)
        self.on_route_lost(since_s, cause)

    def _look_on(self) -> None:
        looking = self._tasks.get("looking for servers")
        if self._cluster.cause is not None and (looking is None or looking.done()):
            self._tasks["looking for servers"] = asyncio.create_task(self._look_for_servers())

    def _ask_others(self, connection: NatsConnection) -> None:
        """Ask other servers of the cluster whom ours does not name."""
        if not connection.info.get("connect_urls"):
            return  # it names nobody, so that says nothing
        name = f"asking other servers, connection {self._connections}"
        self._start(name, self._find_unnamed(connection, self.whole_s))

    async def _find_unnamed(self, connection: NatsConnection, since_s: float) -> None:
        """What they have to tell counts though the connection has ended since: then its time lies in a gap."""
        own, address = connection.info, connection.address
        assert address is not None, "it was opened"
        ask, losses = self._session.introductions, self._cluster.losses
        others = await ask({*self._session.places} - {address.place})
        self._cluster.introduced(others, losses)
        found: dict[str, set[str]] = {}
        for place, info in (await ask(unnamed(own, address.place, others.values()))).items():
            if of_same_cluster(own, info):
                found.setdefault(str(info.get("server_id")), set()).add(place)
        for places in found.values():
            if self._cluster.found(places, since_s, self._clock.elapsed()):
                self._miss(since_s, str(self._cluster.cause))
        self._look_on()

    def _check(self, bindings: Iterable[Binding], since_s: float) -> None:
        """See whether any server stood still when these were subscribed."""
        self._unchecked.update(dict.fromkeys(bindings, since_s))
        checking = self._tasks.get("checking servers")
        if self._current is not None and (self._others or self._left_silent) and (checking is None or checking.done()):
            self._tasks["checking servers"] = asyncio.create_task(self._check_servers())

    @property
    def _others(self) -> set[str]:
        """Addresses of the servers that ours has routes to, as it says."""
        assert self._current is not None, "there is a connection"
        connection = self._current.connection
        assert connection.address is not None, "it is open"
        return {url for url in connection.info.get("connect_urls") or () if isinstance(url, str)} - {
            connection.address.place
        }

    async def _check_servers(self) -> None:
        while self._unchecked or self._stalled.cause is not None:
            unchecked, self._unchecked = self._unchecked, {}
            left, self._left_silent = self._left_silent, set()
            try:
                await self._find_stalled(unchecked, left)
                unchecked, left = {}, set()
                await self._look_after_stalled()
            except Exception:
                logger.exception("NATS servers could not be checked now; they are checked again in %g s", STALLED_S)
                self._unchecked = unchecked | self._unchecked
                self._left_silent |= left
                await asyncio.sleep(STALLED_S)

    async def _find_stalled(self, unchecked: dict[Binding, float], left: set[str]) -> None:
        if not unchecked or self._current is None:
            self._left_silent |= left
            return
        for place, knock in (await self._session.knock(self._others | left, STALLED_S)).items():
            is_silent = knock.info is None and (knock.was_taken or place in left)
            if is_silent and not await nobody_listens([place]):
                self._stalled.found(place, unchecked, self._clock.elapsed())
                for binding, since_s in unchecked.items():
                    binding.open_gap(since_s, str(self._stalled.cause_of(binding)))

    async def _look_after_stalled(self) -> None:
        """Close the gaps that servers cause that stood still, when they know who listens."""
        over: list[Binding] = []
        for place, knock in (await self._session.knock(self._stalled.silent, STALLED_S)).items():
            if knock.info is not None:
                self._stalled.spoke(place, self._clock.elapsed())
            elif not knock.was_taken and await nobody_listens([place]):
                over += self._stalled.is_gone(place)
        over += self._stalled.over(self._clock.elapsed())
        if over:
            async with self._subscribing:
                if self._current is not None:
                    streams = {binding.stream for binding in over}  # which may have other subscriptions by now
                    self._settle(self._current, [binding for binding in self._wanted if binding.stream in streams])
        if self._stalled.cause is not None:
            await asyncio.sleep(STALLED_S)

    async def _look_for_servers(self) -> None:
        """Until every server has a route to ours again, or is known to have ended."""
        while True:
            while not self._cluster.is_whole(self._clock.elapsed()):
                try:
                    for server in self._cluster.unclear:
                        await self._look_for(server)
                except Exception:
                    logger.exception("NATS servers could not be looked for now; they are in %g s", KNOCK_TIMEOUT_S)
                await asyncio.sleep(KNOCK_TIMEOUT_S)
            async with self._subscribing:
                if self._cluster.is_whole(self._clock.elapsed()):
                    if self._current is not None:
                        self._settle(self._current, self._wanted)
                    return

    async def _look_for(self, server: LostServer) -> None:
        if server.back_s is None and await nobody_listens(server.places):
            self._cluster.is_gone(server)
        elif server.fell_silent is None:
            server.fell_silent = server.back_s is None or await self._is_same(server)
            if server.fell_silent:
                self._route_is_lost(server.whole_s - ROUTE_SILENT_S_MAX)

    async def _is_same(self, server: LostServer) -> bool:
        """Whether a server that is back may be the one that was lost, and not another, nor started again."""
        knocks = await self._session.knock(server.named, KNOCK_TIMEOUT_S)
        ids = {place: str(each.info.get("server_id")) for place, each in knocks.items() if each.info is not None}
        if ids:
            return any(server.is_same(place, server_id) for place, server_id in ids.items())
        return not await nobody_listens(server.named)

    def lost(self, connection: NatsConnection) -> None:
        """See `ConnectionOwner`."""
        subscriptions = self._standing.pop(connection, None)
        if subscriptions is None:
            return
        unfinished_bytes = subscriptions.ingest.unfinished_bytes
        subscriptions.ingest.reset()
        self._unbound += subscriptions.ingest.unbound
        if subscriptions is self._current:
            cause = connection.cause
            if cause == SILENT and connection.address is not None:
                self._left_silent.add(connection.address.place)
            if cause == LOST:
                behind_s = self._clock.elapsed() - self.whole_s
                cause = probable_cause(behind_s, unfinished_bytes, subscriptions.room) or LOST
            self._went_deaf(cause)

    def _went_deaf(self, cause: str) -> None:
        self._current = None
        self._miss(self.whole_s, cause)

    def _miss(self, since_s: float, cause: str) -> None:
        for binding in self._wanted:
            binding.open_gap(since_s, cause)

    def _note_answer(self, subscriptions: Subscriptions, question: Question) -> None:
        if subscriptions is self._current:
            self.whole_s = question.asked_s
            for binding in subscriptions.confirmed:
                binding.heard(question.asked_s)

    def _note_error(self, subscriptions: Subscriptions, text: str) -> None:
        refused = subscriptions.note_error(text)
        if refused is None:
            self._session.warn(text)
        elif subscriptions is self._current:
            for binding in refused:
                binding.open_gap(self.whole_s, subscriptions.refused[binding])

    def _receive(self, receive: Callable[[bytes], None], data: bytes) -> None:
        receive(data)
        self._pause_or_go_on()

    def _pause_or_go_on(self) -> None:
        """Pause, and look again soon: acks that the server takes, or that nobody owes any more, tell nobody of it."""
        if not self._is_overloaded():
            for connection in self._standing:
                connection.resume()
            return
        for connection in self._standing:
            connection.pause()
        if self._looking is None:
            self._looking = self._loop.call_later(RELIEF_INTERVAL_S, self._look_again)

    def _look_again(self) -> None:
        self._looking = None
        self._pause_or_go_on()

    def relieved(self) -> None:
        """Go on reading, when the reason to pause is gone."""
        if not self._is_overloaded():
            for connection in self._standing:
                connection.resume()
