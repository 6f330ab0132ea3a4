"""The model of nats-server that the simulation runs on says what a real one says: the same talks, the same answers."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal

import pytest

from simulation.nats_server import NatsServers, NatsSettings
from simulation.nats_talk import CONNECT, DENIED, MAX_PAYLOAD, TALKS, normal
from simulation.nats_wire import Wires
from simulation.scheduler import MS, S, Scheduler
from support.cluster import eventually, make_nats
from support.ports import free_ports

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


async def version_of(server):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    info = json.loads((await reader.readline())[5:])
    writer.close()
    return info["version"]


@pytest.mark.parametrize("name", TALKS)
async def test_the_model_answers_as_a_server_does(name, nats):
    settings = {"version": await version_of(nats), "max_payload": MAX_PAYLOAD, "denied": DENIED}
    real, model = Real([nats.port]), Model(["n1"], **settings)
    try:
        for number, (who, said) in enumerate(TALKS[name]):
            for world in (real, model):
                await world.say(who, said)
                await world.settle(who)
            assert what_was_heard(model) == what_was_heard(real), f"after step {number}: {said!r}"
    finally:
        real.close()


CLUSTER = (
    'server_name: "%s"\n'
    'cluster { name: C, listen: "127.0.0.1:%d", routes: ["nats://127.0.0.1:%d", "nats://127.0.0.1:%d"] }\n'
    'lame_duck_grace_period: "1s"\nlame_duck_duration: "30s"\n'
)


async def infos(world, run, name, count):
    """What a client was told since it connected: how many addresses, and whether its server is about to end."""

    def told():
        lines = [json.loads(line[5:]) for line in what_was_heard(world)[name] if line.startswith(b"INFO ")]
        return [(info["addresses"], info.get("ldm", False), info.get("connect_info", False)) for info in lines]

    await run(lambda: len(told()) >= count)
    return told()


async def test_the_model_tells_of_other_servers_as_a_server_does(tmp_path):
    """One is killed, comes back, and is told to end: what is heard at the other, and by its own clients."""
    routes = free_ports(2)
    servers = [
        make_nats(tmp_path / name, config=CLUSTER % (name, routes[number], *routes))
        for number, name in enumerate(("n1", "n2"))
    ]
    real = Real([server.port for server in servers])
    model = Model(["n1", "n2"], version=await version_of(servers[0]), lame_duck_us=S)
    first = 2 if model.servers.all["n1"].is_of_2_12 else 1  # what is said to who has just come
    lame = model.servers.all["n2"].lame_duck

    async def in_model(is_so):
        for _ in range(200):
            model.run(100 * MS)
            if is_so():
                return
        raise AssertionError(f"not so in the model: {model.heard}")

    acts = [
        (first + 1, servers[1].kill, lambda: model.servers.kill("n2")),
        (first + 2, servers[1].start, lambda: model.servers.start("n2")),
        (first + 3, lambda: os.kill(servers[1].pid, signal.SIGUSR2), lame),
    ]
    try:
        await connected_to_both(servers)
        for world in (real, model):
            await world.say("a", CONNECT + b"PING\r\n", 0)
        assert await infos(model, in_model, "a", first) == await infos(real, eventually, "a", first)
        for count, really, in_the_model in acts:
            if really == acts[-1][1]:
                for world in (real, model):
                    await world.say("b", CONNECT + b"PING\r\n", 1)
                assert await infos(model, in_model, "b", first) == await infos(real, eventually, "b", first)
            really()
            in_the_model()
            assert await infos(model, in_model, "a", count) == await infos(real, eventually, "a", count)
        assert await infos(model, in_model, "b", first + 1) == await infos(real, eventually, "b", first + 1)
        for run, world in ((eventually, real), (in_model, model)):
            await run(lambda world=world: world.heard["b"].endswith(GONE))
        assert what_was_heard(model) == what_was_heard(real)
    finally:
        real.close()
        for server in servers:
            server.stop()


async def connected_to_both(servers):
    """Wait until there is a route."""

    async def told():
        reader, writer = await asyncio.open_connection("127.0.0.1", servers[0].port)
        info = json.loads((await reader.readline())[5:])
        writer.close()
        return len(info.get("connect_urls", ())) == 2

    await eventually(told)
