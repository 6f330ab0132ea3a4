"""The real shell under faults: nothing acked is lost, doubled or reordered, nothing shown that is not committed.

A failure prints the command that has it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.shell_world import run_shell

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("ten", [*range(1), *(pytest.param(ten, marks=pytest.mark.slow) for ten in range(1, 200))])
def test_no_promise_is_broken(ten):
    results = [run_shell(seed) for seed in range(ten * 10, ten * 10 + 10)]
    assert sum(result.elections for result in results) > 2
    assert sum(result.acked for result in results) > 500
    assert sum(result.duplicates for result in results) > 20
    assert sum(result.served for result in results) > 1_000


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
