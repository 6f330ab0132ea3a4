"""A group of eight processes under random faults: everything is processed, and nothing is committed that should not be.

`GROUP_CHAOS_S` says for how long, `CHAOS_SEED` repeats the choices.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from statistics import median

import pytest

from chaos.group_faults import GroupFaults
from support.cluster_kit import running_cluster
from support.group_crew import Crew
from support.history import report, timeline

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
CHAOS_S = float(os.environ.get("GROUP_CHAOS_S", "600"))
AROUND_S = 300  # to begin, to end, and to judge
RECOVERED_WITHIN_S = 45.0
PARTITIONS = 12
MEMBERS = ["static-a", "static-b", "", "", "", "", "", ""]


async def disturb(crew: Crew, chance: random.Random) -> int:
    """Fault after fault, until the time is over; how often."""
    faults = GroupFaults(crew, chance)
    until_s = time.monotonic() + CHAOS_S
    rounds = 0
    while time.monotonic() < until_s:
        rounds += 1
        what = await faults.one_or_two()
        try:
            await crew.recovered(time.time(), RECOVERED_WITHIN_S)
        except AssertionError as error:
            error.add_note(f"after {what}, in round {rounds} of seed {SEED}")
            raise
        await asyncio.sleep(chance.uniform(0.0, 1.5))
    return rounds


async def test_a_group_under_faults(tmp_path, capsys):
    signal.alarm(int(CHAOS_S) + AROUND_S)  # it knows how long it takes; the limit of all tests does not
    with capsys.disabled():
        print(f"\nCHAOS_SEED={SEED} GROUP_CHAOS_S={CHAOS_S:g}")
    async with running_cluster(tmp_path) as kit, kit.connect() as lift:
        crew = Crew(kit, lift, PARTITIONS)
        try:
            await crew.start(MEMBERS)
            rounds = await disturb(crew, random.Random(SEED))
            await crew.finish()
            found, figures = await crew.judge()
        except BaseException:
            with capsys.disabled():
                print("\n".join(timeline(crew.history, [time.time()], {})))
            raise
        finally:
            await crew.cancel()
    again = figures.takeovers or [0]
    with capsys.disabled():
        print(f"{rounds} rounds, {len(crew.disturbances)} disturbances, {len(crew.workers)} processes")
        print(f"{len(crew.history.publications)} messages, {crew.history.acked_count} acknowledged", end=", ")
        print(f"{figures.records} records handled, {figures.commits} commits in the log, {len(crew.asked)} times read")
        print(f"{figures.again} handled again, after {len(figures.takeovers)} takeovers", end=": ")
        print(f"median {median(again):g}, max {max(again)}; {figures.late} finished after their partition was lost")
        print(crew.table())
    assert not found, report(crew.history, found, kit.logs)
