"""Tables against a real node: filled, followed, waited for, too large, torn away from under their users."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pyarrow as pa
import pytest

import liftpy
from support.cluster import NodeProcess, eventually, quick_options


async def fill(lift, stream, count, *, value=b"v%d", **config):
    """A stream with the keys k0 to k<count>."""
    await lift.create_stream(stream, subject=f"{stream}.>", **config)
    numbers = range(count)
    async with lift.publisher(stream=stream) as publisher:
        columns = {"key": pa.array([b"k%d" % n for n in numbers]), "value": pa.array([value % n for n in numbers])}
        await publisher.publish_batch(f"{stream}.x", columns)


async def publish(lift, stream, key, value):
    return await lift.publish(f"{stream}.x", value, key=key, stream=stream)


@pytest.mark.parametrize("partitions", [1, 4])
async def test_a_table_holds_the_last_value_of_every_key(shared_lift, name, partitions):
    lift = shared_lift
    await fill(lift, name, 5_000, partitions=partitions)
    await publish(lift, name, b"k7", b"new")
    await publish(lift, name, b"k8", None)
    await publish(lift, name, b"empty", b"")
    await publish(lift, name, None, b"without a key")
    async with lift.table(name) as table:
        expected = {b"k%d" % n: b"v%d" % n for n in range(5_000)} | {b"k7": b"new", b"empty": b""}
        del expected[b"k8"]
        assert dict(table.items()) == expected
        assert (len(table), set(table), set(table.keys())) == (len(expected), set(expected), set(expected))
        assert sorted(table.values()) == sorted(expected.values())
        assert (table[b"k7"], table.get(b"k8"), table.get(b"k8", 5), b"k8" in table) == (b"new", None, 5, False)
        with pytest.raises(KeyError):
            table[b"k8"]
        with pytest.raises(liftpy.UsageError, match="are bytes"):
            table["k7"]
        arrow = table.to_arrow()
        assert dict(zip(*(column.to_pylist() for column in arrow.columns), strict=True)) == expected
        assert arrow.column_names == ["key", "value"]


async def test_what_was_written_is_read(shared_lift, name):
    lift = shared_lift
    await fill(lift, name, 10, partitions=4)
    async with lift.table(name, options=quick_options()) as table:
        for number in range(20):
            ack = await publish(lift, name, b"k%d" % number, b"new")
            await table.wait_for(ack)
            assert table[b"k%d" % number] == b"new"
            assert table.offset(ack.partition) == ack.offset + 1
        await asyncio.gather(*(publish(lift, name, b"k%d" % n, None) for n in range(20)))
        await table.refresh()
        assert len(table) == 0
        with pytest.raises(liftpy.TableTimeoutError, match="offset 9999 of partition 2"):
            await table.wait_for(9_999, partition=2, timeout_s=0.2)
        with pytest.raises(liftpy.UsageError, match="is of stream other"):
            await table.wait_for(liftpy.Ack(stream="other", offset=1))


async def test_an_empty_stream_and_one_whose_records_were_purged(shared_lift, name):
    lift = shared_lift
    await lift.create_stream(name, subject=f"{name}.>", partitions=3)
    async with lift.table(name) as table:
        assert len(table) == 0
        await table.refresh()
    for _ in range(5):
        await publish(lift, name, b"k", b"v")
    await lift.purge_stream(name)
    async with lift.table(name) as table:
        assert len(table) == 0
        await table.wait_for(await publish(lift, name, b"k", b"v"))
        assert dict(table.items()) == {b"k": b"v"}


async def test_changes_in_their_order(shared_lift, name):
    lift = shared_lift
    await fill(lift, name, 2)
    async with lift.table(name, decode=bytes.decode) as table:
        changes = table.changes()
        await publish(lift, name, b"k0", b"a")
        await publish(lift, name, b"k0", b"b")
        await publish(lift, name, b"never", None)
        await publish(lift, name, b"k1", None)
        seen = [await asyncio.wait_for(anext(changes), 40) for _ in range(3)]
        assert [(change.key, change.old, change.new, change.partition, change.offset) for change in seen] == [
            (b"k0", "v0", "a", 0, 2),
            (b"k0", "a", "b", 0, 3),
            (b"k1", "v1", None, 0, 5),
        ]
    assert [change async for change in changes] == []


async def test_a_slow_reader_is_told_and_does_not_hold_the_table(shared_lift, name):
    lift = shared_lift
    await fill(lift, name, 0)
    async with lift.table(name) as table:
        slow, quick = table.changes(changes_max=10), table.changes()
        for number in range(30):
            ack = await publish(lift, name, b"k%d" % number, b"v")
        await table.wait_for(ack)
        assert len(table) == 30
        with pytest.raises(liftpy.ChangesMissedError) as failure:
            await anext(slow)
        assert failure.value.missed == 30
        ack = await publish(lift, name, b"k30", b"v")
        assert (await asyncio.wait_for(anext(slow), 40)).key == b"k30"
        assert [(await anext(quick)).key for _ in range(31)] == [b"k%d" % number for number in range(31)]


async def test_a_value_that_can_not_be_decoded_concerns_its_key(shared_lift, name):
    lift = shared_lift
    await fill(lift, name, 3, value=b"%d")
    ack = await publish(lift, name, b"k1", b"{")
    async with lift.table(name, decode=json.loads) as table:
        assert (table[b"k0"], table[b"k2"]) == (0, 2)
        with pytest.raises(liftpy.TableDecodeError, match=rf"offset {ack.offset}: .*b'k1'.*JSONDecodeError") as failure:
            table[b"k1"]
        assert (failure.value.key, failure.value.partition, failure.value.offset) == (b"k1", 0, ack.offset)
        with pytest.raises(liftpy.TableDecodeError):
            dict(table.items())
        changes = table.changes()
        await publish(lift, name, b"k2", b"]")
        await publish(lift, name, b"k0", b"5")
        with pytest.raises(liftpy.TableDecodeError, match="b'k2'"):
            await asyncio.wait_for(anext(changes), 40)
        assert (await asyncio.wait_for(anext(changes), 40)).new == 5


async def test_a_table_that_needs_too_much_memory_says_so(shared_lift, name):
    lift = shared_lift
    await fill(lift, name, 1_000)
    with pytest.raises(liftpy.TableTooLargeError, match="bytes_max=10000"):
        async with lift.table(name, bytes_max=10_000):
            pass
    async with lift.table(name, bytes_max=300_000) as table:
        await publish(lift, name, b"large", bytes(200_000))
        await eventually(lambda: fails(table), message="the table goes on with too much memory")
        for attempt in (table.changes, table.keys, lambda: table[b"k0"], lambda: len(table)):
            with pytest.raises(liftpy.TableTooLargeError):
                attempt()
        with pytest.raises(liftpy.TableTooLargeError):
            await table.refresh()


def fails(table):
    try:
        len(table)
    except liftpy.LiftError:
        return True
    return False


@pytest.mark.parametrize("anew", [False, True])
async def test_a_stream_that_is_deleted_ends_its_table(shared_lift, name, anew):
    lift = shared_lift
    await fill(lift, name, 10)
    async with lift.table(name, options=quick_options()) as table:
        changes = table.changes()
        await lift.delete_stream(name)
        if anew:
            await fill(lift, name, 5)
        with pytest.raises(liftpy.StreamGoneError):
            await asyncio.wait_for(anext(changes), 40)
        with pytest.raises(liftpy.StreamGoneError):
            table[b"k0"]
        with pytest.raises(liftpy.StreamGoneError):
            await table.refresh()


async def test_mistakes(shared_lift, name):
    lift = shared_lift
    with pytest.raises(liftpy.NoStreamError):
        await lift.table(name).__aenter__()
    await fill(lift, name, 1, partitions=2)
    with pytest.raises(liftpy.UsageError, match="partitions 0 to 1, not 2"):
        await lift.table(name, partitions=[2]).__aenter__()
    for wrong in ({"bytes_max": 0}, {"fill_timeout_s": 0}, {"partitions": []}):
        with pytest.raises(liftpy.UsageError):
            lift.table(name, **wrong)
    table = lift.table(name)
    with pytest.raises(liftpy.UsageError, match="async with"):
        len(table)
    async with table:
        with pytest.raises(liftpy.UsageError, match="entered before"):
            await table.__aenter__()
    with pytest.raises(liftpy.UsageError, match="closed"):
        len(table)


async def test_one_partition_of_several(shared_lift, name):
    lift = shared_lift
    await fill(lift, name, 1_000, partitions=4)
    sizes = []
    for number in range(4):
        async with lift.table(name, partitions=[number]) as table:
            sizes.append(len(table))
    assert sum(sizes) == 1_000
    assert min(sizes) > 0


async def test_a_table_outlives_its_node(lift, node, name):
    await fill(lift, name, 100)
    async with lift.table(name, options=quick_options()) as table:
        changes = table.changes()
        node.restart()
        ack = await publish(lift, name, b"k5", b"new")
        await table.wait_for(ack)
        await table.refresh()
        assert (table[b"k5"], len(table)) == (b"new", 100)
        assert (await anext(changes)).new == b"new"


BEHIND_ITS_BACK = """
import asyncio, sys
import liftpy

