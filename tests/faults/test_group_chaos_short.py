"""A group of processes through a few faults, one after the other, on three nodes; `make chaos` has the long one."""

from __future__ import annotations

import asyncio
import time

from support.cluster_kit import running_cluster
from support.group_crew import Crew, frozen
from support.history import report

PARTITIONS = 6
SESSION_S = 2.0
RECOVERED_WITHIN_S = 30.0


async def test_a_group_through_a_few_faults(tmp_path):
    async with running_cluster(tmp_path) as kit, kit.connect() as lift:
        crew = Crew(kit, lift, PARTITIONS, session_s=SESSION_S, interval_s=0.3)
        try:
            await crew.start(["", "", "", ""])
            killed, sleeper, leaver, _ = crew.serving()
            await crew.all_at_work()
            await crew.kill(killed)
            with frozen(sleeper):  # until others have what was its own
                await crew.recovered(time.time(), RECOVERED_WITHIN_S)
            crew.add()
            await crew.dismiss(leaver)
            await asyncio.to_thread(kit.kill, await crew.coordinator())
            await crew.recovered(time.time(), RECOVERED_WITHIN_S)
            await asyncio.to_thread(kit.start_nodes)
            await crew.finish()
            assert sleeper.count("lost") >= 1, "it noticed that it was out"
            found, figures = await crew.judge()
        finally:
            await crew.cancel()
    assert not found, report(crew.history, found, kit.logs)
    assert figures.commits > PARTITIONS
    assert figures.again > 0, "a process was killed in the midst of its work"
