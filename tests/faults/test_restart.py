"""Clean stops, pauses of the whole process, and files that may be deleted between two runs."""

from __future__ import annotations

import asyncio
import signal

import pytest

import liftpy
from support.acked import assert_stored_once, start_publishers
from support.cluster import eventually, quick_options
from support.raw_nats import RawNats, pub
from support.reading import gaps, read_all, stored, take, values
from support.segments import batches, partition_directory, segment_files


async def acked(publishers, count):
    await eventually(lambda: sum(len(publisher.acked) for publisher in publishers) >= count, 40)


@pytest.mark.parametrize("sync", ["always", "interval"])
async def test_a_stop_under_load_is_clean(nats_server, lift, node, sync):
    for name in ("a", "b"):
        await lift.create_stream(name, subject=name, sync=sync)
    publishers = start_publishers(nats_server.url, ["a", "b"], 2)
    try:
        for stop in (1, 2):
            await acked(publishers, 2_000 * stop)
            assert await asyncio.to_thread(node.stop) == 0
            log = node.log()
            assert log.count("has stopped") == stop
            assert "Traceback" not in log
            assert list((node.data / "wal").iterdir()) == []
            await asyncio.to_thread(node.start)
            assert "restored from the write-ahead log" not in node.log()
            assert [gap["cause"] for gap in await gaps(lift, "a")] == ["the node was stopped"] * stop
        for publisher in publishers:
            await publisher.finish()
    finally:
        for publisher in publishers:
            await publisher.cancel()
    for name in ("a", "b"):
        await assert_stored_once(lift, name, [one for one in publishers if one._subject == name])


async def test_what_was_sent_before_a_stop_is_stored(nats_server, lift, node):
    """Plain messages that NATS had taken when the node was told to stop are in the stream."""
    await lift.create_stream("s", subject="s")
    async with await RawNats.open(nats_server.port) as raw:
        for number in range(20_000):
            raw.write(pub(b"s", b"%d" % number))
        await raw.flush()
        assert await asyncio.to_thread(node.stop) == 0
    await asyncio.to_thread(node.start)
    assert [int(value) for value in await values(lift, "s")] == list(range(20_000))


async def test_a_node_that_stands_still_for_a_moment(nats_server, lift, node):
    """What came meanwhile is stored, without a gap and without a new connection."""
    await lift.create_stream("s", subject="s")
    await lift.create_stream("plain", subject="plain")
    publishers = start_publishers(nats_server.url, ["s"], 2)
    async with await RawNats.open(nats_server.port) as raw:
        try:
            await acked(publishers, 500)
            node.signal(signal.SIGSTOP)
            for number in range(50_000):
                raw.write(pub(b"plain", b"%d" % number))
            await raw.flush()
            with pytest.raises(liftpy.NodeUnavailableError):  # takes three seconds
                await lift._session.cluster.request("NODE.INFO", {}, 3.0)
            before = sum(len(publisher.acked) for publisher in publishers)
            node.signal(signal.SIGCONT)
            await acked(publishers, before + 500)
            for publisher in publishers:
                await publisher.finish()
        finally:
            node.signal(signal.SIGCONT)
            for publisher in publishers:
                await publisher.cancel()
    await assert_stored_once(lift, "s", publishers)
    await stored(lift, "plain", 50_000)
    assert [int(value) for value in await values(lift, "plain")] == list(range(50_000))
    assert await gaps(lift, "s") == await gaps(lift, "plain") == []
    assert (await lift.node_info())["nats_reconnects"] == 0


async def fill(lift, name, count=400):
    """Several segments, with messages at known times."""
    await lift.create_stream(name, subject=name, segment_bytes=65_536)
    return [await lift.publish(name, b"%06d" % number + bytes(600)) for number in range(count)]


