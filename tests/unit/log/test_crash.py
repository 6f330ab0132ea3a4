"""What was reported durable survives: a power loss or a kill at every step of whatever a node does to its logs.

A run is a random life of a node, from its seed: appends, rounds, rolls, retention, purges, restarts, kills and power
losses. Before every operation on the disk the power may be lost on the side: a second node starts on what the disk
then holds, and must find everything that was durable, byte for byte, contiguous, and nothing that never was. A third
one that starts after it must find the same.
"""

import pytest

from liftpy_log.segments import segment as segment_module
from support.examples import first
from support.log_life import FOLLOWER_STEPS, Life
from support.simdisk import Order


@pytest.fixture(autouse=True)
def _small_indexes(monkeypatch):
    monkeypatch.setattr(segment_module, "INDEX_INTERVAL_BYTES", 600)
    monkeypatch.setattr(segment_module, "INDEX_FLUSH_ENTRIES", 2)


def live(seed, order, **given):
    life = Life(seed, order, **given)
    try:
        life.live()
    except BaseException as error:
        error.add_note("\n".join(life.history))
        raise
    assert life.looks > 0


@pytest.mark.parametrize("seed", first(5, range(25)))
@pytest.mark.parametrize("order", [Order.IN_ORDER, Order.UNORDERED])
def test_nothing_durable_is_lost(seed, order):
    live(seed, order)


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(100, 400, 100))
@pytest.mark.parametrize("order", [Order.IN_ORDER, Order.UNORDERED])
def test_nothing_durable_is_lost_in_many_lives(first_seed, order):
    for seed in range(first_seed, first_seed + 100):
        live(seed, order)


@pytest.mark.parametrize("seed", first(2, range(8)))
@pytest.mark.parametrize("order", [Order.IN_ORDER, Order.UNORDERED])
def test_nothing_that_was_cut_off_comes_back(seed, order):
    live(seed, order, steps=FOLLOWER_STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(100, 700, 100))
@pytest.mark.parametrize("order", [Order.IN_ORDER, Order.UNORDERED])
def test_nothing_that_was_cut_off_comes_back_in_many_lives(first_seed, order):
    for seed in range(first_seed, first_seed + 100):
        live(seed, order, steps=FOLLOWER_STEPS)
