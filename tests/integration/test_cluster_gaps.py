"""Whatever a plain message meets in a cluster, it is stored, or its time lies in a gap that any node lists."""

from __future__ import annotations

import asyncio
import contextlib
import time

import nats
import pytest

from support.cluster import eventually
from support.cluster_kit import ClusterKit, create, leader_of, running_cluster, settled
from support.nats_proxy import NatsProxy
from support.reading import gaps, values

PAUSE_S = 0.0005


class Publisher:
    """Publishes numbered messages without an ack, as fast as one may, and remembers when.

    Attributes:
        times_ns: before each of them was handed to NATS.
    """

    def __init__(self, subject):
        self.subject = subject
        self.times_ns = []
        self.is_done = False

    async def run(self, url):
        async with await nats.connect(url) as client:
            while not self.is_done:
                for _ in range(20):
                    self.times_ns.append(time.time_ns())
                    await client.publish(self.subject, b"%d" % (len(self.times_ns) - 1))
                await client.flush()
                await asyncio.sleep(PAUSE_S)


@contextlib.asynccontextmanager
async def publishing(url, subject):
    publisher = Publisher(subject)
    task = asyncio.create_task(publisher.run(url))
    try:
        yield publisher
    finally:
        publisher.is_done = True
        await task


async def closed_gaps(lift, name):
    """The gaps, once there are some and all are over."""
    known = await gaps(lift, name)
    return known if known and all(gap["until_ns"] is not None for gap in known) else None


async def check(lift, name, publisher, known):
    """Every message is stored, or was published in a gap. Returns when the first and the last missing one was."""
    last = len(publisher.times_ns) - 1
    stored = await eventually(lambda: stored_with(lift, name, last))
    missing = [at_ns for number, at_ns in enumerate(publisher.times_ns) if number not in stored]
    outside = [at for at in missing if not any(gap["since_ns"] <= at <= gap["until_ns"] for gap in known)]
    assert not outside, f"{len(outside)} of {len(missing)} missing messages lie in no gap: {outside[:3]}, {known}"
    took_s = (missing[-1] - missing[0]) / 1e9 if missing else 0.0
    spans = [f"{(gap['until_ns'] - gap['since_ns']) / 1e9:.2f} s ({gap['cause']})" for gap in known]
    print(f"{len(missing):,} of {last + 1:,} messages of {took_s:.2f} s are missing, all of them in gaps: {spans}")
    return (missing[0], missing[-1]) if missing else (0, 0)


async def stored_with(lift, name, number):
    """What is stored, once this message is."""
    stored = set(map(int, await values(lift, name)))
    return stored if number in stored else None


async def published(publisher, more):
    count = len(publisher.times_ns) + more
    await eventually(lambda: len(publisher.times_ns) >= count)


async def test_what_a_dead_leader_took_along_lies_in_a_gap(tmp_path):
    """What NATS held for it, and what it had not replicated; the gap is known wherever one asks, and after it all."""
    async with running_cluster(tmp_path) as kit, kit.connect() as lift:
        await create(lift, "s", "s")
        leader = await leader_of(lift, "s")
        async with publishing(kit.url, "s") as publisher:
            await published(publisher, 1_000)
            killed_ns = time.time_ns()
            await asyncio.to_thread(kit.kill, leader)
            known = await eventually(lambda: closed_gaps(lift, "s"))
            await published(publisher, 1_000)
        first_ns, last_ns = await check(lift, "s", publisher, known)
        assert first_ns
        (gap,) = known
        assert gap["since_ns"] < killed_ns < last_ns <= gap["until_ns"]
        assert killed_ns - gap["since_ns"] < 4 * 10**9, "not much before the last answered question"
        await asyncio.to_thread(kit.start_nodes, [leader])
        await settled(lift, ["s"])
        await asyncio.to_thread(kit.stop_nodes)
        await asyncio.to_thread(kit.start_nodes)
        again = await gaps(lift, "s")
        assert gap in again


@pytest.fixture
async def behind_proxies(tmp_path):
    """A cluster each of whose nodes reaches NATS by a proxy of its own."""
    kit = ClusterKit(tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        proxies = {}
        for name, node in kit.nodes.items():
            proxies[name] = await stack.enter_async_context(NatsProxy(kit.nats[0].port))
            node.command[node.command.index(kit.url)] = proxies[name].url
        try:
            await asyncio.to_thread(kit.start)
            yield kit, proxies
        finally:
            await asyncio.to_thread(kit.close)


async def test_a_leader_that_nats_does_not_reach_lets_another_lead(behind_proxies):
    kit, proxies = behind_proxies
    async with kit.connect() as lift:
        await create(lift, "s", "s")
        leader = await leader_of(lift, "s")
        async with publishing(kit.url, "s") as publisher:
            await published(publisher, 100)
            began_s = time.monotonic()
            await proxies[leader].cut(f"{leader} ingest")
            await eventually(lambda: led_by_another(lift, leader))
            took_s = time.monotonic() - began_s
            known = await eventually(lambda: closed_gaps(lift, "s"))
            await published(publisher, 1_000)
        assert took_s < 5, "about a second, and what a slow machine adds"
        first_ns, last_ns = await check(lift, "s", publisher, known)
        assert 0 < last_ns - first_ns < 5 * 10**9
        assert {gap["cause"] for gap in known} == {"the NATS connection was lost"}
        proxies[leader].mend()


async def led_by_another(lift, node):
    (partition,) = (await lift.stream_info("s")).partitions
    return partition.leader not in {None, node}
