"""Every disk is lost, and a cluster comes back from its bucket with all that had reached it."""

from __future__ import annotations

import asyncio
import shutil
from uuid import uuid4

import pytest

import liftpy
from liftpy_bucket.manifest.catalog import CatalogFile
from liftpy_client.errors import AdminError, LogDivergedError, OffsetLostError, StreamGoneError
from liftpy_server.tier.jobs.restores.restoring import Bucket
from support.cluster import NodeProcess, eventually, quick_options
from support.s3_servers import moto_server

PREFIX = "restore"
COUNT = 120


@pytest.fixture
def bucket():
    with moto_server() as server:
        yield server


@pytest.fixture
def start(bucket, nats_server, tmp_path):
    """Starts a node with an empty disk and the bucket; the node before is killed, and its disk is gone."""
    nodes = []

    def begin(*arguments, **tier):
        if nodes:
            nodes[-1].kill()
            shutil.rmtree(nodes[-1].data)
        settings = {"url": bucket.url(PREFIX), "endpoint": bucket.endpoint, "upload_age_s": 0.2} | tier
        lines = [f"{name} = {value!r}" for name, value in settings.items()]
        toml = "\n".join(["[tier]", *lines]).replace("'", '"')
        home = tmp_path / f"node{len(nodes)}"
        environment = bucket.environment | {"AWS_EC2_METADATA_DISABLED": "true"}
        nodes.append(NodeProcess(nats_server.url, home, *arguments, toml=toml, environment=environment).start())
        return nodes[-1]

    yield begin
    for node in nodes:
        node.kill()


async def read(lift, stream):
    """Everything of a stream, by partition and offset."""
    found = [
        (message.partition, message.offset, message)
        async for message in lift.consume(stream, stop="latest", options=quick_options())
    ]
    return sorted(found, key=lambda row: row[:2])


def plan_of(bucket):
    """What the bucket holds now."""
    store = bucket.store(PREFIX)
    loaded = CatalogFile(store, new_id=lambda: uuid4().hex).load()
    return None if loaded is None else Bucket(store, new_id=lambda: uuid4().hex).plan(loaded.catalog)


async def tiered(lift, bucket, *streams):
    """Wait until the bucket has all of these streams."""
    ends = {}
    for stream in streams:
        info = await lift.stream_info(stream)
        ends |= {(stream, part.partition): part.high_watermark for part in info.partitions}

    def is_there():
        plan = plan_of(bucket)
        if plan is None:
            return False
        found = {(each.stream.name, part.partition): part.end for each in plan.streams for part in each.partitions}
        return all(found.get(place) == end for place, end in ends.items())

    await eventually(is_there, 40, f"the bucket does not get {ends}")


async def publish(lift, count=COUNT, tag="v"):
    for number in range(count):
        value = None if number % 10 == 9 else f"{tag}{number}".encode()
        headers = {"number": str(number), "empty": ""} if number % 3 else None
        await lift.publish(f"orders.{number % 4}", value, key=b"k%d" % (number % 7), headers=headers)


async def test_what_was_in_the_bucket_comes_back(start, bucket, nats_server):
    start()
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream("orders", subject="orders.*", partitions=2, compression="zstd")
        await lift.create_stream("flights", subject="flights.>")
        await publish(lift)
        await lift.publish("flights.x", b"1")
        await tiered(lift, bucket, "orders", "flights")
        before = {name: await read(lift, name) for name in ("orders", "flights")}
        created = {name: (await lift.stream_info(name)).created for name in before}
    assert len(before["orders"]) == COUNT
    start()
    async with liftpy.connect(nats_server.url) as lift:
        plan = await lift.restore_plan()
        assert (plan.records, [stream.name for stream in plan.missing]) == (COUNT + 1, ["flights", "orders"])
        outcomes = await lift.restore(plan)
        assert [(each.name, each.restored, each.problem) for each in outcomes] == [
            ("flights", True, ""),
            ("orders", True, ""),
        ]
        assert await lift.verify_restore(plan) == []
        assert {name: await read(lift, name) for name in before} == before
        assert {name: (await lift.stream_info(name)).created for name in before} == created
        assert (await lift.stream_info("orders")).config.compression == "zstd"
        ack = await lift.publish("flights.y", b"2")
        assert ack.offset == 1
        assert [message.value for _, _, message in await read(lift, "flights")] == [b"1", b"2"]
        await tiered(lift, bucket, "flights")
        assert await lift.restore() == []


