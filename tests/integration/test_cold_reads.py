"""Consumers of a real node read what is in a real bucket alone, and do not notice where the log begins."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import liftpy
from support.cluster import NodeProcess, eventually
from support.tier_kit import tier_toml

COUNT = 2_000
SETTINGS = {"segment_bytes": 65_536, "local_retention_bytes": 65_536}


@pytest.fixture
def node(nats_server, tmp_path, s3):
    toml = tier_toml(s3, tmp_path.name)
    process = NodeProcess(nats_server.url, tmp_path / "node", toml=toml, environment=s3.environment).start()
    yield process
    process.stop()


async def publish(lift, subject, size=300):
    """Publish numbers to ten subjects; by offset, which one is there."""
    async with lift.publisher(batch_bytes=16_384) as publisher:
        pending = [
            await publisher.publish(f"{subject}.{number % 10}", b"%d " % number + bytes(size))
            for number in range(COUNT)
        ]
    return {(await ack).offset: number for number, ack in enumerate(pending)}


async def local_start(lift, stream):
    """Wait until the log begins late; where."""

    async def look():
        (partition,) = (await lift.stream_info(stream)).raw["partitions"]
        return partition["local_start"] if partition["local_start"] > COUNT // 4 else None

    return await eventually(look, 40.0, "nothing leaves the disk")


async def read(lift, stream, **options):
    async with lift.consume(stream, **options) as consumer:
        return [(message.offset, bytes(message.value)) async for message in consumer]


async def test_a_consumer_reads_from_the_bucket_into_the_log(nats_server, node, name, tmp_path):
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream(name, subject=f"{name}.>", **SETTINGS)
        numbers = await publish(lift, name)
        start = await local_start(lift, name)
        found = await read(lift, name, start="earliest", stop="latest")
        assert [offset for offset, _ in found] == list(range(COUNT))
        assert all(value.startswith(b"%d " % numbers[offset]) for offset, value in found)
        found = await read(lift, name, start=start - 5, stop=start + 5)
        assert [offset for offset, _ in found] == list(range(start - 5, start + 5))
        found = await read(lift, name, start=0, stop="latest", subjects=f"{name}.3")
        assert [offset for offset, _ in found] == [offset for offset in range(COUNT) if numbers[offset] % 10 == 3]
        found = await read(lift, name, start=datetime.fromtimestamp(0, UTC), stop="latest")
        assert len(found) == COUNT
        assert any(path.parent.name == "cold" for path in (tmp_path / "node").rglob("*.log")), "it was kept on the disk"
    node.stop()
    node.start()
    async with liftpy.connect(nats_server.url) as lift:
        assert len(await read(lift, name, start="earliest", stop="latest")) == COUNT
