"""What consumers cost that read from the bucket is told; and what the kernel may keep goes there in time."""

from __future__ import annotations

import pytest

import liftpy
from support.cluster import NodeProcess, eventually
from support.reading import take
from support.s3_servers import moto_server
from support.tier_kit import tier_toml

COUNT = 1_000


@pytest.fixture
def node(nats_server, tmp_path):
    with moto_server() as s3:
        environment = s3.environment | {"AWS_EC2_METADATA_DISABLED": "true"}
        process = NodeProcess(nats_server.url, tmp_path / "node", toml=tier_toml(s3), environment=environment).start()
        yield process
        process.stop()


async def publish(lift, subject):
    async with lift.publisher(batch_bytes=16_384) as publisher:
        for number in range(COUNT):
            await publisher.publish(subject, b"%d " % number + bytes(300))


async def row(lift, stream):
    (partition,) = (await lift.stream_info(stream)).raw["partitions"]
    return partition


@pytest.mark.parametrize("sync", ["never", "interval"])
async def test_a_stream_that_is_not_synced_goes_to_the_bucket_all_the_same(nats_server, node, sync):
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream("quick", subject="quick", sync=sync)
        await lift.publish("quick", b"1")

        async def is_tiered():
            return (await row(lift, "quick")).get("tiered_end") == 1

        await eventually(is_tiered, 40, "nothing goes to the bucket before a segment is full")


async def test_requests_of_consumers_are_told(nats_server, node):
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream("old", subject="old", segment_bytes=65_536, local_retention_bytes=65_536)
        await publish(lift, "old")

        async def is_dropped():
            return (await row(lift, "old"))["local_start"] > COUNT // 2

        await eventually(is_dropped, 60, "nothing leaves the disk")
        assert len(await take(lift.consume("old", stop="latest"), timeout_s=60)) == COUNT

        async def told():
            status = await lift.tier_status()
            read, wrote = status.read_requests, status.requests
            return status if read.get("get", 0) + read.get("get_range", 0) and wrote.get("create") else None

        status = await eventually(told, 40, "no requests are told")
        assert status.raw["read_bytes_in"] > 0
        assert not status.read_requests.get("create"), "who reads writes nothing"
