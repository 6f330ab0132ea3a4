"""A cluster and its bucket through a few faults, one after the other; `make chaos` has the long one."""

from __future__ import annotations

import random
import signal
import time

from chaos.tier_faults import TierFaults
from support.history import History, report
from support.tier_crew import STREAMS, running_crew

SEED = 5
LIMIT_S = 240  # it takes less than a minute where nothing else runs


async def test_a_bucket_through_a_few_faults(tmp_path):
    signal.alarm(LIMIT_S)
    history = History(time.time)
    async with running_crew(tmp_path, history, rate=40.0) as crew:
        faults = TierFaults(crew, random.Random(SEED), away_s=2.0)
        for fault in (faults.kill_the_worker, faults.store_full, faults.leader_and_worker_wake_late):
            history.happened(fault.__name__)
            await fault()
            await crew.goes_on()
        for stream in STREAMS:
            crew.read_anew(stream, "anew")
        await crew.finish()
        found = await crew.judge()
    assert not found, report(history, found, crew.kit.logs)
