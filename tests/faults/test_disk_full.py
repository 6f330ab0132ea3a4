"""The disk is full: messages are refused and their publishers told, readers are served, and with room it goes on."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import select

import pytest

import liftpy
from liftpy_envelope.errors import AckErrorCode
from liftpy_log.storage.disk import OsDisk
from support.cluster import NodeProcess, eventually
from support.inprocess import running_node
from support.raw_nats import RawNats, pub
from support.reading import gaps, http, read_all, values
from support.small_disk import small_disk_of

MIB = 1024 * 1024
SMALL_DISK = 24 * MIB


@pytest.fixture
def small_disk(tmp_path):
    with small_disk_of(tmp_path / "node" / "data", SMALL_DISK) as disk:
        yield disk


async def ask(raw, subject, payload):
    """Offset of a stored message, or the code of its refusal."""
    answer = await raw.ask(subject, payload)
    return answer["error"]["err_code"] if "error" in answer else answer["offset"]


async def until_full(raw, subject, payload, limit=100_000):
    """How many messages are stored before one is refused for want of space."""
    for count in range(limit):
        answer = await ask(raw, subject, payload)
        if answer == AckErrorCode.STORAGE_FULL:
            return count
        assert answer == count
    raise AssertionError("the disk is never full")


async def create_many(lift, count):
    for number in range(count):  # the first may find room in the pages that the metadata journal has
        await lift.create_stream(f"more{number}", subject=f"more.{number}")


async def takes_again(raw, subject, payload, offset):
    async def taken():
        answer = await ask(raw, subject, payload)
        if answer == AckErrorCode.STORAGE_FULL:
            return False
        assert answer == offset
        return True

    await eventually(taken, 40)


async def test_the_reserve_is_kept(nats_server, small_disk, tmp_path):
    """A tenth of the disk stays free; whoever asks for no ack finds what is missing in the stream's info."""
    node = NodeProcess(nats_server.url, tmp_path / "node", "--http-port", "0").start()
    try:
        async with liftpy.connect(nats_server.url) as lift, await RawNats.open(nats_server.port) as raw:
            for name in ("s", "other"):
                await lift.create_stream(name, subject=name)
            await lift.publish("s", b"0")
            small_disk.fill(MIB)
            await eventually(lambda: "bytes free: messages are refused" in node.log())
            assert await ask(raw, b"s", b"refused") == AckErrorCode.STORAGE_FULL
            with pytest.raises(liftpy.PublishRefusedError, match="disk is full"):
                await lift.publish("other", b"refused")
            for _ in range(10):
                raw.write(pub(b"s", b"nobody can be told"))
            await raw.flush()
            assert await values(lift, "s") == [b"0"]
            status, text = await http(node.ready["http_port"], "/readyz")
            assert (status, json.loads(text)["problems"]) == (503, ["the disk is full"])
            assert (await lift.node_info())["storage_full"]
            small_disk.free()
            await takes_again(raw, b"s", b"1", 1)
            assert (await lift.publish("other", b"0")).offset == 0
            (gap,) = await gaps(lift, "s")
            assert (gap["cause"], gap["messages"]) == ("storage_full", 10)
            assert not (await lift.node_info())["storage_full"]
        assert "Traceback" not in node.log()
    finally:
        node.stop()


@pytest.mark.parametrize("streams", [1, 8])
async def test_the_disk_is_full_to_the_last_byte(nats_server, small_disk, tmp_path, streams):
    """With eight streams rounds go through the write-ahead log, with one they do not."""
    node = NodeProcess(nats_server.url, tmp_path / "node", toml="[storage]\ndisk_reserve_bytes = 0\n").start()
    names = [f"s{number}" for number in range(streams)]
    try:
        async with liftpy.connect(nats_server.url) as lift, await RawNats.open(nats_server.port) as raw:
            for name in names:
                await lift.create_stream(name, subject=name)
            small_disk.fill(2 * MIB)
            payload = bytes(40_000)
            counts = await asyncio.gather(*(until_full(raw, name.encode(), payload) for name in names))
            assert sum(counts) > 10
            small_disk.fill(0)
            with pytest.raises(liftpy.AdminError, match="full"):
                await create_many(lift, 20)
            for name, count in zip(names, counts, strict=True):
                assert len(await read_all(lift, name)) == count
                assert (await lift.stream_info(name)).partitions[0].offline is None
            small_disk.free()
            for name, count in zip(names, counts, strict=True):
                await takes_again(raw, name.encode(), payload, count)
            await create_many(lift, 20)
            for number in range(20):
                assert (await lift.publish(f"more.{number}", b"x")).offset == 0
            await asyncio.to_thread(node.restart)
            for name, count in zip(names, counts, strict=True):
                assert [message.offset for message in await read_all(lift, name)] == list(range(count + 1))
                assert await ask(raw, name.encode(), b"x") == count + 1
        assert "Traceback" not in node.log()
    finally:
        node.stop()


