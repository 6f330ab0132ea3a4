"""Publishers that go flat out and ask for no ack: every message is stored, or the stream says what is missing."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import liftpy
from support.cluster import NodeProcess, eventually, make_nats
from support.raw_nats import RawNats, pub
from support.reading import gaps

PUBLISHERS = 8
PIECE = 1_000  # messages that a publisher hands over at once


async def publish(port, subject, who, count, size=100):
    """One publisher's messages, numbered, over a connection of its own; returns when NATS has taken all of them."""
    padding = b"." * (size - 9)
    async with await RawNats.open(port) as raw:
        for start in range(0, count, PIECE):
            frames = [pub(subject, b"%d:%07d" % (who, number) + padding) for number in range(start, start + PIECE)]
            raw.write(b"".join(frames))
            await raw._writer.drain()
        await raw.flush(30)


async def publish_all(port, subject, count, **options):
    await asyncio.gather(*(publish(port, subject, who, count, **options) for who in range(PUBLISHERS)))


async def numbers_by_publisher(lift, stream):
    """The numbers that are stored, by publisher, in the order of the partitions they are in."""
    found = {who: [] for who in range(PUBLISHERS)}
    async for records in lift.consume_batches(stream, stop="latest"):
        for value in records.column("value").to_pylist():
            found[value[0] - ord("0")].append(int(value[2:9]))
    return found


async def settled(lift, stream, published):
    """Wait until everything that was published is stored or known to be missing; the gaps."""

    async def accounted():
        details = await lift.stream_info(stream)
        known = details.raw["gaps"]
        if any(gap["messages"] is None for gap in known):
            return (known,) if all(gap["until_ns"] for gap in known) else None
        return (known,) if details.messages + sum(gap["messages"] for gap in known) == published else None

    (known,) = await eventually(accounted, 45, "messages are neither stored nor known to be missing")
    return known


@pytest.mark.parametrize(("partitions", "count"), [(1, 50_000), (4, 10_000)])
async def test_every_message_is_stored(nats_server, lift, node, partitions, count):
    """Once, and each publisher's in its order."""
    await lift.create_stream("s", subject="s", partitions=partitions)
    await publish_all(nats_server.port, b"s", count)
    known = await settled(lift, "s", PUBLISHERS * count)
    found = await numbers_by_publisher(lift, "s")
    if not known:
        assert {who: list(range(count)) for who in range(PUBLISHERS)} == found
    for numbers in found.values():
        assert numbers == sorted(set(numbers))


async def test_refused_messages_are_counted_to_the_last(nats_server, lift, node):
    """The stream is paused and resumed under load: stored and missing are what was published."""
    count = 20_000
    await lift.create_stream("s", subject="s")
    publishing = asyncio.ensure_future(publish_all(nats_server.port, b"s", count))
    for _ in range(3):
        await lift.pause_stream("s")
        await lift.resume_stream("s")
    await lift.pause_stream("s")
    refused = asyncio.ensure_future(publish(nats_server.port, b"s", 0, PIECE))
    await asyncio.gather(publishing, refused)
    known = await settled(lift, "s", PUBLISHERS * count + PIECE)
    assert {gap["cause"] for gap in known} == {"paused"}
    missing = sum(gap["messages"] for gap in known)
    assert missing >= PIECE
    found = await numbers_by_publisher(lift, "s")
    assert sum(map(len, found.values())) == PUBLISHERS * count + PIECE - missing


async def test_too_large_messages_are_counted_apart(nats_server, lift, node):
    await lift.create_stream("s", subject="s", message_bytes_max=200)
    await asyncio.gather(
        publish(nats_server.port, b"s", 1, 5_000, size=100),
        publish(nats_server.port, b"s", 2, 5_000, size=300),
        publish(nats_server.port, b"s", 3, 5_000, size=200),
    )
    known = await settled(lift, "s", 15_000)
    missing = Counter()
    for gap in known:
        missing[gap["cause"]] += gap["messages"]
    assert missing == {"too_large": 5_000}
    found = await numbers_by_publisher(lift, "s")
    assert (found[1], found[2], found[3]) == (list(range(5_000)), [], list(range(5_000)))


async def test_a_server_that_holds_little_for_the_node(tmp_path):
    """NATS drops the node when it falls behind by a megabyte; whether it comes to that or not, nothing is silent."""
    count = 20_000
    config = 'listen: 127.0.0.1:4222\nmax_pending: 1048576\nwrite_deadline: "1s"\n'
    server = make_nats(tmp_path / "nats", config=config)
    node = NodeProcess(server.url, tmp_path / "node").start()
    try:
        async with liftpy.connect(server.url) as lift:
            await lift.create_stream("s", subject="s")
            await publish_all(server.port, b"s", count, size=1_000)
            known = await settled(lift, "s", PUBLISHERS * count)
            found = await numbers_by_publisher(lift, "s")
            total = sum(map(len, found.values()))
            assert total == PUBLISHERS * count or known
            for numbers in found.values():
                assert numbers == sorted(set(numbers))
            assert await gaps(lift, "s") == known
    finally:
        node.stop()
        server.stop()
