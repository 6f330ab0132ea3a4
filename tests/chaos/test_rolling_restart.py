"""Every node is stopped and started in turn, under load: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from chaos.measuring import AckedProbe, Row, table
from support.cluster import eventually
from support.cluster_kit import create, partitions, running_cluster, settled
from support.history import History, check, report
from support.reading import read_all
from support.recorded_load import RecordedConsumer, RecordedPublisher
from support.replica_files import check_replicas

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

PUBLISHERS = 3
GAP_S_MAX = 5.0


def longest_gap_s(probe, since_s):
    """Between two acks, from a moment on."""
    moments = [since_s, *(acked_s for _, acked_s, _ in probe.acked if acked_s >= since_s)]
    return max(after - before for before, after in pairwise(moments))


async def all_in_sync(lift):
    return all(each.leader and set(each.isr) == set(each.replicas) for each in await partitions(lift, "s"))


async def test_a_rolling_restart_loses_nothing(tmp_path, capsys):
    history = History(time.time)
    gaps_s, stops_s = [], []
    async with running_cluster(tmp_path) as kit, kit.connect() as lift:
        await create(lift, "s", "s")
        await create(lift, "probed", "probed")
        publishers = [RecordedPublisher(kit.url, history, "s", lambda _: "s", f"p{n}") for n in range(PUBLISHERS)]
        consumer = RecordedConsumer(kit.url, history, "s", "reader", {0: 0})
        probe = AckedProbe(kit.url, ["probed"])
        await probe.start()
        try:
            for each in (*publishers, consumer):
                each.start()
            await eventually(lambda: all(each.acked > 100 for each in publishers))
            for name, node in kit.nodes.items():
                began_s = time.monotonic()
                history.happened(f"SIGTERM {name}")
                assert await asyncio.to_thread(node.stop) == 0
                stops_s.append(time.monotonic() - began_s)
                await asyncio.to_thread(kit.start_nodes)
                history.happened(f"{name} is up")
                await eventually(lambda: all_in_sync(lift), 30.0, f"{name} does not come into sync")
                acks = len(probe.acked)
                await eventually(lambda acks=acks: len(probe.acked) > acks)
                gaps_s.append(longest_gap_s(probe, began_s))
            for each in publishers:
                await each.finish()
            await settled(lift, ["s"])
            final = {("s", 0): [message.value or b"" for message in await read_all(lift, "s")]}
            await eventually(lambda: consumer.next_offsets[0] == len(final["s", 0]))
            await consumer.finish()
        finally:
            await probe.stop()
            for each in (*publishers, consumer):
                await each.cancel()
        await asyncio.to_thread(kit.stop_nodes)
        found = [*check(history, final), *check_replicas({n: node.data for n, node in kit.nodes.items()}, "s", 1)]
        assert not found, report(history, found, kit.logs)
    with capsys.disabled():
        rows = [
            Row("longest time without an ack, rolling restart", gaps_s),
            Row("time that a node takes to stop", stops_s),
        ]
        print(f"\n{table(rows)}")
    assert max(gaps_s) < GAP_S_MAX
