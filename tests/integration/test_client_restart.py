"""The node is killed and the NATS server goes away under a client: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio

import pytest

import liftpy
from support.cluster import NatsServer, NodeProcess, eventually, make_nats, quick_options
from support.reading import read_all, take


async def test_a_kill_while_consuming(lift, node):
    await lift.create_stream("s", subject="s", partitions=1)
    consuming = asyncio.ensure_future(take(lift.consume("s", options=quick_options()), 600, 60))
    published = 0
    for _ in range(2):
        for _ in range(200):
            await lift.publish("s", b"%d" % published)
            published += 1
        await asyncio.to_thread(node.restart)
    for _ in range(200):
        await lift.publish("s", b"%d" % published)
        published += 1
    messages = await consuming
    assert [message.offset for message in messages] == list(range(600))
    assert [int(message.value) for message in messages] == list(range(600))


async def test_a_kill_while_publishing_single_messages(lift, node):
    await lift.create_stream("s", subject="s")
    acked = {}

    async def publish(who):
        for number in range(150):
            value = f"{who}-{number}"
            ack = await lift.publish("s", value.encode(), message_id=value, timeout_s=1, retries=90)
            acked[value] = ack.offset

    working = asyncio.gather(*(publish(who) for who in range(4)))
    await eventually(lambda: len(acked) > 100)
    await asyncio.to_thread(node.restart)  # which takes its time on a busy machine
    await asyncio.wait_for(working, 120)
    assert {message.value.decode(): message.offset for message in await read_all(lift, "s")} == acked


async def test_a_kill_under_a_batching_publisher(lift, node):
    await lift.create_stream("s", subject="s.>", partitions=2)
    async with lift.publisher(linger_s=0.001, ack_timeout_s=0.5) as publisher:
        acks = []
        for number in range(4_000):
            acks.append(await publisher.publish(f"s.{number % 3}", b"%d" % number))
            if number % 50 == 0:
                await asyncio.sleep(0.002)
            if number == 2_000:
                await asyncio.to_thread(node.kill)
                restarting = asyncio.ensure_future(asyncio.to_thread(node.start))
        await restarting
        places = {(ack.partition, ack.offset): number for number, ack in enumerate([await ack for ack in acks])}
    found = {(message.partition, message.offset): int(message.value) for message in await read_all(lift, "s")}
    assert found == places
    assert len(found) == 4_000


async def test_nats_goes_away_under_publisher_and_consumer(tmp_path):
    first = make_nats(tmp_path / "nats")
    node = NodeProcess(first.url, tmp_path / "node").start()
    server: NatsServer = first
    try:
        async with liftpy.connect(first.url, timeout_s=2) as lift:
            await lift.create_stream("s", subject="s")
            consuming = asyncio.ensure_future(take(lift.consume("s", options=quick_options()), 400, 60))
            async with lift.publisher(ack_timeout_s=0.5) as publisher:
                for number in range(200):
                    await publisher.publish("s", b"%d" % number)
                await publisher.flush()
                first.kill()
                await eventually(lambda: not lift.nats.is_connected)
                for number in range(200, 400):
                    await publisher.publish("s", b"%d" % number)
                with pytest.raises(liftpy.NodeUnavailableError, match="connection to NATS is lost"):
                    await lift.node_info()
                server = make_nats(tmp_path / "nats", port=first.port)
            assert [int(message.value) for message in await consuming] == list(range(400))
    finally:
        node.stop()
        server.stop()


async def test_no_node_for_too_long(lift, node):
    await lift.create_stream("s", subject="s")
    await lift.publish("s", b"x")
    node.stop()
    with pytest.raises(liftpy.PublishTimeoutError, match="no node listens to this subject"):
        await lift.publish("s", b"y", timeout_s=0.3, retries=1)
    async with lift.publisher(delivery_timeout_s=0.5) as publisher:
        pending = await publisher.publish("s", b"z")
        with pytest.raises(liftpy.PublishTimeoutError, match="not acknowledged within"):
            await publisher.flush()
        with pytest.raises(liftpy.PublishTimeoutError):
            await pending
    with pytest.raises(liftpy.NodeUnavailableError):
        await take(lift.consume("s"))


async def test_a_connection_is_closed_without_an_error_while_nats_is_away(tmp_path):
    server = make_nats(tmp_path / "nats")
    async with liftpy.connect(server.url) as lift:
        server.kill()
        await eventually(lambda: not lift.nats.is_connected, 10)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lift.stream_info("orders"), 0.2)  # it stays unsent
    assert lift.nats.is_closed
