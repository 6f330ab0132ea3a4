"""Random histories against a plain list of records: no offset is lost or doubled, and every sum balances."""

from collections import Counter
from contextlib import ExitStack
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.manifest.root import folding, rewriting
from support.examples import examples
from support.tier_model import History

STEPS = 30
seeds = st.integers(0, 2**32)


SMALL = {
    (folding, "POINTERS_MAX"): 6,
    (folding, "SNAPSHOT_FRAGMENTS_MAX"): 8,
    (folding, "SNAPSHOTS_MAX"): 4,
    (folding, "SNAPSHOTS_LISTED"): 3,
    (folding, "_FAN_OUT"): 3,
    (rewriting, "SNAPSHOT_FRAGMENTS_MAX"): 8,
}


def run(seed, fault_rate, bounds=()):
    """A history, with other bounds of roots and snapshots: small ones make deep snapshots of few fragments."""
    history = History(seed, fault_rate)
    with ExitStack() as stack:
        for (module, name), value in dict(bounds).items():
            stack.enter_context(patch.object(module, name, value))
        for _ in range(STEPS):
            history.step()
    return history


@given(seeds)
@examples(40)
def test_histories_over_a_store_that_does_not_fail(seed):
    run(seed, 0.0)


@given(seeds)
@examples(40)
def test_histories_over_a_store_that_fails(seed):
    run(seed, 0.2)


@given(seeds)
@examples(40)
def test_histories_with_deep_snapshots(seed):
    run(seed, 0.1, SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [{}, SMALL], ids=["usual", "deep snapshots"])
@pytest.mark.parametrize("first_seed", range(0, 2_000, 250))
def test_many_histories(first_seed, bounds):
    for seed in range(first_seed, first_seed + 250):
        print(f"seed {seed}")
        run(seed, 0.1, bounds)


def test_the_histories_are_what_they_should_be():
    """Everything happens in them, and snapshots come about."""
    steps, depths, records, faults = Counter(), [], 0, 0
    for seed in range(20):
        history = run(seed, 0.1, SMALL)
        steps.update(history.steps)
        depths += [each.depth for each in history.root().snapshots] if history.root() else []
        records += len(history.wanted)
        faults += len(history.faulty.faults)
    assert len(steps) == 13
    assert max(depths) == 2
    assert faults > 50
    assert records > 500
