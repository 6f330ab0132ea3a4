"""Commits of one node per second, from raw pull connections."""

from __future__ import annotations

import asyncio
import secrets
import time

import psutil
import pytest

from support.group_requests import GroupPull, offsets_of

CONNECTIONS = 64
PER_REQUEST = 10
SECONDS = 3.0


@pytest.mark.slow
async def test_commits_per_second(lift, node):
    uuid = bytes.fromhex((await lift.create_stream("orders", subject="orders.>", partitions=PER_REQUEST)).uuid)
    pulls = [await GroupPull.open(lift, node.pull_port) for _ in range(CONNECTIONS)]
    await pulls[0].find("g0")
    names = [f"g{number}" for number in range(CONNECTIONS)]
    members = [await pulls[0].join(name, secrets.token_bytes(16), ["orders"]) for name in names]
    latencies_s: list[float] = []
    until_s = time.perf_counter() + SECONDS

    async def run(pull, name, member):
        sequence = 0
        while (sent_s := time.perf_counter()) < until_s:
            sequence += 1
            row = offsets_of(uuid, "orders", dict.fromkeys(range(PER_REQUEST), 0))
            answer = await pull.commit(name, member, sequence, [row])
            assert (answer.error, answer.refusals) == (0, ())
            latencies_s.append(time.perf_counter() - sent_s)

    process = psutil.Process(node.process.pid)
    before_s = sum(process.cpu_times()[:2])
    await asyncio.gather(*map(run, pulls, names, members))
    spent_s = sum(process.cpu_times()[:2]) - before_s
    count = len(latencies_s) * PER_REQUEST
    latencies_s.sort()
    p50_ms, p99_ms = (latencies_s[len(latencies_s) * percent // 100] * 1e3 for percent in (50, 99))
    print(
        f"{count / SECONDS:,.0f} offsets/s in {len(latencies_s) / SECONDS:,.0f} requests/s, "
        f"p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms; "
        f"{count / spent_s:,.0f} per second of the node's processor time"
    )
    assert count / spent_s > 20_000
    for pull in pulls:
        pull.close()