async def handle_all(lift, count):
    """Make an output of each record, as a group that has committed nothing."""
    options = liftpy.GroupOptions(commit_interval_s=None)
    async with lift.consume("orders", group="g", options=quick_options(), group_options=options) as reader:
        for _ in range(count):
            message = await reader.next(20.0)
            async with reader.atomically(message) as outputs:
                outputs.publish("made.of", message.value)


async def test_outputs_of_before_are_not_stored_again(start, bucket, nats_server):
    """The partition remembers what its groups made, and the bucket with it."""
    start()
    async with liftpy.connect(nats_server.url) as lift, asyncio.timeout(100):
        for name, subject in (("orders", "orders.*"), ("made", "made.>")):
            await lift.create_stream(name, subject=subject)
        await publish(lift, 15)
        await handle_all(lift, 10)
        await tiered(lift, bucket, "orders", "made")
        await handle_all(lift, 15)
        await lift.publish("made.plain", b"last")
        await tiered(lift, bucket, "made")
    start()
    async with liftpy.connect(nats_server.url) as lift, asyncio.timeout(100):
        await lift.restore()
        await publish(lift, 2, "new")
        await handle_all(lift, 17)
        values = [message.value for _, _, message in await read(lift, "made")]
        before = [None if number % 10 == 9 else b"v%d" % number for number in range(15)]
        assert values == [*before, b"last", b"new0", b"new1"]


async def test_who_had_read_beyond_the_recovery_point_is_told(start, bucket, nats_server):
    start()
    async with liftpy.connect(nats_server.url) as lift, asyncio.timeout(100):
        await lift.create_stream("orders", subject="orders.*")
        await publish(lift, 20)
        await tiered(lift, bucket, "orders")
        await lift.update_stream("orders", tier=False)  # what comes now does not reach the bucket
        await publish(lift, 5, "lost")
        async with lift.consume("orders", options=quick_options()) as consumer:
            messages = aiter(consumer)
            assert [(await anext(messages)).offset for _ in range(25)] == list(range(25))
            start()
            with pytest.raises(StreamGoneError):  # of the cluster that is empty still
                await anext(messages)
        await lift.restore()
        with pytest.raises(OffsetLostError) as caught:
            await anext(aiter(lift.consume("orders", start=25, options=quick_options())))
        assert (caught.value.offset, caught.value.log_end) == (25, 20)
        assert (await lift.publish("orders.1", b"new")).offset == 20


async def test_a_group_that_had_read_beyond_the_recovery_point_is_told(start, bucket, nats_server):
    start()
    options = liftpy.GroupOptions(commit_interval_s=None)
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream("orders", subject="orders.*")
        await publish(lift, 20)
        await tiered(lift, bucket, "orders")
        await lift.update_stream("orders", tier=False)  # what comes now does not reach the bucket
        await publish(lift, 5, "lost")
        async with lift.consume("orders", group="readers", options=quick_options(), group_options=options) as consumer:
            async for message in consumer:
                if message.offset == 24:
                    break
            await consumer.commit({("orders", 0): 24})
        await tiered(lift, bucket, "__consumer_offsets")
        await lift.update_stream("orders", tier=True, retention_bytes=0)
    start()
    async with liftpy.connect(nats_server.url) as lift, asyncio.timeout(60):
        plan = await lift.restore_plan()
        await lift.restore(plan)
        (orders,) = [stream for stream in plan.streams if stream.name == "orders"]
        end = orders.partitions[0].end
        for _ in range(2):
            with pytest.raises(LogDivergedError) as caught:
                await anext(aiter(lift.consume("orders", group="readers", options=quick_options())))
            assert (caught.value.stream, caught.value.partition, caught.value.offset) == ("orders", 0, end)
            await publish(lift, 20, "new")  # and also when there is something at that offset again


async def test_a_cluster_with_streams_is_not_given_anothers(start, bucket, nats_server):
    start()
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream("orders", subject="orders.*")
        await publish(lift, 5)
        await tiered(lift, bucket, "orders")
    start()
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream("mine", subject="mine.*")
        with pytest.raises(AdminError, match="mine; a bucket is restored to an empty cluster"):
            await lift.restore()
