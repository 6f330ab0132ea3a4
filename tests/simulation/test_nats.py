"""The real shell at a model of nats-server: no plain message is missing without a gap, no gap is without a cause.

A failure prints the command that has it again.
"""

from __future__ import annotations

import pytest

from simulation.model import ViolationError
from simulation.nats_bugs import BUGS, planted
from simulation.nats_faults import FAULTS
from simulation.nats_world import run_nats
from simulation.scheduler import MS
from support.examples import first

BUDGET_SEEDS = 40
SEEDS = first(1, (1, 0))


@pytest.mark.parametrize("ten", [pytest.param(ten, marks=pytest.mark.slow) for ten in range(100)])
def test_what_is_missing_lies_in_a_gap_and_every_gap_has_a_cause(ten):
    results = [run_nats(seed) for seed in range(ten * 10, ten * 10 + 10)]
    assert sum(result.lost for result in results) > 100
    assert sum(result.gaps for result in results) > 10


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", ["cut_route", "error_in_delivery", "kill_leader", "kill_server"])
def test_what_is_missing_after_a_fault_lies_in_a_gap(fault, seed):
    result = run_nats(seed, only=frozenset({fault}))
    assert result.lost > 0
    assert result.gaps > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_missing_and_no_gap_is_there_when_nothing_goes_wrong(seed):
    result = run_nats(seed, without=frozenset(FAULTS))
    assert result.plain > 1_000
    assert (result.lost, result.gaps) == (0, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_planned_change_of_leaders_costs_nothing(seed):
    """Nor does it store anything twice; the run fails if it does."""
    result = run_nats(seed, only=frozenset({"hand_over"}))
    assert result.shell.elections > 6
    assert (result.lost, result.gaps) == (0, 0)


def test_a_change_of_servers_and_one_of_leaders_wait_for_each_other():
    results = [run_nats(seed, only=frozenset({"hand_over", "lame_duck"})) for seed in (5, 6)]
    assert sum(result.shell.elections for result in results) > 3
    assert all(result.shell.seen["change of servers"] for result in results)


@pytest.mark.thorough
def test_a_change_of_servers_over_slow_routes_misses_nothing():
    """Nor is anything stored twice; the run fails if it is."""
    results = [run_nats(seed, only=frozenset({"lame_duck"}), lag_us=150 * MS) for seed in (3, 7, 11)]
    assert sum(result.shell.seen["change of servers"] for result in results) > 2
    assert sum(result.shell.seen["unsteady change of servers"] for result in results) == 0
    assert [result.lost for result in results] == [0] * 3


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_held_when_leaders_change_and_something_goes_wrong_is_stored_or_lies_in_a_gap(seed):
    faults = frozenset({"hand_over", "kill_in_handover", "error_in_handover", "overload"})
    assert run_nats(seed, only=faults).shell.seen["error in a handover"] > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_gaps_are_true_when_clocks_are_stepped(seed):
    assert run_nats(seed, only=frozenset({"clock_jump", "deafen", "deny"})).lost > 0


def failure_of(seed, how):
    try:
        run_nats(seed, **how)
    except ViolationError as error:
        return str(error)
    return None


@pytest.mark.thorough
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name):
    """With the seed that is known to show it; when the code runs otherwise than it did, with one of the first."""
    bug = BUGS[name]
    with planted(name):
        seeds = (bug.seed, *range(BUDGET_SEEDS))
        found = next(((seed, failure) for seed in seeds if (failure := failure_of(seed, bug.how))), None)
    assert found is not None, f"not found with {BUDGET_SEEDS} seeds"
    print(f"{name}: seed {found[0]}: {found[1]}")


def test_a_seed_does_the_same_again():
    assert run_nats(2) == run_nats(2)
