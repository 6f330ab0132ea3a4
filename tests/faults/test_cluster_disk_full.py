"""One node's disk is full: it says so, the others go on, and with room it is whole again."""

from __future__ import annotations

import asyncio

import pytest

import liftpy
from liftpy_envelope.errors import AckErrorCode
from liftpy_server.consensus.ticker import EXIT_CODE
from support.bad_days import NODES, Published, in_sync, told, whole_again
from support.cluster import eventually
from support.cluster_kit import ClusterKit, create, leader_of, partitions
from support.small_disk import SmallDisk

MIB = 1024 * 1024
SMALL_DISK = 32 * MIB
SMALL = "node-3"
OTHERS = ("node-1", "node-2")
MORE_MAX = 50  # the metadata journal has room for no more in the pages that it has
ANSWER_S = 2.0
QUICK = {"replica_lag_max_s": 2.0}
LOOK_S = 0.05  # who counts is waited for much longer


@pytest.fixture
async def kit(tmp_path):
    """A cluster whose last node has a small disk, of which a tenth is kept free."""
    kit = ClusterKit(tmp_path, 3, cluster=QUICK)
    kit.disk = SmallDisk(kit.nodes[SMALL].data, SMALL_DISK)
    try:
        if not kit.disk.is_there:
            pytest.skip(f"a small file system needs the right to mount one: {kit.disk.refusal}")
        await asyncio.to_thread(kit.start)
        yield kit
    finally:
        await asyncio.to_thread(kit.close)
        kit.disk.close()


@pytest.fixture
async def lift(kit):
    async with kit.connect() as lift:
        yield lift


async def stream_where(lift, is_wanted, prefix="s"):
    """A stream with the wanted leader, and some messages; leaders are spread over the nodes."""
    for number in range(2 * len(NODES)):
        name = f"{prefix}{number}"
        await create(lift, name, name)
        if is_wanted(await leader_of(lift, name)):
            published = Published(lift, name)
            await published.more(20)
            return published
    raise AssertionError("no stream is led as wanted")


async def leads_not(lift, stream):
    return await leader_of(lift, stream) != SMALL


async def test_the_disk_of_a_follower_is_full(kit, lift):
    """It leaves the in-sync replicas, and nobody waits for it."""
    published = await stream_where(lift, lambda leader: leader != SMALL)
    small = kit.nodes[SMALL]
    kit.disk.fill(MIB)
    await told(small, "bytes free: messages are refused")
    await published.more(10, size=20_000)
    await told(small, f"stream {published.stream} partition 0: can not follow: the node's disk is full")
    await in_sync(lift, published.stream, OTHERS)
    publishing = asyncio.ensure_future(published.more(10, size=20_000))
    counted = set()
    while not publishing.done():
        counted.update(*[each.isr for each in await partitions(lift, published.stream)])
        await asyncio.wait({publishing}, timeout=LOOK_S)
    await publishing
    assert SMALL not in counted, "they wait for it"
    kit.disk.free()
    await told(small, "has room again: messages are taken")
    await whole_again(kit, lift, published)


async def test_the_disk_of_a_leader_is_full(kit, lift):
    """It says so to publishers, and goes on serving; other streams go on."""
    published = await stream_where(lift, lambda leader: leader == SMALL)
    other = await stream_where(lift, lambda leader: leader != SMALL, "other")
    kit.disk.fill(MIB)
    await told(kit.nodes[SMALL], "bytes free: messages are refused")
    with pytest.raises(liftpy.PublishRefusedError, match="the node's disk is full") as raised:
        await lift.publish(published.stream, b"refused")
    assert raised.value.code == AckErrorCode.STORAGE_FULL
    await published.check()
    await other.more(10)
    assert (await lift.node_info(SMALL))["storage_full"]
    kit.disk.free()
    await told(kit.nodes[SMALL], "has room again: messages are taken")
    await published.more(10)
    await whole_again(kit, lift, published, other)


async def test_the_disk_is_full_to_the_last_byte(kit, lift):
    """A node that can not write its metadata stops, says why, and starts again when there is room."""
    published = await stream_where(lift, lambda leader: leader == SMALL)
    small = kit.nodes[SMALL]
    kit.disk.fill(0)
    made = 0
    while small.is_running:
        assert made < MORE_MAX
        creating = asyncio.ensure_future(lift.create_stream(f"more{made}", subject=f"more.{made}", replicas=2))
        await asyncio.wait({creating}, timeout=ANSWER_S)  # it may be the node that stops that was asked
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
        kit.disk.fill(0)
        made += 1
    assert small.process.returncode == EXIT_CODE
    last = small.log().strip().splitlines()[-1]
    assert "the metadata can not go on, and the node stops" in last
    assert f"writing the metadata journal {small.data / 'metadata'}" in last
    assert last.endswith("No space left on device")
    await published.more(10)
    await eventually(lambda: leads_not(lift, published.stream))
    kit.disk.free()
    await asyncio.to_thread(kit.start_nodes)
    await whole_again(kit, lift, published)
