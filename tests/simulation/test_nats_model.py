"""The model of nats-server by itself: what is slow, what is cut, and what goes with it.

That it says what a real one says is shown in `tests/integration/test_nats_model.py`.
"""

from __future__ import annotations

import json
import random
import re

import pytest

from simulation.nats_server import NatsServers, NatsSettings
from simulation.nats_talk import CONNECT
from simulation.nats_wire import Wires
from simulation.scheduler import MS, S, Scheduler


class Talker:
    """A client that says what it is told, and keeps what it hears."""

    def __init__(self, servers, name, place):
        self.heard = b""
        self.is_ended = False
        self.socket = servers.connect(name, place, lambda act, *args: act(*args))
        self.socket.on_data = self._hear
        self.socket.on_end = self._end

    def _hear(self, data):
        self.heard += data

    def _end(self):
        self.is_ended = True

    def say(self, data):
        assert self.socket.send(data) == len(data)

    @property
    def addresses(self):
        """Those of which it was told last."""
        infos = re.findall(rb"INFO ([^\r]*)\r\n", self.heard)
        return json.loads(infos[-1])["connect_urls"]


class World:
    def __init__(self, *names, **settings):
        self.scheduler = Scheduler()
        rng = random.Random(1)
        self.wires = Wires(self.scheduler, rng)
        self.servers = NatsServers(self.scheduler, rng, self.wires, list(names), NatsSettings(**settings))
        for name in names:
            self.servers.start(name)
        self.run(2 * S)

    def run(self, us=100 * MS):
        self.scheduler.run_until(self.scheduler.now_us + us)

    def talker(self, place="n1", said=b""):
        talker = Talker(self.servers, f"client {place}", place)
        talker.say(CONNECT + said + b"PING\r\n")
        self.run()
        return talker


def test_a_pong_waits_behind_the_messages_before_it():
    world = World("n1")
    slow, quick = world.talker(said=b"SUB s 1\r\n"), world.talker()
    slow.socket.pause()
    for _ in range(20):
        quick.say(b"PUB s 10000\r\n" + bytes(10_000) + b"\r\n")
        world.run()
    slow.say(b"PING\r\n")
    world.run()
    before = slow.heard.count(b"PONG")
    slow.socket.resume()
    world.run()
    assert slow.heard.count(b"MSG s 1") == 20
    assert slow.heard.endswith(b"PONG\r\n")
    assert slow.heard.count(b"PONG") == before + 1


def test_who_does_not_read_is_cut_off_when_too_much_is_pending():
    world = World("n1", max_pending=100_000)
    slow, quick = world.talker(said=b"SUB s 1\r\n"), world.talker()
    slow.socket.pause()
    for _ in range(20):
        quick.say(b"PUB s 10000\r\n" + bytes(10_000) + b"\r\n")
        world.run()
    assert world.servers.slow_consumers == ["max_pending"]
    slow.socket.resume()
    world.run()
    assert slow.is_ended
    assert slow.heard.count(b"MSG s 1") < 10  # what the kernels held
    assert b"-ERR" not in slow.heard


@pytest.mark.parametrize("is_reading", [True, False])
def test_who_takes_too_long_to_read_is_cut_off(is_reading):
    world = World("n1", write_deadline_us=2 * S)
    slow, quick = world.talker(said=b"SUB s 1\r\n"), world.talker()
    slow.socket.pause()
    for _ in range(10):
        quick.say(b"PUB s 10000\r\n" + bytes(10_000) + b"\r\n")
        world.run()
    if is_reading:
        slow.socket.resume()
    world.run(2 * S)
    assert world.servers.slow_consumers == ([] if is_reading else ["write_deadline"])


def test_messages_reach_who_listens_at_another_server():
    world = World("n1", "n2")
    near, far = world.talker("n1", b"SUB s 1\r\n"), world.talker("n2")
    far.say(b"PUB s 1\r\n1\r\n")
    world.run()
    assert b"MSG s 1 1\r\n1\r\n" in near.heard
    near.say(b"UNSUB 1\r\n")
    world.run()
    far.say(b"PUB s r 1\r\n2\r\n")
    world.run()
    assert near.heard.count(b"MSG") == 1


