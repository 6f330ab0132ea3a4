"""The simulated costs of the bucket run, and come to figures that can be."""

from __future__ import annotations

from bench.tier_costs import costs_beside
from bench.tier_shared import shared_rounds


def test_costs_beside(tmp_path):
    rows = {row.workload: row.median("liftpy") for row in costs_beside(tmp_path, 3, 192 << 20, 300)}
    assert all(figure is not None for figure in rows.values())
    assert 2 * 16 <= rows["tier, cost: PUTs per GiB, one stream at 10 MiB/s"] < 200
    assert rows["tier, cost: requests until the first record, nothing in memory"] <= 4
    assert 1.0 <= rows["tier, cost: bytes written per byte, one stream at 10 MiB/s"] < 2.1


def test_shared_rounds(tmp_path):
    rows = {row.workload: row.median("liftpy") for row in shared_rounds(tmp_path, 16, 20)}
    assert rows["tier, 16 streams with a message a minute, PUTs per round"] <= 3
