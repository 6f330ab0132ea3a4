"""A real node compacts a stream by key while it is written, read, restarted and killed."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import psutil
import pytest

import liftpy
from support.cluster import NodeProcess, eventually
from support.reading import read_all

QUICK = "[storage]\nretention_interval_s = 0.2\n"
SETTINGS = {"compact": True, "segment_bytes": 65_536, "dedupe_window_s": 0.0, "min_dirty_ratio": 0.1}
PLAIN = 20


@pytest.fixture
def node(nats_server, tmp_path):
    process = NodeProcess(nats_server.url, tmp_path / "node", "--log-level", "debug", toml=QUICK).start()
    yield process
    process.stop()


class Written:
    """All that was published and acknowledged, by key."""

    def __init__(self):
        self.last = {}
        self.plain = []
        self.count = 0

    async def publish(self, lift, subject, count, keys):
        """Publish `count` messages in batches, a few of them without a key."""
        async with lift.publisher(batch_bytes=8_192) as publisher:
            pending = []
            for number in range(self.count, self.count + count):
                key = None if number % (count // PLAIN) == 0 else b"key-%d" % (number * 7 % keys)
                value = b"value %d " % number + bytes(40)
                pending.append((await publisher.publish(subject, value, key=key), key, value))
        for ack, key, value in pending:
            offset = (await ack).offset
            if key is None:
                self.plain.append((offset, value))
            else:
                self.last[key] = (offset, value)
        self.count += count

    def check(self, messages):
        """What a consumer got from the start has the last record of every key, and every record without one."""
        offsets = [message.offset for message in messages]
        assert offsets == sorted(set(offsets))
        assert self.last == {each.key: (each.offset, each.value) for each in messages if each.key is not None}
        assert self.plain == [(each.offset, each.value) for each in messages if each.key is None]


def log_bytes(node, stream):
    """Size of a stream's segments on disk."""
    size = 0
    for path in (node.data / "streams").glob(f"{stream}.*/*/*.log"):
        try:
            size += path.stat().st_size
        except FileNotFoundError:
            continue
    return size


async def compacted(node, stream, bytes_max):
    await eventually(lambda: log_bytes(node, stream) < bytes_max, 40, "the stream is not compacted")


def workers(node):
    """Compaction workers of a node."""
    found = []
    for child in psutil.Process(node.process.pid).children():
        try:
            if "liftpy_server.compaction.worker" in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


async def test_a_consumer_sees_the_last_value_of_every_key_also_after_a_restart(lift, node):
    await lift.create_stream("prices", subject="prices", **SETTINGS)
    written = Written()
    await written.publish(lift, "prices", 20_000, keys=100)
    await compacted(node, "prices", 300_000)
    messages = await read_all(lift, "prices")
    written.check(messages)
    assert len(messages) < 5_000, "of 20,000"
    await asyncio.to_thread(node.restart)
    written.check(await read_all(lift, "prices"))
    await written.publish(lift, "prices", 5_000, keys=100)
    written.check(await read_all(lift, "prices"))
    (partition,) = (await lift.stream_info("prices")).partitions
    assert partition.high_watermark == 25_000
    assert "Traceback" not in node.log()


async def test_a_node_that_is_killed_again_and_again_while_it_compacts_loses_nothing(nats_server, node):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    written = Written()
    async with liftpy.connect(nats_server.url, timeout_s=10.0) as lift:
        await lift.create_stream("prices", subject="prices", **SETTINGS)
        kills_in_a_pass = 0
        for _ in range(4):
            await written.publish(lift, "prices", 12_000, keys=400)
            await eventually(lambda: workers(node), 40, "no pass begins")
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            running = workers(node)
            kills_in_a_pass += bool(running)
            node.kill()
            for worker in running:
                await eventually(lambda worker=worker: not worker.is_running(), 40, "a worker outlives its node")
            await asyncio.to_thread(node.start)
            written.check(await read_all(lift, "prices"))
        assert kills_in_a_pass
        await compacted(node, "prices", 400_000)
        written.check(await read_all(lift, "prices"))
    assert "Traceback" not in node.log()
    assert " is offline" not in node.log()


async def test_a_worker_that_is_killed_is_replaced_by_another(lift, node):
    await lift.create_stream("prices", subject="prices", **SETTINGS)
    written = Written()

    async def is_hit():
        """Whether one was killed amid a pass; one that was through before has more to do."""
        for worker in workers(node):
            with suppress(psutil.NoSuchProcess):
                worker.kill()
        if "could not be compacted" in node.log():
            return True
        await written.publish(lift, "prices", 5_000, keys=100)
        return False

    await eventually(is_hit, 40, "no worker can be killed amid a pass")
    written.check(await read_all(lift, "prices"))
    await asyncio.to_thread(node.restart)  # rather than wait for the back-off to be over
    await compacted(node, "prices", 300_000)
    written.check(await read_all(lift, "prices"))
    stopped = node.process.pid
    await eventually(lambda: not workers(node), 40, "a worker without work does not end")
    assert node.stop() == 0
    assert not psutil.pid_exists(stopped)
    node.start()
