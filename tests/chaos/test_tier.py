"""Rounds of random faults of the bucket, and of those who write to it, under load: nothing of what was acknowledged is
missing on any side of the seam, sums balance, and what nobody names goes.

`CHAOS_SEED` repeats a plan of faults, `TIER_CHAOS_ROUNDS` makes it longer or shorter.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from chaos.tier_faults import TierFaults
from support.history import History, report
from support.tier_crew import STREAMS, TierCrew, running_crew

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
ROUNDS = int(os.environ.get("TIER_CHAOS_ROUNDS", "16"))
ROUND_S = 120
AROUND_S = 400  # to begin, to end, and to judge
ANEW_EVERY = 4  # rounds


async def run_rounds(crew: TierCrew, chance: random.Random) -> list[str]:
    """Fault after fault; a table of what happened and how soon everything went on."""
    faults = TierFaults(crew, chance)
    lines = []
    for number, fault in enumerate(faults.plan(ROUNDS), 1):
        crew.history.happened(f"round {number}: {fault.__name__}")
        began_s = time.monotonic()
        try:
            await fault()
            waited_s = await crew.goes_on()
        except Exception as error:
            error.add_note(
                f"in round {number}, {fault.__name__}, of seed {SEED}; the nodes' logs are in {crew.kit.home}"
            )
            raise
        if number % ANEW_EVERY == 0:
            for stream in STREAMS:
                crew.read_anew(stream, f"anew after round {number}")
        lines.append(f"{number:3} {fault.__name__:28} {time.monotonic() - began_s:6.1f} s {waited_s:6.2f} s until acks")
    return lines


async def test_a_bucket_under_faults(tmp_path, capsys):
    signal.alarm(ROUNDS * ROUND_S + AROUND_S)  # it knows how long it takes; the limit of all tests does not
    history = History(time.time)
    with capsys.disabled():
        print(f"\nCHAOS_SEED={SEED} TIER_CHAOS_ROUNDS={ROUNDS}")
    try:
        async with running_crew(tmp_path, history, rate=60.0) as crew:
            lines = await run_rounds(crew, random.Random(SEED))
            await crew.finish()
            found = await crew.judge()
            status = await crew.lift.tier_status(limit=0)
    finally:
        with capsys.disabled():
            print(f"{len(history.publications)} messages, {history.acked_count} acknowledged", end=", ")
            print(f"{len(history.sightings)} records read")
    with capsys.disabled():
        print("\n".join(lines))
        print(f"requests {status.requests}, failures {status.failures}")
    assert not found, report(history, found, crew.kit.logs)
