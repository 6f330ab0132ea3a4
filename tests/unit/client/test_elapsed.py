"""Time goes on while a machine sleeps, or is paused and moved."""

from __future__ import annotations

import time

from liftpy_client.elapsed import ElapsedClock


class Hand:
    def __init__(self):
        self.at_s = 50.0

    def __call__(self):
        return self.at_s


def test_the_clock_that_went_further_counts():
    boot, wall = Hand(), Hand()
    clock = ElapsedClock(boot, wall)
    began_s = clock()
    boot.at_s += 3_600  # asleep; nobody has set the wall clock yet
    assert clock() - began_s == 3_600
    wall.at_s += 7_200  # paused, moved, and set right
    assert clock() - began_s == 3_600 + 7_200
    wall.at_s -= 86_400  # set back
    boot.at_s += 1
    assert clock() - began_s == 3_600 + 7_200 + 1


def test_it_goes_as_the_machine_does():
    clock = ElapsedClock()
    began_s, monotonic_s = clock(), time.monotonic()
    assert 0 <= clock() - began_s <= time.monotonic() - monotonic_s + 1
