"""What `liftpy doctor` thinks of what it measured, at each of its limits."""

from __future__ import annotations

import pytest

from liftpy.cli.cluster.findings import (
    judge_clocks,
    judge_files,
    judge_fsync,
    judge_nats,
    judge_space,
    judge_versions,
)

GIB = 2**30


@pytest.mark.parametrize(("soft", "state"), [(1_024, "warning"), (16_383, "warning"), (16_384, "ok")])
def test_files(soft, state):
    found = judge_files(soft, 1_048_576)
    assert (found.state, bool(found.advice)) == (state, state != "ok")


@pytest.mark.parametrize(("slow_s", "state"), [(0.001, "ok"), (0.02, "warning"), (0.3, "problem")])
def test_a_disk_is_judged_by_its_slow_syncs(slow_s, state):
    """One in a hundred is every ack of somebody."""
    found = judge_fsync([0.001] * 197 + [slow_s] * 3)
    assert found.state == state
    assert found.text == f"median 1.00 ms, p99 {slow_s * 1e3:.2f} ms over 200"


@pytest.mark.parametrize(("free", "state"), [(50 * GIB, "ok"), (9 * GIB, "warning"), (GIB // 16, "problem")])
def test_space(free, state):
    assert judge_space(free, 100 * GIB, GIB // 16).state == state


@pytest.mark.parametrize(("ahead_s", "state"), [(0.5, "ok"), (2.0, "warning"), (-600.0, "problem")])
def test_the_clock_that_is_wrong_is_named(ahead_s, state):
    found = judge_clocks({"n1": (0.0, 0.01), "n2": (ahead_s, 0.01), "n3": (0.01, 0.01)})
    assert found.state == state
    assert state == "ok" or "clock of n2" in found.advice


def test_a_slow_answer_accuses_no_clock():
    assert judge_clocks({"n1": (0.0, 0.0), "n2": (2.0, 2.0)}).state == "ok"


def test_versions():
    assert judge_versions({"n1": "0.2.0", "n2": "0.2.0"}).state == "ok"
    found = judge_versions({"n1": "0.2.0", "n2": "0.1.0"})
    assert (found.state, found.text) == ("warning", "n1 runs 0.2.0, n2 runs 0.1.0")


@pytest.mark.parametrize(
    ("version", "rtt_s", "advice", "states"),
    [
        ("2.15.1", 0.001, None, ["ok", "ok"]),
        ("2.9.3", 0.001, None, ["warning", "ok"]),
        ("3.0.0-beta", 0.05, "it holds 64 MiB", ["ok", "warning", "warning"]),
    ],
)
def test_nats(version, rtt_s, advice, states):
    assert [each.state for each in judge_nats(version, rtt_s, advice)] == states
