"""The client while leaders change: callers see no error, nothing is lost, nothing comes twice or out of order."""

from __future__ import annotations

import asyncio
import signal

import pytest

import liftpy
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.pull import Api, FetchPartition, FetchRequest
from support.cluster import eventually, quick_options
from support.cluster_kit import create, leader_of, running_cluster, settled
from support.raw_pull import RawPull, pull_token

BEFORE = 600
COUNT = 2_000


async def take_offsets(consumer, count):
    """(offset, value) of so many messages."""
    found = []
    async for message in consumer:
        found.append((message.offset, message.value))
        if len(found) == count:
            return found
    return found


async def publish_steadily(lift, publish, trouble):
    """Publish `COUNT` messages to `s`, about a thousand a second; `trouble` comes to the leader between them. The acks.

    The leader is asked for when the first message is acked: one that has been replaced since the stream was created
    would make no trouble.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    tasks = []
    for number in range(COUNT):
        await asyncio.sleep(max(0.0, began_s + number / 1_000 - loop.time()))
        if number == BEFORE - 100:
            await asyncio.wait_for(tasks[0], 30)
            leader = await leader_of(lift, "s")
        if number == BEFORE:
            trouble(leader)
        tasks.append(asyncio.ensure_future(publish(b"%d" % number)))
    return await asyncio.wait_for(asyncio.gather(*tasks), 60)


@pytest.mark.parametrize("how", ["one by one", "in batches"])
async def test_a_leader_is_killed_under_publishers_and_consumers(tmp_path, how):
    async with running_cluster(tmp_path) as kit, kit.connect() as lift, kit.connect() as reader:
        await create(lift, "s", "s.>")
        await settled(lift, ["s"])
        reading = asyncio.ensure_future(take_offsets(reader.consume("s"), COUNT))

        async with lift.publisher() as publisher:

            async def publish(value):
                if how == "one by one":
                    return await lift.publish("s.a", value, message_id=value.decode(), timeout_s=10)
                return await (await publisher.publish("s.a", value))

            acks = await publish_steadily(lift, publish, lambda leader: kit.nodes[leader].signal(signal.SIGKILL))
        found = await asyncio.wait_for(reading, 40)
        assert max(ack.epoch for ack in acks) > min(ack.epoch for ack in acks)
        assert [offset for offset, _ in found] == list(range(COUNT))
        assert dict(found) == {ack.offset: b"%d" % number for number, ack in enumerate(acks)}


@pytest.mark.slow
async def test_a_leader_that_hangs_is_left(tmp_path):
    async with running_cluster(tmp_path) as kit, kit.connect() as lift, kit.connect() as reader:
        await create(lift, "s", "s.>")
        await settled(lift, ["s"])
        reading = asyncio.ensure_future(take_offsets(reader.consume("s"), COUNT))
        stopped = []

        def stop(leader):
            stopped.append(kit.nodes[leader])
            stopped[0].signal(signal.SIGSTOP)

        try:
            async with lift.publisher() as publisher:

                async def publish(value):
                    return await (await publisher.publish("s.a", value))

                acks = await publish_steadily(lift, publish, stop)
            found = await asyncio.wait_for(reading, 40)
        finally:
            for node in stopped:
                node.signal(signal.SIGCONT)
        assert dict(found) == {ack.offset: b"%d" % number for number, ack in enumerate(acks)}


async def test_while_there_is_no_leader_a_consumer_asks_seldom_and_a_publisher_says_why(tmp_path):
    async with running_cluster(tmp_path) as kit, kit.connect() as lift:
        await create(lift, "s", "s.>", partitions=12)
        await settled(lift, ["s"])
        asked = 0

        async def count(_message):
            nonlocal asked
            asked += 1

        consumer = lift.consume("s", options=quick_options())
        reading = asyncio.ensure_future(take_offsets(consumer, 2))
        await lift.publish("s.a", b"before")
        await lift.nats.subscribe("LIFT.API.METADATA", cb=count)
        down = ["node-1", "node-2"]
        kit.kill(*down)
        await asyncio.sleep(3)
        assert 0 < asked <= 45
        with pytest.raises((liftpy.PublishTimeoutError, liftpy.PublishRefusedError)) as raised:
            await lift.publish("s.b", b"lost", timeout_s=0.5, retries=1)
        assert (
            "in sync" in str(raised.value) or "no node listens" in str(raised.value) or "not ack" in str(raised.value)
        )
        await asyncio.to_thread(kit.start_nodes, down)
        await lift.publish("s.a", b"after", timeout_s=20)
        values = {value for _, value in await asyncio.wait_for(reading, 40)}
        assert b"before" in values


async def test_replicas_that_follow_are_read(tmp_path):
    async with running_cluster(tmp_path) as kit, kit.connect() as lift:
        await create(lift, "s", "s.>")
        await settled(lift, ["s"])
        leader = await leader_of(lift, "s")
        follower = next(name for name in kit.nodes if name != leader)
        for number in range(20):
            await lift.publish("s.a", b"%d" % number)
        place = await lift._session.cluster.stream("s", fresh=True)
        port = lift._session.cluster.node(follower).port
        fetch = FetchRequest(1 << 20, 10_000, (FetchPartition(place.key(0), 0),), any_replica=True)
        async with await RawPull.open(port) as raw:
            await raw.hello(await pull_token(lift, follower))
            answer = await raw.request(Api.FETCH, fetch._replace(any_replica=False))
            assert answer.result[0][0][1] == ErrorCode.NOT_LEADER
            offsets = []
            answer = await raw.request(Api.FETCH, fetch)
            while answer.result[0] and answer.result[0][0][1] == ErrorCode.NONE:
                offsets += answer.offsets
                if len(offsets) == 20:
                    await lift.publish("s.a", b"20")
                if len(offsets) > 20:
                    break
                answer = await raw.request(Api.FETCH, FetchRequest(1 << 20, 10_000))
            assert offsets == list(range(21))
        nearest = quick_options(read_from="nearest")
        consumers = [take_offsets(lift.consume("s", options=nearest), 22) for _ in range(6)]
        reading = asyncio.gather(*consumers)
        await asyncio.sleep(0.3)
        kit.kill(follower)
        await lift.publish("s.a", b"21")
        for found in await asyncio.wait_for(reading, 40):
            assert found == [(number, b"%d" % number) for number in range(22)]


async def test_consumers_that_start_while_a_leader_is_chosen_wait_for_it(tmp_path):
    async with running_cluster(tmp_path) as kit, kit.connect() as lift:
        await create(lift, "s", "s.>")
        await settled(lift, ["s"])
        for number in range(10):
            await lift.publish("s.a", b"%d" % number)
        leader = await leader_of(lift, "s")
        kit.kill(leader)
        found = await asyncio.wait_for(take_offsets(lift.consume("s", stop="latest"), 99), 40)
        assert found == [(number, b"%d" % number) for number in range(10)]
        await eventually(lambda: leader not in kit.running)
