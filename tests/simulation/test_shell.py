"""The real shell under faults: nothing acked is lost, doubled or reordered, nothing shown that is not committed.

A failure prints the command that has it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.model import ViolationError
from simulation.shell_bugs import BUGS, planted
from simulation.shell_world import run_shell

BUDGET_SEEDS = 150
QUICK = {  # found within a few seeds
    "a log that is lost is told of where it counts",
    "the window of ids runs on the leader's wall clock",
    "what is in the page cache counts as durable",
}
TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("ten", [*range(1), *(pytest.param(ten, marks=pytest.mark.slow) for ten in range(1, 200))])
def test_no_promise_is_broken(ten):
    results = [run_shell(seed) for seed in range(ten * 10, ten * 10 + 10)]
    assert sum(result.elections for result in results) > 2
    assert sum(result.acked for result in results) > 500
    assert sum(result.duplicates for result in results) > 20
    assert sum(result.served for result in results) > 1_000


def failure_of(seed, how):
    try:
        run_shell(seed, **how)
    except ViolationError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in BUGS])
def test_a_planted_bug_is_found(name):
    how = {"without": frozenset()} | BUGS[name].how
    with planted(name):
        found = next((seed for seed in range(BUDGET_SEEDS) if failure_of(seed, how)), None)
        assert found is not None, f"not found with {BUDGET_SEEDS} seeds"
        failure = failure_of(found, how)
        print(f"{name}: {found + 1} seeds: {failure}")
        assert failure == failure_of(found, how)
    assert failure_of(found, how) is None


def test_a_seed_does_the_same_in_another_process():
    program = "from simulation.shell_world import run_shell; print([run_shell(seed).digest for seed in range(3)])"
    answers = []
    for hash_seed in ("1", "2"):
        path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        answers.append(done.stdout.strip())
    assert answers == [str([run_shell(seed).digest for seed in range(3)])] * 2
