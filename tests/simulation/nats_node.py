"""A node whose messages and acks come and go over real connections to a model of nats-server."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import TYPE_CHECKING, Any

from liftpy_client.connection.nats_options import NatsOptions
from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_server.handover.handover import Handover
from liftpy_server.handover.server_change import ServerChange
from liftpy_server.ingest.connection import IngestConnection
from liftpy_server.ingest.marks import Marks
from liftpy_server.nats.ack_connection import AckConnection
from liftpy_server.requests.errors import AdminError, NodeSilentError
from liftpy_server.settings.limits import UNSUBSCRIBE_TIMEOUT_S
from simulation.nats_wire import NodeTransport
from simulation.shell_node import EPOCH_NS, ShellNode, key_of
from support.raw_nats import pub

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.gaps.gap import Gap
    from liftpy_server.ingest.subscriptions import Subscriptions
    from simulation.nats_wire import Socket
    from simulation.nats_world import NatsWorld

__all__ = ["NatsNode"]

_DIAL_S = 5.0


class NatsNode(ShellNode):
    """See the module; what `Node` does about NATS is done here.

    Attributes:
        is_overloaded: it reads no messages: its disk, or its followers, are behind.
        fails_append: the next messages that come to be appended meet an error.
        fails_held: the next that were held do.
    """

    def __init__(self, world: NatsWorld, node_id: str) -> None:
        super().__init__(world, node_id)
        self.nats_world = world
        self.ingest: IngestConnection | None = None
        self.acks: AckConnection | None = None
        self.handover: Handover | None = None
        self._requests: AckConnection | None = None
        self.is_overloaded = self.fails_append = self.fails_held = False
        self._is_started = False
        self._sockets: list[Socket] = []

    @property
    def hears(self) -> bool:
        """Whether it is connected to NATS."""
        return self.ingest is not None and self.ingest.is_connected

    @property
    def servers(self) -> list[str]:
        """Those that it is connected to."""
        return sorted({socket.far for socket in self._sockets if not socket.is_closed})

    def start(self) -> None:
        super().start()
        self.loop.dial = self._dial

    async def _dial(
        self, make: Callable[[], asyncio.Protocol], host: str, _port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        world = self.nats_world
        await asyncio.sleep(world.wires.latency_us() / 1e6)
        if frozenset((self.node_id, host)) in world.wires.silent:
            await asyncio.sleep(_DIAL_S)
            raise TimeoutError("nobody answers")
        socket = world.nats.connect(self.node_id, host, self.entrance())
        if socket is None:
            raise ConnectionRefusedError(f"nobody listens at {host}")
        self._sockets = [each for each in self._sockets if not each.is_closed] + [socket]
        protocol = make()
        transport = NodeTransport(self.loop, socket, protocol)
        protocol.connection_made(transport)
        return transport, protocol

    async def _listen(self) -> None:
        assert self.streams is not None
        assert self.cluster is not None
        first = list(self.nats_world.nodes).index(self.node_id)
        options = self._options(first)
        self._requests = AckConnection(self._options(first + 1), f"{self.node_id} requests", self.clock, self._dice())
        await self._requests.start()
        self.acks = AckConnection(options, f"{self.node_id} acks", self.clock, self._dice())
        await self.acks.start()
        marks = Marks()
        self.ingest = IngestConnection(
            *(options, f"{self.node_id} ingest", self.clock, self.outbox),
            *(lambda: self.is_overloaded, self.streams.confirmed, self._dice()),
            marks=marks,
            make_change=self._change_servers(marks),
        )
        ingest, host = self.ingest, self.cluster.host
        host.answered_question_s, host.hears = lambda: ingest.whole_s, lambda: ingest.is_connected
        requests: Any = self
        self.handover = Handover(
            *(self.node_id, self.streams, self._metadata, ingest, marks),
            *(lambda: requests, self.clock, self.outbox.flush),
        )
        await ingest.start(self.streams.connect(ingest))
        if not self.nats_world.nats.lag_us:  # planned changes of leaders promise less where routes are slow
            host.hand_over = self.handover.want
        self._is_started = True

    def _change_servers(self, marks: Marks) -> Callable[[Subscriptions, Subscriptions], ServerChange]:
        def make_change(before: Subscriptions, new: Subscriptions) -> ServerChange:
            self.nats_world.change_began()
            return ServerChange(before, new, marks, self.clock, self.outbox.flush)

        return make_change

    def _options(self, first: int) -> NatsOptions:
        """Those of a connection that tries this server first."""
        names = list(self.nats_world.nats.all)
        first %= len(names)
        return NatsOptions(url=",".join(f"nats://{name}:4222" for name in names[first:] + names[:first]))

    # -- requests between nodes, and marks, as `NodeRequests` has them

    async def publish(self, subject: str, data: bytes) -> None:
        """Returns when the server has it."""
        connection = None if self._requests is None else self._requests._open
        if connection is None or not connection.write(pub(subject.encode(), data)) or not await connection.ask():
            raise NodeSilentError(f"nothing can be published to {subject}")

    async def ask(self, node_id: str, endpoint: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """By a network that loses some requests, and some answers."""
        other = self.nats_world.nodes[node_id]
        answered: asyncio.Future[str] = self.loop.create_future()
        enter, once = self.entrance(), iter((True,))

        def settle(told: str) -> None:
            if not answered.done():
                answered.set_result(told)

        def arrive() -> None:
            if next(once, False):
                other.enter(other.run, other.was_asked, endpoint, json.dumps(body), self.node_id, enter, settle)

        self.world.network.send(self.node_id, node_id, arrive)
        try:
            async with asyncio.timeout(timeout_s):
                told: dict[str, Any] = json.loads(await answered)
        except TimeoutError:
            raise NodeSilentError(f"node {node_id!r} did not answer within {timeout_s:.1f} s") from None
        if "error" in told:
            raise AdminError(ErrorCode.NOT_AVAILABLE, told["error"])
        return told

    def was_asked(self, endpoint: str, body: str, asker: str, enter: Callable[..., None], settle: Any) -> None:
        """By another node."""
        if self.handover is not None:
            self.loop.create_task(self._answer(endpoint, body, asker, enter, settle))

    async def _answer(self, endpoint: str, body: str, asker: str, enter: Callable[..., None], settle: Any) -> None:
        assert self.handover is not None
        try:
            told = await self.handover.endpoints()[endpoint](json.loads(body))
        except LiftError as error:
            told = {"error": str(error)}
        self.world.network.send(self.node_id, asker, enter, settle, json.dumps(told))

    def hand_over(self, number: int, leader: str, leader_epoch: int, version: int) -> None:
        """Somebody wants another node to lead."""
        replica = None if self.cluster is None else self.cluster.host.replicas.get(key_of(number))
        if replica is not None and self.handover is not None:
            self.handover.want(replica, leader, leader_epoch, version)

    def _dice(self) -> Random:
        return Random(self.world.rng.random())

    async def _stop(self) -> None:
        assert self.handover is not None
        await self.handover.leave()
        await super()._stop()

    async def _listen_no_more(self) -> None:
        await super()._listen_no_more()
        assert self.streams is not None
        assert self.ingest is not None
        try:
            async with asyncio.timeout(UNSUBSCRIBE_TIMEOUT_S):
                await self.streams.unsubscribe()
        except TimeoutError:
            self.world.seen["unsubscribing took too long"] += 1
        await self.ingest.stop()
        await self._gaps.stop()

    def _send_acks(self, frames: bytes) -> bool:
        return self.acks is not None and self.acks.write(frames)

    def _committed(self) -> None:
        super()._committed()
        if self.ingest is not None:
            self.ingest.relieved()

    def stop(self) -> None:
        """A node that has not come up yet has nothing to stop."""
        if self._is_started:
            super().stop()
        else:
            self._gone(self.run)

    def kill(self, *, power: bool = False) -> None:
        super().kill(power=power)
        self.ingest = self.acks = self._requests = self.handover = None
        self._is_started = False
        for socket in self._sockets:
            socket.close(is_reset=self.world.rng.random() < 0.5)
        self._sockets.clear()

    def gaps(self, number: int) -> list[tuple[int, int | None, str]]:
        """As this node lists them: (since, until, cause) of a partition's, by the clock of nobody."""
        told = self._metadata.state.streams["s"].gaps.get(number, ())
        return [self._by_no_clock(gap) for gap in told]

    def _by_no_clock(self, gap: Gap) -> tuple[int, int | None, str]:
        earliest_ns, latest_ns = self.nats_world.offsets_ns_of(gap)
        until_us = None if gap.until_ns is None else _us(gap.until_ns - earliest_ns)
        return _us(gap.since_ns - latest_ns), until_us, gap.cause


def _us(wall_ns: int) -> int:
    return (wall_ns - EPOCH_NS) // 1_000
