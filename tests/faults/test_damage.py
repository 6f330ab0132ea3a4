"""A bit turns on the disk of a node that has the only copy."""

from __future__ import annotations

import pytest

import liftpy
from support.cluster import eventually
from support.reading import read_all
from support.segments import damage_middle, segment_files


async def publish(lift, stream, count):
    values = [b"%d of %s" % (number, stream.encode()) for number in range(count)]
    async with lift.publisher(batch_bytes=4_096) as publisher:
        for value in values:
            await publisher.publish(stream, value)
    return values


async def read_into(values, consumer):
    async for message in consumer:
        values += [message.value]


async def test_a_bit_turns_in_the_only_copy(lift, node):
    """What is before it is delivered and nothing of it; file and byte are named, and other streams go on."""
    await lift.create_stream("orders", subject="orders", segment_bytes=65_536)
    await lift.create_stream("others", subject="others")
    values, others = await publish(lift, "orders", 20_000), await publish(lift, "others", 1_000)
    damaged = segment_files(node.data, "orders")[1]
    damage_middle(damaged)
    seen = []
    with pytest.raises(liftpy.CorruptRecordsError, match="orders"):
        await read_into(seen, lift.consume("orders", stop="latest"))
    assert seen == values[: len(seen)]
    assert seen
    (partition,) = (await lift.stream_info("orders")).partitions
    assert f"{damaged.name} is damaged at byte " in partition.offline
    await eventually(lambda: str(damaged) in node.log())
    with pytest.raises(liftpy.LiftError, match="offline"):
        await lift.publish("orders", b"more", timeout_s=2.0, retries=0)
    await lift.publish("others", b"more")
    assert [message.value for message in await read_all(lift, "others")] == [*others, b"more"]
