"""The upload worker, the node and the S3 server are killed and stand still while messages come in."""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import suppress

import psutil
import pytest

import liftpy
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.upkeep.scrubbing import scrub
from liftpy_bucket.upkeep.verifying import verify
from support.acked import assert_stored_once, start_publishers
from support.cluster import NodeProcess, eventually
from support.progress import until_through
from support.s3_servers import seaweedfs
from support.tier_kit import tier_toml

NAME = "orders"
VALUE_BYTES = 4_000
STALLED_S = 90.0
PAUSE_S = 0.2  # after every window of messages: how much there is to be moved does not depend on the machine
SETTINGS = {"segment_bytes": 1 << 20, "local_retention_bytes": 2 << 20}


@pytest.fixture
def s3(tmp_path):
    with seaweedfs(tmp_path / "s3") as server:
        yield server
        server.kill()
        server.start()  # the last trouble may have left it dead


@pytest.fixture
def node(nats_server, tmp_path, s3):
    toml = tier_toml(s3, "kills", upload_bytes=1 << 20, grace_s=2.0)
    process = NodeProcess(nats_server.url, tmp_path / "node", toml=toml, environment=s3.environment).start()
    yield process
    process.stop()


def workers(node, name):
    """Processes of a node's tier worker."""
    found = []
    for each in psutil.Process(node.process.pid).children(recursive=True):
        try:
            command = each.cmdline()
        except psutil.NoSuchProcess:  # it has ended since
            continue
        if command[-1:] == [name] and "liftpy_server.tier.worker.main" in command:
            found.append(each)
    return found


class Faults:
    """What may befall; each is over when it returns."""

    def __init__(self, node, s3, rng):
        self.node, self.s3, self.rng = node, s3, rng

    async def pause_s(self, low, high):
        await asyncio.sleep(self.rng.uniform(low, high))

    async def kill_worker(self):
        for each in workers(self.node, "upload"):
            with suppress(psutil.NoSuchProcess):
                each.kill()

    async def stop_worker(self):
        for each in workers(self.node, "upload"):
            with suppress(psutil.NoSuchProcess):
                each.suspend()
                await self.pause_s(0.5, 2)
                each.resume()

    async def kill_node(self):
        await asyncio.to_thread(self.node.restart)

    async def stop_node(self):
        self.node.signal(signal.SIGSTOP)
        await self.pause_s(0.2, 1)
        self.node.signal(signal.SIGCONT)

    async def kill_store(self):
        await asyncio.to_thread(self.s3.kill)
        await self.pause_s(0.1, 2)
        await asyncio.to_thread(self.s3.start)

    @property
    def kinds(self):
        return [self.kill_worker, self.stop_worker, self.kill_node, self.stop_node, self.kill_store]


async def caught_up(lift):
    async def look():
        (partition,) = (await lift.stream_info(NAME)).raw["partitions"]
        end, mark = partition["tiered_end"], partition["high_watermark"]
        return None if end == mark > 0 else (end, mark)

    await until_through(look, STALLED_S, "the bucket does not get what came in")


async def check_bucket(lift, store):
    """The verifier finds nothing, neither by names nor by bytes, and every offset is there once."""
    info = await lift.stream_info(NAME)
    path = PartitionPath(info.uuid, 0)
    assert (await asyncio.to_thread(verify, store, path)).problems == []
    assert (await asyncio.to_thread(scrub, store, path)).problems == []
    version = open_version(store, path)
    offsets = [offset for batch in version.read() for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(version.end))
    assert version.end == info.partitions[0].high_watermark


async def run(nats_server, node, s3, rounds, seed=1):
    rng = random.Random(seed)
    print(f"seed {seed}")
    faults = Faults(node, s3, rng)
    kinds = faults.kinds * -(-rounds // len(faults.kinds))
    rng.shuffle(kinds)
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream(NAME, subject=NAME, **SETTINGS)
        publishers = start_publishers(nats_server.url, [NAME], 2, VALUE_BYTES, PAUSE_S)
        try:
            for kind in kinds[:rounds]:
                await faults.pause_s(0.5, 2.5)
                await kind()
            for publisher in publishers:
                await publisher.finish()
        finally:
            for publisher in publishers:
                await publisher.cancel()
        await caught_up(lift)

        async def is_dropped():
            return (await lift.stream_info(NAME)).raw["partitions"][0]["local_start"] > 0

        await eventually(is_dropped, 40, "nothing leaves the disk")
        await assert_stored_once(lift, NAME, publishers)
        await check_bucket(lift, s3.store("kills"))
    assert "Traceback" not in node.log()


async def test_every_acked_message_is_read_back_once_across_the_seam(nats_server, node, s3):
    await run(nats_server, node, s3, 7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
async def test_every_acked_message_is_read_back_once_after_many_faults(nats_server, node, s3, seed):
    await run(nats_server, node, s3, 60, seed)


async def test_a_stop_is_no_reason_to_warn(nats_server, node, s3):
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream(NAME, subject=NAME, **SETTINGS)
        publishers = start_publishers(nats_server.url, [NAME], 1, VALUE_BYTES, PAUSE_S)
        await eventually(lambda: len(publishers[0].acked) > 1_000)
        (worker,) = await eventually(lambda: workers(node, "upload"))
        worker.suspend()  # so that it is busy for sure when the node stops
        await asyncio.sleep(1)
        worker.resume()
        code = await asyncio.to_thread(node.stop)
        await publishers[0].cancel()
    assert code == 0
    assert not [line for line in node.log().splitlines() if "WARNING" in line and "tier worker" in line]
