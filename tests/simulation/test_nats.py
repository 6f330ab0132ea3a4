"""The real shell at a model of nats-server: no plain message is missing without a gap, no gap is without a cause.

A failure prints the command that has it again.
"""

from __future__ import annotations

from simulation.nats_faults import FAULTS
from simulation.nats_world import run_nats


def test_nothing_is_missing_and_no_gap_is_there_when_nothing_goes_wrong():
    results = [run_nats(seed, without=frozenset(FAULTS)) for seed in range(2)]
    assert sum(result.plain for result in results) > 1_000
    assert [(result.lost, result.gaps) for result in results] == [(0, 0)] * 2
