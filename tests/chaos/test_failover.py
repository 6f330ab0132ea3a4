"""How long nothing is acknowledged after a kill, and what is lost of messages that ask for no ack.

`FAILOVER_KILLS` says how many kills there are, `FAILOVER_PARTITIONS` how large the large stream is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager

import pytest

from chaos.measuring import AckedProbe, PlainProbe, Row, table
from support.cluster import eventually
from support.cluster_kit import create, metadata_leader, partitions, running_cluster, settled
from support.reading import values

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

KILLS = int(os.environ.get("FAILOVER_KILLS", "50"))
PARTITIONS = int(os.environ.get("FAILOVER_PARTITIONS", "1000"))
LARGE_KILLS = max(1, KILLS // 10)
STREAM_PARTITIONS_MAX = 1_000
PROBED = 200  # subjects of the large stream that are probed
RETURN_S = {"preferred_return_s": 1.0}  # so that soon each node leads something again; it says nothing of failovers
SMALL = ("s0", "s1", "s2")
BACK_S_MAX = 10.0
IN_SYNC_S_MAX = 120.0
KILL_S = 60  # with all that follows from it, until all is as it was
LARGE_KILL_S = 240
AROUND_S = 400  # to begin, and to judge


@asynccontextmanager
async def probes(*all_of_them):
    """Started, and stopped."""
    started = []
    try:
        for probe in all_of_them:
            await probe.start()
            started.append(probe)
        yield
    finally:
        for probe in started:
            await probe.stop()


async def victim_and_stream(lift, kind):
    """Whom to kill, and the stream to look at."""

    async def find():
        leaders = {name: (await partitions(lift, name))[0].leader for name in SMALL}
        steward = await metadata_leader(lift)
        for name, leader in leaders.items():
            if kind == "metadata leader" and leader not in {None, steward}:
                return steward, name
            if kind == "both" and leader == steward:
                return steward, name
            if kind == "stream leader" and leader not in {None, steward}:
                return leader, name
        return None

    return await eventually(find, 30.0, f"no stream is led such that its victim is {kind}")


async def test_failover(tmp_path, capsys):
    signal.alarm(KILLS * KILL_S + AROUND_S)  # it knows how long it takes; the limit of all tests does not
    kinds = ("stream leader", "metadata leader", "both")
    back_s = {kind: [] for kind in kinds}
    gaps = {}
    async with running_cluster(tmp_path, cluster=RETURN_S) as kit, kit.connect() as lift:
        for name in SMALL:
            await create(lift, name, name)
        acked = {name: AckedProbe(kit.url, [name]) for name in SMALL}
        plain = {name: PlainProbe(kit.url, name) for name in SMALL}
        async with probes(*acked.values(), *plain.values()):
            for number in range(1, KILLS + 1):
                kind = kinds[number % len(kinds)]
                victim, stream = await victim_and_stream(lift, kind)
                for probe in plain.values():
                    probe.gap = number
                await asyncio.sleep(0.2)
                killed_s = await asyncio.to_thread(kit.kill, victim)
                back_s[kind] += await acked[stream].back_after(killed_s)
                gaps[number] = (kind, stream)
                await asyncio.to_thread(kit.start_nodes)
                await eventually(lambda: all_in_sync(lift), 30.0, "not all replicas are in sync again")
        await settled(lift, SMALL)
        missing, doubled = {}, {}
        for name in SMALL:
            missing[name], doubled[name] = plain[name].missing(await values(lift, name))
    rows = [Row(f"back after a kill, {kind}", back_s[kind]) for kind in kinds if back_s[kind]]
    for what, counts in (("lost", missing), ("doubled", doubled)):
        for kind in kinds:
            found = [counts[stream][gap] for gap, (each, stream) in gaps.items() if each == kind]
            rows += [Row(f"plain messages {what}, {kind}", found, "messages of about 1,000/s")] if found else []
    with capsys.disabled():
        print(f"\nFAILOVER_KILLS={KILLS}\n{table(rows)}")
    assert max(max(each) for each in back_s.values() if each) < BACK_S_MAX


async def all_in_sync(lift):
    """Whether every replica of the small streams is."""
    for name in SMALL:
        for each in await partitions(lift, name):
            if each.leader is None or set(each.isr) != set(each.replicas):
                return False
    return True


async def test_failover_of_many_partitions(tmp_path, capsys):
    signal.alarm(LARGE_KILLS * LARGE_KILL_S + AROUND_S)
    names = [f"large{number}" for number in range(-(-PARTITIONS // STREAM_PARTITIONS_MAX))]
    count = PARTITIONS // len(names)
    first, last, in_sync = [], [], []
    async with running_cluster(tmp_path, cluster=RETURN_S) as kit, kit.connect(timeout_s=30.0) as lift:
        began_s = time.monotonic()
        for name in names:
            await create(lift, name, f"{name}.*", partitions=count)
        created_s = time.monotonic() - began_s
        name = names[0]
        probe = AckedProbe(kit.url, [f"{name}.{number}" for number in range(PROBED)])
        async with probes(probe):
            for _ in range(LARGE_KILLS):
                probed = await probe.partitions(PROBED)
                victim = await metadata_leader(lift)
                concerned = [each.partition for each in await partitions(lift, name) if each.leader == victim]
                concerned = probed & set(concerned)
                killed_s = await asyncio.to_thread(kit.kill, victim)
                back_s = await probe.back_after(killed_s, concerned or probed)
                first.append(min(back_s))
                last.append(max(back_s))
                started_s = time.monotonic()
                await asyncio.to_thread(kit.start_nodes)
                await eventually(lambda: none_is_missing(lift), IN_SYNC_S_MAX, "not all replicas are in sync again")
                in_sync.append(time.monotonic() - started_s)
    rows = [
        Row(f"creating {PARTITIONS} partitions", [created_s]),
        Row("first partition back, a node that is both", first),
        Row(f"last of about {PROBED // 3} probed partitions back", last),
        Row("from the start of the killed node to all in sync", in_sync),
    ]
    with capsys.disabled():
        print(f"\nFAILOVER_PARTITIONS={PARTITIONS}\n{table(rows)}")


async def none_is_missing(lift):
    """Whether the cluster has all replicas in sync."""
    details = await lift.cluster_info()
    return not (details.under_replicated_count or details.leaderless_count)