async def main(url, stream):
    async with liftpy.connect(url) as lift:
        for number in range(50):
            await lift.publish(f"{stream}.x", b"unread", key=b"k%d" % number)
        await lift.purge_stream(stream)
        await lift.publish(f"{stream}.x", b"kept", key=b"k7")

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def compacting_node(nats_server, tmp_path):
    """A node that looks for something to compact all the time."""
    process = NodeProcess(nats_server.url, tmp_path / "node", toml="[storage]\nretention_interval_s = 0.2\n").start()
    yield process
    process.stop()


COMPACT = {
    "compact": True,
    "segment_bytes": 65_536,
    "dedupe_window_s": 0.0,
    "min_dirty_ratio": 0.1,
    "delete_retention_s": 0.1,
}

DELETED_BEHIND_ITS_BACK = """
import asyncio, sys
import liftpy

async def main(url, stream):
    async with liftpy.connect(url) as lift:
        await lift.publish(f"{stream}.x", None, key=b"k5")
        for number in range(200):
            async with lift.publisher() as publisher:
                for filler in range(500):
                    await publisher.publish(f"{stream}.x", bytes(100), key=b"filler%d" % (filler % 10))
            keys = [message.key async for message in lift.consume(stream, stop="latest")]
            if b"k5" not in keys:
                return
            await asyncio.sleep(0.1)
        sys.exit("the tombstone stays")

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_key_whose_tombstone_went_unread_is_not_kept(compacting_node, nats_server, name, caplog):
    async with liftpy.connect(nats_server.url, timeout_s=5.0) as lift:
        await fill(lift, name, 20, **COMPACT)
        async with lift.table(name, options=quick_options()) as table:
            changes = table.changes()
            command = [sys.executable, "-c", DELETED_BEHIND_ITS_BACK, nats_server.url, name]
            subprocess.run(command, check=True, timeout=90)  # which stops this event loop, and so the table
            expected = {b"k%d" % number for number in range(20)} | {b"filler%d" % number for number in range(10)}
            expected.remove(b"k5")
            await eventually(lambda: set(table) == expected)
            await table.refresh()
            assert set(table) == expected
        assert [(change.old, change.new) async for change in changes if change.key == b"k5"] == [(b"v5", None)]
        assert "is read again from the beginning" in caplog.text
        async with lift.table(name) as table:
            assert set(table) == expected


async def test_a_stream_whose_last_records_are_all_gone(compacting_node, nats_server, name):
    async with liftpy.connect(nats_server.url, timeout_s=5.0) as lift:
        await lift.create_stream(name, subject=f"{name}.>", **COMPACT, segment_age_s=1.0)
        async with lift.table(name, options=quick_options()) as followed:
            for value in (b"v", None):
                for number in range(10):
                    await publish(lift, name, b"k%d" % number, value)

            async def is_empty():
                return not [message async for message in lift.consume(name, stop="latest")]

            await eventually(is_empty, 40)
            async with lift.table(name, fill_timeout_s=10) as table:
                for each in (table, followed):
                    await each.refresh(timeout_s=10)
                    await each.wait_for(19, timeout_s=10)
                    assert (len(each), each.offset()) == (0, 20)


async def test_records_that_went_unread_have_the_stream_read_again(shared_lift, shared_nats, name):
    lift = shared_lift
    await fill(lift, name, 100)
    async with lift.table(name, options=quick_options()) as table:
        changes = table.changes()
        command = [sys.executable, "-c", BEHIND_ITS_BACK, shared_nats.url, name]
        subprocess.run(command, check=True, timeout=60)  # which stops this event loop, and so the table
        await eventually(lambda: dict(table.items()) == {b"k7": b"kept"})
        view = {b"k%d" % number: b"v%d" % number for number in range(100)}
        while view != {b"k7": b"kept"}:
            change = await asyncio.wait_for(anext(changes), 40)
            assert view.get(change.key) == change.old
            view[change.key] = change.new
            view = {key: value for key, value in view.items() if value is not None}
