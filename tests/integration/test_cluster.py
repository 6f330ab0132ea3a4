"""Three nodes in processes of their own: what a cluster is for, seen from outside."""

from __future__ import annotations

import asyncio
import time

import pytest

import liftpy
from liftpy_server.gaps.partition_gaps import LED_ELSEWHERE
from support.bad_days import told
from support.cluster import eventually
from support.cluster_kit import create, leader_of, metadata_leader, partitions, running_cluster, settled
from support.reading import gaps, read_all, take, values
from support.replica_files import check_replicas

NODES = {"node-1", "node-2", "node-3"}
HEARD_S = 10


@pytest.fixture
async def kit(tmp_path):
    async with running_cluster(tmp_path) as kit:
        yield kit


@pytest.fixture
async def lift(kit):
    async with kit.connect() as lift:
        yield lift


async def published(lift, subject, count, start=0):
    """Acks of numbered messages with ids; each is sent until it has one."""

    async def one(number):
        async def attempt():
            try:
                return await lift.publish(subject, b"%d" % number, message_id=f"{subject}-{number}")
            except (liftpy.PublishRefusedError, liftpy.PublishTimeoutError, liftpy.NodeUnavailableError):
                return None

        return await eventually(attempt, 40.0)

    return [await one(number) for number in range(start, start + count)]


async def test_a_leader_dies_and_nothing_is_lost(kit, lift):
    await create(lift, "s", "s")
    before = await published(lift, "s", 50)
    leader = await leader_of(lift, "s")
    await asyncio.to_thread(kit.kill, leader)
    killed_ns = time.time_ns()
    after = await published(lift, "s", 50, start=50)
    assert [ack.offset for ack in (*before, *after)] == list(range(100))
    assert after[0].epoch > before[0].epoch
    assert await values(lift, "s") == [b"%d" % number for number in range(100)]
    assert await leader_of(lift, "s") != leader
    gap = next(gap for gap in await gaps(lift, "s") if gap["cause"] == LED_ELSEWHERE)  # nobody listened meanwhile
    heard_ns = killed_ns - HEARD_S * 10**9  # the others heard the old leader within that time
    assert heard_ns < gap["since_ns"] < killed_ns + 10**9
    assert gap["until_ns"] > killed_ns - 10**9
    again = await lift.publish("s", b"0", message_id="s-0")  # the new leader knows what the old one stored
    assert (again.offset, again.duplicate) == (0, True)


async def test_all_nodes_die_and_nothing_is_lost(kit, lift):
    await create(lift, "s", "s.*", partitions=6)
    acks = [await published(lift, f"s.{number}", 5) for number in range(12)]
    await asyncio.to_thread(kit.kill, *NODES)
    await asyncio.to_thread(kit.start_nodes)
    await settled(lift, ["s"])
    stored = {(message.partition, message.offset): message.value for message in await read_all(lift, "s")}
    assert len(stored) == 60
    for group in acks:
        for number, ack in enumerate(group):
            assert stored[ack.partition, ack.offset] == b"%d" % number


async def test_a_consumer_goes_on_at_the_new_leader(kit, lift):
    await create(lift, "s", "s")
    reading = asyncio.ensure_future(take(lift.consume("s"), 100))
    await published(lift, "s", 50)
    await asyncio.to_thread(kit.kill, await leader_of(lift, "s"))
    await published(lift, "s", 50, start=50)
    assert [message.value for message in await reading] == [b"%d" % number for number in range(100)]


async def test_a_node_that_comes_back_catches_up(kit, lift):
    await create(lift, "s", "s.*", partitions=3)
    victim = await metadata_leader(lift)
    await asyncio.to_thread(kit.kill, victim)
    for number in range(6):
        await published(lift, f"s.{number}", 20)
    await asyncio.to_thread(kit.start_nodes)
    await settled(lift, ["s"])
    await asyncio.to_thread(kit.stop_nodes)
    assert list(check_replicas({name: node.data for name, node in kit.nodes.items()}, "s", 3)) == []


async def test_without_a_majority_a_message_is_neither_acknowledged_nor_refused(tmp_path):
    # A leader counts on the others for that long after it heard them last.
    quick = {"replica_lag_max_s": 2.0}
    async with running_cluster(tmp_path, cluster=quick) as kit, kit.connect(timeout_s=1.0) as lift:
        await create(lift, "s", "s")
        await published(lift, "s", 1)
        leader = await leader_of(lift, "s")
        others = sorted(NODES - {leader})
        await asyncio.to_thread(kit.kill, *others)

        await told(kit.nodes[leader], "fewer replicas than min_isr are in sync")
        for _ in range(3):  # its successor, if there were one, might store it
            with pytest.raises((liftpy.PublishTimeoutError, liftpy.NodeUnavailableError)):
                await lift.publish("s", b"unknown", timeout_s=1.0, retries=0)
        await asyncio.to_thread(kit.start_nodes, others[:1])
        await published(lift, "s", 1, start=1)


async def test_any_node_answers(kit, lift):
    """Whoever is asked, a stream can be made, changed, read and deleted."""
    for number in range(6):
        await create(lift, f"s{number}", f"s.{number}")
    for number in range(6):
        await lift.update_stream(f"s{number}", retention_messages=100)
        (partition,) = await partitions(lift, f"s{number}")
        assert set(partition.replicas) == NODES
        assert (await lift.publish(f"s.{number}", b"x")).offset == 0

    async def leaders():
        return {await leader_of(lift, f"s{number}") for number in range(6)}

    # A node that stood still for a moment gave its leaderships up, and gets them back.
    await eventually(lambda: _is(leaders(), NODES), 40.0)
    for number in range(6):
        await lift.delete_stream(f"s{number}")
    assert [stream.name async for stream in lift.streams()] == []


async def _is(found, wanted):
    return await found == wanted


async def test_a_node_is_cut_off_and_comes_back(tmp_path):
    async with running_cluster(tmp_path, is_proxied=True) as kit, kit.connect() as lift:
        await create(lift, "s", "s")
        await published(lift, "s", 10)
        old = await leader_of(lift, "s")
        kit.cut_off(old)
        acks = await published(lift, "s", 10, start=10)
        assert acks[-1].epoch > 1
        kit.links.mend()
        await settled(lift, ["s"])
        assert await values(lift, "s") == [b"%d" % number for number in range(20)]
