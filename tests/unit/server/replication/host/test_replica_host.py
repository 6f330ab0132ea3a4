"""A node's host of replicas: one replica's trouble is not the others', and nothing it keeps grows without bound."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from liftpy_envelope.follow import FollowFetch
from liftpy_envelope.pull import PartitionKey
from liftpy_server.replication.core.effects import ProposeLeader
from liftpy_server.replication.core.view import ReplicationTimes
from liftpy_server.replication.host.local import LocalReplica
from liftpy_server.replication.host.replica_host import ReplicaHost
from support.server_kit import Kit, SetClock

KEYS = ["first", "second"]
REQUEST = FollowFetch(
    key=PartitionKey(bytes(16), 0),
    incarnation=1,
    leader_epoch=1,
    offset=0,
    last_epoch=-1,
    durable_end=0,
    high_watermark=0,
)


class Ticked:
    """A replica that counts its ticks, and may fail at them."""

    def __init__(self, key: str, *, fails: bool = False) -> None:
        self.key = key
        self.ticks = 0
        self.fails = fails
        self.partition = SimpleNamespace(stream=SimpleNamespace(name="orders"), number=0)

    def tick(self, _paused_s: float) -> None:
        self.ticks += 1
        if self.fails:
            raise ZeroDivisionError("a bug")


@pytest.fixture
def host():
    return ReplicaHost("a", ReplicationTimes(), SetClock(), None, lambda: 0.0, lambda _: None, lambda: None)


async def test_a_replica_that_fails_does_not_cost_the_others_their_ticks(host, caplog):
    replicas = [Ticked("first", fails=True), Ticked("second")]
    for replica in replicas:
        host.enter(replica)
    host.start()
    async with asyncio.timeout(30):
        while not replicas[1].ticks:
            await asyncio.sleep(0.01)
    await host.stop()
    assert "replica first" in caplog.text


def test_warnings_that_differ_in_details_only_are_one(host, caplog):
    replica = Ticked("first")
    host.enter(replica)
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            host.warn(replica, f"can not follow: batch {number} does not fit")
        host.warn(replica, "too few")
    assert [record.message.rpartition(" ")[2] for record in caplog.records] == ["fit", "few"]


async def test_who_has_stopped_follows_nobody_any_more(host):
    await host.stop()
    before = asyncio.all_tasks()
    host.fetch(Ticked("first"), "b", REQUEST)
    assert asyncio.all_tasks() == before


def test_a_closed_replica_is_not_kept_by_an_answer_that_comes_late(host, tmp_path):
    kit = Kit(tmp_path, replicas=3)
    replica = LocalReplica(kit.partition, host)
    host.enter(replica)
    kit.close()
    replica.close()
    replica.durable(1)
    replica.tick(0.0)
    assert replica not in host._active


async def test_all_are_ticked_now_and_then_a_few_at_a_time(host):
    replicas = [Ticked(f"replica {number}") for number in range(100)]
    for replica in replicas:
        host.enter(replica)
    await host._tick(0.0, 0.0)
    assert {replica.ticks for replica in replicas} == {1}
    most, before, now_s = 0, 100, 0.0
    for _ in range(13):  # of 0.2 s: a bit more than a quarter of the longest lag
        now_s += 0.2
        await host._tick(now_s, 0.0)
        after = sum(replica.ticks for replica in replicas)
        most, before = max(most, after - before), after
    assert {replica.ticks for replica in replicas} == {2}
    assert most <= 10


async def test_after_a_pause_all_are_told_of_it_at_once(host):
    replicas = [Ticked(f"replica {number}") for number in range(100)]
    for replica in replicas:
        host.enter(replica)
    await host._tick(0.0, 0.0)
    await host._tick(1.0, 0.8)
    assert {replica.ticks for replica in replicas} == {2}


async def test_a_replica_that_was_closed_is_not_ticked(host):
    replicas = [Ticked(f"replica {number}") for number in range(10)]
    for replica in replicas:
        host.enter(replica)
    await host._tick(0.0, 0.0)
    host.leave(replicas[0])
    for number in range(1, 15):
        await host._tick(number * 0.2, 0.0)
    assert replicas[0].ticks == 1
    assert all(replica.ticks >= 2 for replica in replicas[1:])


class Slow(Ticked):
    """A replica whose ticks take long, by the host's clock."""

    def __init__(self, key, clock, tick_s):
        super().__init__(key)
        self.clock, self.tick_s = clock, tick_s
        self.log = SimpleNamespace(failure=None)
        self.pauses: list[float] = []

    def tick(self, paused_s):
        super().tick(paused_s)
        self.pauses.append(paused_s)
        self.clock.advance(self.tick_s)


