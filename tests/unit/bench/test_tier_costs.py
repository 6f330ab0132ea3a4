"""The simulated costs of the bucket run, and come to figures that can be."""

from __future__ import annotations

from bench.tier_costs import costs_beside
from bench.tier_month import quiet_month
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


def test_a_fortnight_of_quiet_streams():
    name = "tier, 14 days of 100 streams with a message a minute"
    rows = {row.workload.removeprefix(f"{name}, "): row for row in quiet_month(100, 14, 21_600.0)}
    figures = {workload: row.median("liftpy") for workload, row in rows.items()}
    assert figures["PUTs per object"] == 3
    assert rows["manifest per object"].ratio < 2
    assert 1 <= figures["members of a stream"] < 6
    assert figures["GiB written per GiB of rounds"] < 6
    assert figures["manifest of one stream: requests"] == 2
    assert figures["manifest of one stream: bytes"] < 40
