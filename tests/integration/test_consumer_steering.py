"""Steering consumers of a real node: seek, pause, filter, several streams, and what goes away under them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import liftpy
from liftpy_client.consumer.assigned import AssignedConsumer
from support.cluster import quick_options
from support.reading import take


@pytest.fixture
def lift(shared_lift):
    return shared_lift


async def fill(lift, stream, count, subjects=("x",), **config):
    """A stream with `count` numbered messages in batches of ten, the subjects in turns."""
    await lift.create_stream(stream, subject=f"{stream}.>", **config)
    async with lift.publisher(stream=stream) as publisher:
        for number in range(count):
            await publisher.publish(f"{stream}.{subjects[number % len(subjects)]}", b"%d" % number, key=b"%d" % number)
            if number % 10 == 9:
                await publisher.flush()


async def test_seek_pause_and_resume(lift, name):
    await fill(lift, name, 600, partitions=2)
    ends = {number: (await lift.stream_info(name)).partitions[number].high_watermark for number in (0, 1)}
    options = quick_options(fetch_bytes=2_000, prefetch_bytes=4_000)
    seen: dict = {0: [], 1: []}
    async with asyncio.timeout(60), lift.consume(name, stop="latest", options=options) as consumer:
        assert consumer.lag() == ends
        async for message in consumer:
            seen[message.partition].append(message.offset)
            if seen[0] == [0, 1, 2]:
                consumer.pause([0])
            if message.partition == 1 and message.offset == ends[1] - 1 and len(seen[0]) == 3:
                assert (consumer.position(0), consumer.lag()) == (3, {0: ends[0] - 3, 1: 0})
                consumer.seek({1: ends[1] - 5})
                consumer.resume([0])
        assert consumer.lag() == {0: 0, 1: 0}
    assert seen == {0: list(range(ends[0])), 1: [*range(ends[1]), *range(ends[1] - 5, ends[1])]}


async def test_seek_to_a_time(lift, name):
    await fill(lift, name, 10)
    await asyncio.sleep(0.01)
    between = datetime.now(UTC)
    await lift.publish(f"{name}.x", b"10")
    async with asyncio.timeout(40), lift.consume(name) as consumer:
        await consumer.seek_to_time(between)
        assert (await anext(aiter(consumer))).value == b"10"
        await consumer.seek_to_time(between - timedelta(days=1))
        assert (await anext(aiter(consumer))).value == b"0"


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_only_some_subjects(lift, name, compression):
    await fill(lift, name, 1_000, subjects=("a.1", "b.1", "b.2", "c"), compression=compression)
    values = [int(message.value) for message in await take(lift.consume(name, stop="latest"))]
    for subjects, wanted in ((f"{name}.b.*", {1, 2}), ([f"{name}.a.>", f"{name}.c"], {0, 3}), (f"{name}.z", set())):
        expected = [number for number in values if number % 4 in wanted]
        consumer = lift.consume(name, stop="latest", subjects=subjects)
        assert [int(message.value) for message in await take(consumer)] == expected
        assert consumer.position() == 1_000
        table = await lift.to_arrow(name, subjects=subjects, columns=["value"])
        assert [int(value) for value in table.column("value").to_pylist()] == expected
    with pytest.raises(liftpy.SubjectInvalidError):
        lift.consume(name, subjects="a..b")


async def test_several_streams_and_one_of_them_goes_away(lift, name):
    streams = [f"{name}-1", f"{name}-2"]
    for stream in streams:
        await fill(lift, stream, 50)
    found = await take(lift.consume(streams, stop="latest"))
    assert sorted((message.stream, message.offset) for message in found) == [(s, n) for s in streams for n in range(50)]
    tables = [batch async for batch in lift.consume_batches(streams, stop="latest")]
    assert pa.Table.from_batches(tables).num_rows == 100
    async with asyncio.timeout(40), lift.consume(streams, options=quick_options()) as consumer:
        iterating = aiter(consumer)
        for _ in range(100):
            await anext(iterating)
        await lift.delete_stream(streams[0])
        await lift.create_stream(streams[0], subject=f"{streams[0]}.>")
        with pytest.raises(liftpy.StreamGoneError, match=streams[0]):
            await anext(iterating)


async def test_an_offset_that_was_purged_is_said_to_be_with_what_there_is(lift, name):
    await fill(lift, name, 100)
    await lift.purge_stream(name, offset=60)
    start = (await lift.stream_info(name)).partitions[0].log_start
    async with asyncio.timeout(40), lift.consume(name, stop="latest") as consumer:
        consumer.seek(3)
        with pytest.raises(liftpy.OffsetLostError, match=rf"offset 3 .* choose {start} to 100.*on_lost"):
            await anext(aiter(consumer))
    for policy, first in (("earliest", start), ("latest", 99), ("new", 100)):
        async with asyncio.timeout(40), lift.consume(name, options=quick_options(on_lost=policy)) as consumer:
            consumer.seek(3)
            waiting = asyncio.ensure_future(anext(aiter(consumer)))
            while not waiting.done():
                await lift.publish(f"{name}.x", b"new")
            assert (await waiting).offset == first if policy == "earliest" else (await waiting).offset >= first
            assert consumer.position() == (await waiting).offset + 1


async def test_assigned_partitions_of_a_real_node(lift, name):
    await fill(lift, name, 200, partitions=2)
    place = await lift._session.cluster.stream(name, fresh=True)
    consumer = AssignedConsumer(lift._session, quick_options(), batches=False)
    async with asyncio.timeout(60):
        await consumer.assign(name, place.uuid, {0: 5})
        iterating = aiter(consumer)
        first = await anext(iterating)
        assert (first.partition, first.offset) == (0, 5)
        await consumer.assign(name, place.uuid, {1: 0})
        finished = await consumer.revoke(name, place.uuid, [0])
        assert finished == {(name, place.uuid, 0): (5, -1)}
        assert (await anext(iterating)).partition == 1
        await consumer.close()


async def test_a_handler_that_raises_is_heard(lift, name):
    await fill(lift, name, 20)
    consumer = lift.consume(name)

    async def consume():
        async for message in consumer:
            1 / (7 - message.offset)

    with pytest.raises(ZeroDivisionError):
        await consume()
    assert consumer.position() == 8
