"""The model of nats-server that the simulation runs on says what a real one says: the same talks, the same answers."""

from __future__ import annotations

import asyncio
import random

import pytest

from simulation.nats_server import NatsServers, NatsSettings
from simulation.nats_talk import DENIED, MAX_PAYLOAD, TALKS, normal
from simulation.nats_wire import Wires
from simulation.scheduler import MS, S, Scheduler
from support.cluster import eventually, make_nats

GONE = b"(closed)"


class Real:
    """Clients of real servers."""

    def __init__(self, ports):
        self._ports = ports
        self._streams = {}
        self._reading = []
        self.heard = {}

    async def say(self, name, data, place=0):
        if name not in self._streams:
            self._streams[name] = await asyncio.open_connection("127.0.0.1", self._ports[place])
            self.heard[name] = b""
            self._reading.append(asyncio.ensure_future(self._read(name)))
        self._streams[name][1].write(data)

    async def _read(self, name):
        reader = self._streams[name][0]
        try:
            while data := await reader.read(65_536):
                self.heard[name] += data
        except ConnectionError:
            pass
        self.heard[name] += GONE

    async def settle(self, first):
        """Until everybody's question is answered, one after the other."""
        for name in sorted(self._streams, key=lambda name: name != first):
            writer = self._streams[name][1]
            if self.heard[name].endswith(GONE):
                continue
            count = self.heard[name].count(b"PONG\r\n")
            writer.write(b"PING\r\n")
            await eventually(
                lambda name=name, count=count: self.heard[name].count(b"PONG\r\n") > count or GONE in self.heard[name]
            )

    def close(self):
        for (_, writer), reading in zip(self._streams.values(), self._reading, strict=True):
            writer.close()
            reading.cancel()


class Model:
    """Clients of the model."""

    def __init__(self, names, **settings):
        self._scheduler = Scheduler()
        rng = random.Random(1)
        self.servers = NatsServers(self._scheduler, rng, Wires(self._scheduler, rng), names, NatsSettings(**settings))
        for name in names:
            self.servers.start(name)
        self._names = names
        self._sockets = {}
        self.heard = {}
        self.run(2 * S)

    def run(self, us):
        self._scheduler.run_until(self._scheduler.now_us + us)

    async def say(self, name, data, place=0):
        if name not in self._sockets:
            socket = self._sockets[name] = self.servers.connect(name, self._names[place], lambda act, *args: act(*args))
            self.heard[name] = b""
            socket.on_data = lambda data, name=name: self._hear(name, data)
            socket.on_end = lambda name=name: self._hear(name, GONE)
        self._sockets[name].send(data)

    def _hear(self, name, data):
        self.heard[name] += data

    async def settle(self, first):
        for name in sorted(self._sockets, key=lambda name: name != first):
            socket = self._sockets[name]
            self.run(100 * MS)
            if not self.heard[name].endswith(GONE):
                socket.send(b"PING\r\n")
            self.run(100 * MS)


def what_was_heard(world):
    return {
        name: [*normal(heard.removesuffix(GONE)), *([GONE] if heard.endswith(GONE) else [])]
        for name, heard in world.heard.items()
    }


CONFIG = (
    "max_payload: %d\n"
    "authorization { users = [ {user: u, password: p, permissions: { subscribe: { deny: [%s] } } } ] }\n"
    "no_auth_user: u\n"
)


def configured(subject):
    """A subject as a configuration may name it."""
    return (
        '"' + "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\x{byte:02x}" for byte in subject) + '"'
    )


@pytest.fixture(scope="module")
def nats(tmp_path_factory):
    config = CONFIG % (MAX_PAYLOAD, ", ".join(map(configured, DENIED)))
    server = make_nats(tmp_path_factory.mktemp("nats"), config=config)
    yield server
    server.stop()


@pytest.mark.parametrize("name", TALKS)
async def test_the_model_answers_as_a_server_does(name, nats):
    real, model = Real([nats.port]), Model(["n1"], max_payload=MAX_PAYLOAD, denied=DENIED)
    try:
        for number, (who, said) in enumerate(TALKS[name]):
            for world in (real, model):
                await world.say(who, said)
                await world.settle(who)
            assert what_was_heard(model) == what_was_heard(real), f"after step {number}: {said!r}"
    finally:
        real.close()
