"""The benchmarks of groups run to their end, and count what they say they count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.group_workloads import consume, offsets, replay
from bench.report import target_of
from bench.rig import Rig
from bench.row import Plan

SMALL = replace(Plan.quick(), runs=1, offsets_s=0.5, places=200, replayed=20_000, consume=20_000)


@pytest.mark.slow
def test_every_workload_of_groups_says_something(tmp_path):
    with Rig(tmp_path) as rig:
        ten, hundred, size = offsets(rig, SMALL)
        (started,) = replay(rig, SMALL)
        cost, against = consume(rig, SMALL)
    for row in (ten, hundred, cost, against, size):
        assert row.ratio > 0
    assert [target_of(row)[1] for row in (ten, hundred, size, started)] == [50_000.0, 50_000.0, 1.0, 5.0]
    assert size.ratio < 1
    assert 0 < started.median("liftpy") < 30
    assert cost.runs["liftpy"] == against.runs["liftpy"]