async def test_a_node_that_is_killed_on_a_full_disk(nats_server, small_disk, tmp_path):
    """It comes back when there is room, and has what it acknowledged."""
    node = NodeProcess(nats_server.url, tmp_path / "node", toml="[storage]\ndisk_reserve_bytes = 0\n").start()
    try:
        async with liftpy.connect(nats_server.url) as lift, await RawNats.open(nats_server.port) as raw:
            await lift.create_stream("s", subject="s")
            small_disk.fill(MIB)
            count = await until_full(raw, b"s", bytes(20_000))
            node.kill()
            node.spawn()
            began = len(node.log())
            # Where there is no room for what a start has to write, it ends, or waits for some; it says why.
            await eventually(lambda: not node.is_running or _is_ready(node) or "full" in node.log()[began:], 60.0)
            if not node.is_running:
                assert node.process.returncode in {1, 70}  # 70 when it is the metadata that could not be written
                assert "full" in node.log()[began:]
                small_disk.free()
                await asyncio.to_thread(node.start)
            else:
                small_disk.free()
                await asyncio.to_thread(node.wait_ready)
            assert "Traceback" not in node.log()
            await eventually(lambda: _stored(lift, count))
            await takes_again(raw, b"s", b"x", count)
    finally:
        node.stop()


def _is_ready(node):
    return bool(select.select([node.process.stdout], [], [], 0)[0])


async def _stored(lift, count):
    return len(await read_all(lift, "s")) == count


async def test_a_disk_that_seems_full(nats_server, tmp_path, monkeypatch):
    """As above, where no file system can be mounted: what the node is told of its disk is made up."""
    free = [10 * MIB]
    monkeypatch.setattr("liftpy_server.node.maintenance._space", lambda _path: (free[0], 100 * MIB))
    async with (
        running_node(nats_server.url, tmp_path / "node", disk_reserve_bytes=5 * MIB) as node,
        liftpy.connect(nats_server.url) as lift,
        await RawNats.open(nats_server.port) as raw,
    ):
        await lift.create_stream("s", subject="s")
        assert await ask(raw, b"s", b"0") == 0
        free[0] = 4 * MIB
        node.maintenance.check_disk()
        assert await ask(raw, b"s", b"refused") == AckErrorCode.STORAGE_FULL
        assert await values(lift, "s") == [b"0"]
        free[0] = 5 * MIB + 1  # a tenth more than the reserve is wanted before messages are taken again
        node.maintenance.check_disk()
        assert await ask(raw, b"s", b"refused") == AckErrorCode.STORAGE_FULL
        free[0] = 6 * MIB
        node.maintenance.check_disk()
        assert await ask(raw, b"s", b"1") == 1
        assert await values(lift, "s") == [b"0", b"1"]
        assert await gaps(lift, "s") == []


async def test_a_partition_that_found_no_file_descriptor_is_opened_when_there_is_one(
    nats_server, tmp_path, monkeypatch
):
    usual, is_out = OsDisk.open, True

    def open_file(disk, path, **given):
        if is_out and path.suffix == ".log":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return usual(disk, path, **given)

    async with liftpy.connect(nats_server.url) as lift, await RawNats.open(nats_server.port) as raw:
        async with running_node(nats_server.url, tmp_path / "data"):
            await lift.create_stream("s", subject="s")
            assert await ask(raw, b"s", b"0") == 0
        monkeypatch.setattr(OsDisk, "open", open_file)
        async with running_node(nats_server.url, tmp_path / "data", retention_interval_s=0.1):
            assert await ask(raw, b"s", b"refused") == AckErrorCode.PARTITION_OFFLINE
            is_out = False

            async def is_taken():
                return await ask(raw, b"s", b"1") == 1

            await eventually(is_taken)
            assert await values(lift, "s") == [b"0", b"1"]