def test_a_route_that_is_cut_is_noticed_after_a_while_and_comes_back():
    world = World("n1", "n2", route_stale_us=1 * S)
    near, far = world.talker("n1", b"SUB s 1\r\n"), world.talker("n2")
    assert near.addresses == ["n1:4222", "n2:4222"]
    world.servers.cut_route(frozenset(("n1", "n2")))
    far.say(b"PUB s 1\r\n1\r\n")
    world.run(1 * S)
    assert near.addresses == ["n1:4222"]
    assert b"MSG" not in near.heard
    world.servers.heal_route(frozenset(("n1", "n2")))
    world.run(4 * S)
    assert near.addresses == ["n1:4222", "n2:4222"]
    far.say(b"PUB s 1\r\n2\r\n")
    world.run()
    assert b"MSG s 1 1\r\n2\r\n" in near.heard
    assert near.heard.count(b"MSG") == 1


def test_what_waits_on_a_route_that_is_cut_for_a_moment_arrives():
    world = World("n1", "n2", route_stale_us=100 * S)
    near, far = world.talker("n1", b"SUB s 1\r\n"), world.talker("n2")
    world.servers.cut_route(frozenset(("n1", "n2")))
    far.say(b"PUB s 1\r\n1\r\n")
    world.run()
    assert b"MSG" not in near.heard
    world.servers.heal_route(frozenset(("n1", "n2")))
    world.run()
    assert near.heard.endswith(b"MSG s 1 1\r\n1\r\n")


def test_one_of_a_group_gets_a_message_and_one_that_is_near_before_one_that_is_far():
    world = World("n1", "n2")
    here = [world.talker("n1", b"SUB s g 1\r\n") for _ in range(2)]
    there = world.talker("n2", b"SUB s g 1\r\n")
    publisher = world.talker("n1")
    for number in range(20):
        publisher.say(b"PUB s 2\r\n%02d\r\n" % number)
    world.run()
    counts = [talker.heard.count(b"MSG") for talker in here]
    assert sum(counts) == 20
    assert min(counts) > 0
    assert b"MSG" not in there.heard
    for talker in here:
        talker.socket.close()
    world.run()
    publisher.say(b"PUB s 2\r\n20\r\n")
    world.run()
    assert there.heard.count(b"MSG") == 1


def test_a_server_that_dies_takes_its_connections_with_it_and_others_hear_of_it():
    world = World("n1", "n2")
    near, far = world.talker("n1"), world.talker("n2")
    world.servers.kill("n1")
    world.run()
    assert near.is_ended
    assert far.addresses == ["n2:4222"]
    assert world.servers.connect("client", "n1", lambda act, *args: act(*args)) is None
    world.servers.start("n1")
    world.run(2 * S)
    assert sorted(far.addresses) == ["n1:4222", "n2:4222"]


def test_a_lame_duck_says_so_and_ends():
    world = World("n1", "n2", lame_duck_us=5 * S)
    near, far = world.talker("n1"), world.talker("n2")
    world.servers.all["n1"].lame_duck()
    world.run()
    assert b'"ldm":true' in near.heard
    assert near.addresses == far.addresses == ["n2:4222"]
    assert not near.is_ended
    world.run(5 * S)
    assert near.is_ended


def test_who_is_silent_is_asked_and_then_cut_off():
    world = World("n1", ping_interval_us=1 * S)
    talker = world.talker()
    world.run(5 * S)
    assert talker.heard.count(b"PING\r\n") == 2
    assert talker.heard.endswith(b"-ERR 'Stale Connection'\r\n")
    assert talker.is_ended


def test_nothing_passes_a_link_that_is_silent_until_it_is_over():
    world = World("n1")
    talker = world.talker()
    pair = frozenset(("client n1", "n1"))
    world.wires.silent.add(pair)
    talker.say(b"PING\r\n")
    world.run()
    assert talker.heard.count(b"PONG") == 1
    world.wires.heal({pair})
    world.run()
    assert talker.heard.count(b"PONG") == 2