async def test_the_time_that_ticks_take_is_no_pause():
    clock = SetClock()
    host = ReplicaHost(
        "a", ReplicationTimes(leader_timeout_s=0.05), clock, None, lambda: 0.0, lambda _: None, lambda: None
    )
    replica = Slow("first", clock, tick_s=1.0)
    host.enter(replica)
    host.start()
    async with asyncio.timeout(30):
        while replica.ticks < 3:
            host.stepped(replica, is_quiet=False)
            await asyncio.sleep(0.001)
    await host.stop()
    assert set(replica.pauses) == {0.0}


class Proposed:
    """What would go to the metadata."""

    def __init__(self):
        self.effects = []

    def add(self, replica, effect):
        self.effects.append((replica.key, effect))


class Led:
    """A replica of this node that leads, with `b` and `c` in sync."""

    def __init__(self, key, *, is_internal=False):
        self.key = key
        config = SimpleNamespace(is_internal=is_internal)
        self.partition = SimpleNamespace(stream=SimpleNamespace(name="orders", config=config), number=0)
        view = SimpleNamespace(isr=("a", "b", "c"), leader_epoch=4, version=9)
        self.core = SimpleNamespace(leader=SimpleNamespace(view=view), is_quiet=True)

    def tick(self, _paused_s):
        pass


@pytest.fixture
def deaf():
    """A host that leads two partitions, one of them of the system, and does not hear NATS."""
    clock, proposed = SetClock(), Proposed()
    host = ReplicaHost("a", ReplicationTimes(), clock, proposed, lambda: 0.0, lambda _: None, lambda: None)
    host.clock, host.proposed = clock, proposed
    host.hears = lambda: False
    for replica in (Led("orders"), Led("__groups", is_internal=True)):
        host.enter(replica)
    return host


async def pass_by(host, seconds, **heard):
    """Time passes, while these nodes say whether they hear NATS."""
    for _ in range(int(seconds * 5)):
        host.clock.advance(0.2)
        for node, hears in heard.items():
            host.heard(node, hears)
        await host._tick(host.now_s(), 0.0)


async def test_a_leader_that_is_deaf_lets_one_lead_that_hears(deaf):
    await pass_by(deaf, 0.8, b=False, c=True)
    assert deaf.proposed.effects == []
    await pass_by(deaf, 0.6, b=False, c=True)
    assert deaf.proposed.effects == [("orders", ProposeLeader(leader="c", leader_epoch=4, version=9))]


async def test_where_nobody_hears_nobody_is_proposed(deaf):
    await pass_by(deaf, 5, b=False, c=False)
    deaf.heard("b", True)
    deaf.clock.advance(5)
    await deaf._tick(deaf.now_s(), 0.0)
    assert deaf.proposed.effects == [], "b has not been heard for long"


async def test_a_moment_without_nats_is_no_reason(deaf):
    for _ in range(5):
        deaf.hears = lambda: False
        await pass_by(deaf, 0.8, b=True)
        deaf.hears = lambda: True
        await pass_by(deaf, 0.2, b=True)
    assert deaf.proposed.effects == []


async def test_it_is_proposed_again_while_it_leads(deaf):
    await pass_by(deaf, 3.2, b=True)
    assert len(deaf.proposed.effects) in {2, 3}


def test_the_lead_is_not_given_back_to_a_node_that_is_deaf(deaf):
    back = ProposeLeader(leader="b", leader_epoch=4, version=9)
    (replica, _) = deaf.replicas.values()
    deaf.propose(replica, back)
    deaf.heard("b", False)
    deaf.propose(replica, back)
    assert deaf.proposed.effects == []
    deaf.heard("b", True)
    deaf.propose(replica, back)
    assert deaf.proposed.effects == [("orders", back)]