@pytest.mark.parametrize("kill", [False, True])
async def test_indexes_are_caches(lift, node, kill):
    await fill(lift, "s")
    before = await read_all(lift, "s")
    times = [message.timestamp for message in before]
    for delete in ("*.index", "*index"):
        await asyncio.to_thread(node.kill if kill else node.stop)
        directory = partition_directory(node.data, "s")
        assert len(segment_files(node.data, "s")) > 3
        for path in directory.glob(delete):
            path.unlink()
        await asyncio.to_thread(node.start)
        assert await read_all(lift, "s") == before
        for offset in (0, 1, 133, 250, 399):
            assert await take(lift.consume("s", start=offset, stop="latest")) == before[offset:]
            found = await take(lift.consume("s", start=times[offset], stop="latest"))
            assert found == [message for message in before if message.timestamp >= times[offset]]
    assert (await lift.publish("s", b"next")).offset == 400


@pytest.mark.parametrize("damage", [b"", b"garbage" * 1_000, None])
async def test_damaged_indexes_are_made_anew(lift, node, damage):
    await fill(lift, "s")
    before = await read_all(lift, "s")
    await asyncio.to_thread(node.stop)
    paths = list(partition_directory(node.data, "s").glob("*index"))
    assert paths
    for path, other in zip(paths, paths[1:] + paths[:1], strict=True):
        content = other.read_bytes() if damage is None else damage  # None: that of another segment
        path.with_name(path.name + ".new").write_bytes(content)
    for path in paths:
        path.with_name(path.name + ".new").replace(path)
    await asyncio.to_thread(node.start)
    assert await read_all(lift, "s") == before
    for offset in (1, 200, 399):
        assert await take(lift.consume("s", start=offset, stop="latest")) == before[offset:]
    assert (await lift.publish("s", b"next")).offset == 400


@pytest.mark.parametrize("kill", [False, True])
async def test_without_the_checkpoint_nothing_is_lost(lift, node, kill):
    await fill(lift, "s", 50)
    before = await read_all(lift, "s")
    node.stop()
    await asyncio.to_thread(node.start)
    await asyncio.to_thread(node.kill if kill else node.stop)
    (node.data / "checkpoint").unlink()
    await asyncio.to_thread(node.start)
    assert await read_all(lift, "s") == before
    assert (await lift.publish("s", b"next")).offset == 50
    newest = (await gaps(lift, "s"))[-1]
    assert newest["until_ns"] is not None
    # A kill that comes before the first gap's end is on disk makes one gap of two.
    counts = {1, 2} if kill else {2}
    assert len(await gaps(lift, "s")) in counts, "the node was not listening for a while, with or without a checkpoint"


async def test_a_damaged_checkpoint_is_set_aside(lift, node):
    await fill(lift, "s", 5)
    node.stop()
    path = node.data / "checkpoint"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    await asyncio.to_thread(node.start)
    assert f"{path} is damaged" in node.log()
    assert "Traceback" not in node.log()
    assert (node.data / "quarantine" / "checkpoint.0").is_file()
    assert len(await read_all(lift, "s")) == 5


@pytest.mark.parametrize("cut", [1, 88, 200])
async def test_a_torn_tail_is_cut_off(lift, node, cut):
    """A write that a crash tore: bytes behind the last whole batch that were acknowledged to nobody."""
    await lift.create_stream("s", subject="s", sync="interval")
    for number in range(20):
        await lift.publish("s", b"%d" % number + bytes(300))
    await asyncio.to_thread(node.kill)
    (path,) = segment_files(node.data, "s")
    whole = path.read_bytes()
    last = batches(path)[-1]
    path.write_bytes(whole + whole[last.position : last.position + cut])
    await asyncio.to_thread(node.start)
    assert path.read_bytes() == whole
    assert [message.offset for message in await read_all(lift, "s")] == list(range(20))
    assert (await lift.publish("s", b"next")).offset == 20
    assert (await lift.stream_info("s")).partitions[0].offline is None


async def test_a_consumer_waits_for_the_node(lift, node):
    await lift.create_stream("s", subject="s")
    following = asyncio.ensure_future(take(lift.consume("s", options=quick_options()), 60))
    for life in range(3):
        for number in range(20):
            await lift.publish("s", b"%d" % (20 * life + number))
        await asyncio.to_thread(node.stop)
        await asyncio.to_thread(node.start)
    messages = await asyncio.wait_for(following, 40)
    assert [int(message.value) for message in messages] == list(range(60))
