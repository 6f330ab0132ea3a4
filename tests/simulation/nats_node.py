"""A node whose messages and acks come and go over real connections to a model of nats-server."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from liftpy_client.connection.nats_options import NatsOptions
from liftpy_server.ack_connection import AckConnection
from liftpy_server.ingest.connection import IngestConnection
from liftpy_server.limits import UNSUBSCRIBE_TIMEOUT_S
from simulation.nats_wire import NodeTransport
from simulation.shell_node import EPOCH_NS, ShellNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.nats_wire import Socket
    from simulation.nats_world import NatsWorld

__all__ = ["NatsNode"]

_DIAL_S = 5.0


class NatsNode(ShellNode):
    """See the module; what `Node` does about NATS is done here.

    Attributes:
        is_overloaded: it reads no messages: its disk, or its followers, are behind.
    """

    def __init__(self, world: NatsWorld, node_id: str) -> None:
        super().__init__(world, node_id)
        self.nats_world = world
        self.ingest: IngestConnection | None = None
        self.acks: AckConnection | None = None
        self.is_overloaded = False
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
        names = list(self.nats_world.nats.all)
        first = list(self.nats_world.nodes).index(self.node_id) % len(names)
        options = NatsOptions(url=",".join(f"nats://{name}:4222" for name in names[first:] + names[:first]))
        self.acks = AckConnection(options, f"{self.node_id} acks", self.clock, self._dice())
        await self.acks.start()
        self.ingest = IngestConnection(
            *(options, f"{self.node_id} ingest", self.clock, self.outbox),
            *(lambda: self.is_overloaded, self.streams.confirmed, self._dice()),
        )
        ingest, host = self.ingest, self.cluster.host
        host.answered_question_s, host.hears = lambda: ingest.whole_s, lambda: ingest.is_connected
        await ingest.start(self.streams.connect(ingest))
        self._is_started = True

    def _dice(self) -> Random:
        return Random(self.world.rng.random())

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
        self.ingest = self.acks = None
        self._is_started = False
        for socket in self._sockets:
            socket.close(is_reset=self.world.rng.random() < 0.5)
        self._sockets.clear()

    def gaps(self, number: int) -> list[tuple[int, int | None, str]]:
        """As this node lists them: (since, until, cause) of a partition's."""
        told = self._metadata.state.streams["s"].gaps.get(number, ())
        return [(_us(gap.since_ns), None if gap.until_ns is None else _us(gap.until_ns), gap.cause) for gap in told]


def _us(wall_ns: int) -> int:
    return (wall_ns - EPOCH_NS) // 1_000
