"""The real voters under every fault, thousands of times; and mistakes in them, each of which must be found.

A failure names its seed and the command that runs it again.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from simulation.raft_bugs import BUGS, planted
from simulation.raft_world import FAULTS, ViolationError, run
from support.examples import first

TESTS = Path(__file__).parents[1]
FOUND_SOON = frozenset({"committed_entries_cut", "snapshot_without_its_term", "vote_for_a_shorter_log"})
BUDGET_SEEDS = 200


@pytest.fixture(autouse=True)
def quiet():
    """A voter logs what it repairs, and the simulation damages much."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run_all(seeds):
    seen: Counter[str] = Counter()
    acked = 0
    for seed in seeds:
        result = run(seed)
        seen += Counter(result.seen)
        acked += result.acked
    return seen, acked


@pytest.mark.parametrize("twenty", first(1, range(3)))
def test_no_promise_is_broken(twenty):
    seen, acked = run_all(range(twenty * 20, twenty * 20 + 20))
    assert acked > 500
    assert seen["elected"] > 40


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(60))
def test_no_promise_is_broken_in_thousands_of_runs(hundred):
    seen, _ = run_all(range(hundred * 100, hundred * 100 + 100))
    expected = {"kill", "crash", "crash of all", "stop", "isolate", "one way", "links break", "disk fails", "damage"}
    expected |= {"hand over", "removed", "joins", "repaired", "named", "read", "power lost in an operation"}
    assert expected - set(seen) == set()
    assert len(FAULTS) <= len(expected)


def failure_of(seed):
    try:
        run(seed)
    except ViolationError as error:
        return str(error)
    return None


@pytest.mark.thorough
@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=[] if bug in FOUND_SOON else pytest.mark.slow) for bug in BUGS]
)
def test_a_planted_bug_is_found(bug):
    with planted(bug):
        found = next((seed for seed in range(BUDGET_SEEDS) if failure_of(seed)), None)
        assert found is not None, f"not found with {BUDGET_SEEDS} seeds"
        failure = failure_of(found)
        print(f"{bug}, {found + 1} seeds: {failure}")
        assert f"python -m simulation.raft_world {found}" in failure
        assert failure == failure_of(found)
    assert failure_of(found) is None


def test_a_seed_does_the_same_in_another_process():
    digests = [run(seed).digest for seed in range(5)]
    assert len(set(digests)) == 5
    program = "from simulation.raft_world import run; print([run(seed).digest for seed in range(5)])"
    for hash_seed in ("1", "2"):
        path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        assert done.stdout.strip() == str(digests)
