"""What comes between key compaction and its end: damage on the disk, a purge, retention, a disk that is full."""

from __future__ import annotations

import os

import psutil
import pytest

import liftpy
from support.cluster import NodeProcess, eventually
from support.reading import read_all
from support.segments import damage_middle, segment_files
from support.small_disk import small_disk_of

QUICK = "[storage]\nretention_interval_s = 0.2\n"
SETTINGS = {"segment_bytes": 65_536, "dedupe_window_s": 0.0, "min_dirty_ratio": 0.1}
MIB = 2**20


@pytest.fixture
def node(nats_server, tmp_path):
    process = NodeProcess(nats_server.url, tmp_path / "node", "--log-level", "debug", toml=QUICK).start()
    yield process
    process.stop()


@pytest.fixture
def small_disk(tmp_path):
    with small_disk_of(tmp_path / "small" / "data", 40 * MIB) as disk:
        yield disk


async def publish(lift, subject, count, keys, size=60, first=0):
    """Numbered messages; the last offset of every key."""
    last, pending = {}, []
    async with lift.publisher(batch_bytes=8_192) as publisher:
        for number in range(first, first + count):
            key = b"key-%d" % (number * 7 % keys)
            pending.append((key, await publisher.publish(subject, os.urandom(size // 2).hex().encode(), key=key)))
    for key, ack in pending:
        last[key] = (await ack).offset
    return last


def size_of(node, stream):
    return sum(path.stat().st_size for path in segment_files(node.data, stream) if path.exists())


def works(node):
    """Whether a compaction worker runs."""
    for child in psutil.Process(node.process.pid).children():
        try:
            if "liftpy_server.compaction.worker" in child.cmdline():
                return True
        except psutil.NoSuchProcess:
            continue
    return False


def offsets_by_key(messages):
    offsets = [message.offset for message in messages]
    assert offsets == sorted(set(offsets))
    return {message.key: message.offset for message in messages}


async def test_a_damaged_segment_that_a_pass_finds_is_named_and_everything_else_goes_on(lift, node):
    for name in ("prices", "others"):
        await lift.create_stream(name, subject=name, **SETTINGS)
        await publish(lift, name, 5_000, 100)
    damaged = segment_files(node.data, "prices")[2]
    damage_middle(damaged)
    for name in ("prices", "others"):
        await lift.update_stream(name, compact=True)
    await eventually(lambda: "partition 0 is offline" in node.log() or " offline" in node.log(), 40)
    (partition,) = (await lift.stream_info("prices")).partitions
    assert damaged.name in partition.offline
    assert damaged.exists(), "nothing took its place"
    with pytest.raises(liftpy.LiftError, match="offline"):
        await lift.publish("prices", b"x", key=b"k", timeout_s=2.0, retries=0)
    with pytest.raises(liftpy.LiftError, match="offline"):
        await read_all(lift, "prices")
    await eventually(lambda: size_of(node, "others") < 200_000, 40)
    assert len(offsets_by_key(await read_all(lift, "others"))) == 100
    assert "Traceback" not in node.log()


async def test_a_purge_amid_a_pass_takes_what_it_names_and_no_more(lift, node):
    await lift.create_stream("prices", subject="prices", **SETTINGS)
    last = await publish(lift, "prices", 40_000, 2_000)
    await lift.update_stream("prices", compact=True)
    await eventually(lambda: works(node), 40, "no pass begins")
    await lift.purge_stream("prices", offset=39_000)
    kept = {key: offset for key, offset in last.items() if offset >= 39_000}
    assert offsets_by_key(await read_all(lift, "prices")) == kept
    last |= await publish(lift, "prices", 5_000, 100)
    await eventually(lambda: size_of(node, "prices") < 500_000, 40)
    kept = {key: offset for key, offset in last.items() if offset >= 39_000}
    assert offsets_by_key(await read_all(lift, "prices")) == kept
    assert node.log().count("Traceback") == 0


async def test_a_compacting_stream_has_retention_too(lift, node):
    await lift.create_stream("prices", subject="prices", compact=True, retention_messages=8_000, **SETTINGS)
    last = {}
    for first in range(0, 30_000, 5_000):
        last |= await publish(lift, "prices", 5_000, 30_000, first=first)
    await eventually(lambda: not works(node), 40)

    async def begins_later():
        (partition,) = (await lift.stream_info("prices")).partitions
        return partition.log_start > 15_000

    await eventually(begins_later, 40)
    messages = await read_all(lift, "prices")
    assert messages[0].offset > 15_000
    kept = {key: offset for key, offset in last.items() if offset >= messages[0].offset}
    assert offsets_by_key(messages) == kept
    assert len(kept) >= 8_000
    assert "Traceback" not in node.log()


async def test_a_disk_that_is_full_amid_a_pass_loses_nothing(nats_server, small_disk, tmp_path):
    node = NodeProcess(nats_server.url, tmp_path / "small", "--log-level", "debug", toml=QUICK).start()
    try:
        async with liftpy.connect(nats_server.url, timeout_s=5.0) as lift:
            await lift.create_stream("prices", subject="prices", **(SETTINGS | {"segment_bytes": 8 * MIB}))
            last = await publish(lift, "prices", 18_000, 9_000, size=1_000)
            small_disk.fill(MIB)
            await lift.update_stream("prices", compact=True, min_dirty_ratio=0.0)
            await eventually(lambda: "could not be compacted, and is tried again in 60 s" in node.log(), 40)
            assert offsets_by_key(await read_all(lift, "prices")) == last
            assert not list((tmp_path / "small").glob("data/streams/*/*/*.tmp")), "what was half written is gone"
            small_disk.free()
            await eventually(lambda: "has room again" in node.log(), 40)
            await lift.publish("prices", b"x", key=b"key-0")
            node.kill()
            node.start()
            await eventually(lambda: "compacted up to" in node.log(), 40)
            found = offsets_by_key(await read_all(lift, "prices"))
            assert found == last | {b"key-0": 18_000}
            assert "Traceback" not in node.log()
    finally:
        node.stop()
