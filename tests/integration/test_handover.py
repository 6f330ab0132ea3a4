"""Leaders change as planned while plain publishers go on: nothing is missing or double, and there is no gap."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from itertools import cycle

import nats
import pytest

from support.cluster import eventually
from support.cluster_kit import ClusterKit, create, leader_of, partitions, running_cluster, settled
from support.reading import gaps, read_all

BURST = 100
RESTARTED = {"preferred_return_s": 1.0, "leader_timeout_s": 5.0}
"""Publishers take all there is of the cores: a leader may be silent for longer than the usual second."""
STREAMS = {"orders": {}, "spread": {"partitions": 3, "spread": "hash"}, "ticks": {}}


class Flood:
    """A plain publisher that never waits for longer than NATS makes it.

    Attributes:
        sent: messages, each with the publisher's name and its number, or all alike.
        slowest_s: that NATS took for a burst.
    """

    def __init__(self, url, name, subject, *, is_uniform=False, pause_s=0.0):
        self._url, self._name, self._subject = url, name, subject
        self._is_uniform, self._pause_s = is_uniform, pause_s
        self.sent = 0

    def payload(self, number):
        return b"tick" if self._is_uniform else b"%s %d" % (self._name.encode(), number)

    async def run(self, stopped):
        client = await nats.connect(self._url)
        try:
            while not stopped.is_set():
                for _ in range(1 if self._is_uniform else BURST):
                    await client.publish(self._subject, self.payload(self.sent))
                    self.sent += 1
                await client.flush()
                await asyncio.sleep(self._pause_s)
        finally:
            await client.close()


@asynccontextmanager
async def flooded(urls, pause_s=0.0, alike=2):
    """Publishers on all streams, at these NATS servers in turn; `alike` of them publish messages that are all alike."""
    url = cycle(urls)
    floods = [
        *(Flood(next(url), f"o{number}", "orders.all", pause_s=pause_s) for number in range(2)),
        *(Flood(next(url), f"s{number}", f"spread.{number}", pause_s=pause_s) for number in range(3)),
        *(Flood(next(url), "tick", "ticks.all", is_uniform=True, pause_s=0.001) for _ in range(alike)),
    ]
    stopped = asyncio.Event()
    tasks = [asyncio.create_task(flood.run(stopped)) for flood in floods]
    try:
        yield floods
    finally:
        stopped.set()
        await asyncio.gather(*tasks)


async def check(lift, floods):
    """Each message is there once, and each publisher's in the order in which it published them."""
    await settled(lift, STREAMS)
    total = Counter()
    for flood in floods:
        total[flood._subject.partition(".")[0]] += flood.sent
    found = {}
    for stream in STREAMS:
        assert await gaps(lift, stream) == []
        found[stream] = [message.value for message in await read_all(lift, stream)]
    for flood in floods:
        if not flood._is_uniform:
            name = flood._name.encode() + b" "
            stream = flood._subject.partition(".")[0]
            mine = [value for value in found[stream] if value.startswith(name)]
            assert mine == [flood.payload(number) for number in range(flood.sent)], (
                f"{flood._name}: {len(mine)} of {flood.sent}"
            )
    assert Counter({stream: len(values) for stream, values in found.items()}) == total


async def all_led_and_in_sync(lift):
    found = [each for stream in STREAMS for each in await partitions(lift, stream)]
    return all(each.leader and set(each.isr) == set(each.replicas) for each in found)


def handed_over(kit):
    """What the nodes' logs say of handovers."""
    return [line for path in kit.logs.values() for line in path.read_text().splitlines() if "handed over" in line]


async def make_streams(lift):
    for stream, settings in STREAMS.items():
        await create(lift, stream, f"{stream}.>", **settings)


async def restart_one_after_the_other(kit, lift):
    """All nodes; returns when the preferred replicas lead again."""
    for name, node in kit.nodes.items():
        await asyncio.sleep(0.5)
        began_s = time.monotonic()
        assert await asyncio.to_thread(node.stop) == 0
        print(name, "stopped in", time.monotonic() - began_s)
        await asyncio.to_thread(kit.start_nodes)
        await eventually(lambda: all_led_and_in_sync(lift), 40.0, f"{name} does not come into sync")
    preferred = {s: [each.replicas[0] for each in await partitions(lift, s)] for s in STREAMS}

    async def returned():
        return preferred == {s: [each.leader for each in await partitions(lift, s)] for s in STREAMS}

    await eventually(returned, 40.0, "the preferred replicas do not lead again")


async def test_a_rolling_restart_misses_no_plain_message(tmp_path):
    async with running_cluster(tmp_path, cluster=RESTARTED) as kit, kit.connect() as lift:
        await make_streams(lift)
        async with flooded([kit.url]) as floods:
            await restart_one_after_the_other(kit, lift)
        print("\n".join(handed_over(kit)), sum(flood.sent for flood in floods))
        await check(lift, floods)


@pytest.mark.parametrize("publishers_at", [[2], [0, 1, 2]])
async def test_leaders_that_listen_at_different_nats_servers(tmp_path, publishers_at):
    """Two nodes at one server and one at another; the publishers at a third one, or at all of them.

    Their messages differ: of messages that are alike some come twice where nodes hear them more than 50 ms apart.
    """
    kit = ClusterKit(tmp_path, nats_servers=3, cluster=RESTARTED)
    for number, node in enumerate(kit.nodes.values()):
        node.command[node.command.index(kit.url)] = kit.nats[number % 2].url
    try:
        await asyncio.to_thread(kit.start)
        async with kit.connect() as lift:
            await make_streams(lift)
            async with flooded([kit.nats[number].url for number in publishers_at], 0.005, alike=0) as floods:
                await restart_one_after_the_other(kit, lift)
            print("\n".join(handed_over(kit)), sum(flood.sent for flood in floods))
            await check(lift, floods)
    finally:
        await asyncio.to_thread(kit.close)


async def test_a_drain_and_a_reassignment_miss_no_plain_message(tmp_path):
    """See above for the time of silence."""
    async with running_cluster(tmp_path, 4, cluster={"leader_timeout_s": 5.0}) as kit, kit.connect() as lift:
        await make_streams(lift)
        async with flooded([kit.url]) as floods:
            await asyncio.sleep(0.5)
            drained = await leader_of(lift, "orders")
            await lift.drain_node(drained)

            async def emptied():
                found = [each for stream in STREAMS for each in await partitions(lift, stream)]
                return not any(drained in each.replicas for each in found)

            await eventually(emptied, 40.0, f"{drained} is not empty")
            await lift.drain_node(drained, cancel=True)
            (orders,) = await partitions(lift, "orders")
            others = [name for name in kit.nodes if name != orders.leader]
            await lift.reassign_stream("orders", partitions={0: others})

            async def moved():
                return list((await partitions(lift, "orders"))[0].replicas) == others

            await eventually(moved, 40.0, "orders is not where it was moved to")
        print("\n".join(handed_over(kit)), sum(flood.sent for flood in floods))
        await check(lift, floods)
