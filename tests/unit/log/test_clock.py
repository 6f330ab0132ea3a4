"""The machine's clocks: wall time in nanoseconds, and monotonic ones that never go back."""

import time

from liftpy_log.clock import SystemClock


def test_the_wall_clock_is_in_nanoseconds():
    before = time.time_ns()
    now = SystemClock().now_ns()
    assert before <= now <= time.time_ns()


def test_the_monotonic_clock_never_goes_back():
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(1_000)]
    assert readings == sorted(readings)


def test_elapsed_time_counts_while_the_machine_sleeps():
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = SystemClock().elapsed()
    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)
