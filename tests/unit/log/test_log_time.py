"""The time of a log goes on with the monotonic clock, whatever wall clocks say; what nobody measured ages nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.log_time import Leap, LogTime, LogTimeState

S = 10**9
T0 = 1_700_000_000 * S
DAY_S = 86_400
YEAR_S = 365 * DAY_S


def began(wall_ns=T0, now_s=0.0):
    """The time of a log that got its first record."""
    time = LogTime(0, now_s)
    time.stamp(wall_ns, now_s)
    return time


def test_a_log_without_records_has_the_time_of_the_wall_clock():
    time = LogTime(0, 5.0)
    assert (time.now(T0, 5.0), time.now(T0 - S, 6.0), time.state()) == (T0, T0 - S, LogTimeState(0))
    assert (time.stamp(T0 + S, 7.0), time.leapt_ns) == (T0 + S, 0)


@pytest.mark.parametrize("ahead_s", [600, YEAR_S])
def test_a_leader_with_a_clock_that_is_ahead_goes_on_from_the_newest_record(ahead_s):
    follower = LogTime(0, 100.0)
    follower.copied(0, T0, 100.0)
    stamp = follower.stamp(T0 + (ahead_s + 10) * S, 110.0)
    assert 10 * S <= stamp - T0 <= 10 * S + 10 * S // 1_000
    assert follower.leapt_ns == 0


def test_a_clock_that_is_ahead_is_approached_by_a_thousandth():
    time = began()
    assert time.now(T0 + 2_000 * S, 1_000.0) == T0 + 1_001 * S


def test_a_clock_that_is_behind_is_waited_for_at_half_speed():
    time = began()
    assert time.now(T0 - 600 * S, 100.0) == T0 + 50 * S
    assert time.now(T0 + 45 * S, 110.0) == T0 + 55 * S
    assert time.now(T0 + 66 * S, 121.0) == T0 + 66 * S  # as soon as it is there, the two are one


def test_time_goes_on_while_nothing_is_written():
    time = began()
    assert time.now(T0 + DAY_S * S, DAY_S) == T0 + DAY_S * S


def test_a_record_of_a_leader_whose_clock_was_ahead_takes_the_time_of_its_followers_along():
    time = began()
    time.copied(T0, T0 + YEAR_S * S, 1.0)
    assert time.now(T0 + S, 2.0) == T0 + YEAR_S * S + S // 2


def test_an_older_record_sets_it_back_no_further_than_the_slowest_leader_may_be():
    time = began()
    time.copied(0, T0 - S, 10.0)
    assert time.now(T0 + 10 * S, 10.0) == T0 + 5 * S
    time.copied(0, T0 + 4 * S, 12.0)
    assert time.now(T0 + 12 * S, 12.0) == T0 + 6 * S


def test_a_follower_goes_as_slowly_as_its_leader_whose_clock_was_set_back():
    """Else it is minutes ahead of the newest record when it leads next, and takes ids for old that are not."""
    leader, follower = began(), LogTime(0, 0.0)
    follower.copied(0, T0, 0.0)
    at_s, stamped = 0.0, T0
    for _ in range(60):
        at_s += 10
        follower.now(T0 + int(at_s * S), at_s - 5)  # as it is asked by retention and the checkpoint
        before, stamped = stamped, leader.stamp(T0 - 300 * S + int(at_s * S), at_s)
        follower.copied(before, stamped, at_s)
    assert stamped == T0 + 300 * S
    assert follower.now(T0 + int(at_s * S), at_s) - stamped < S


@pytest.mark.parametrize("gap_s", [5, DAY_S])
def test_time_that_the_node_was_down_makes_nothing_old(gap_s):
    kept = began().state()
    time = LogTime(T0, 3.0, kept)
    assert time.now(T0 + gap_s * S, 3.0) == T0  # nothing is appended: nothing leaps
    assert time.stamp(T0 + gap_s * S, 3.0) == T0 + gap_s * S
    assert time.leapt_ns == gap_s * S
    later = time.now(T0 + (gap_s + 60) * S, 63.0)
    assert time.age_time(later) - time.age_time(T0) == 60 * S
    assert time.before(later, 60 * S) == T0 + gap_s * S
    assert time.before(later, 61 * S) == T0 - S


@pytest.mark.parametrize("kept", [None, LogTimeState(T0 + 20 * S)])
def test_a_follower_that_was_down_leaps_where_its_leader_did(kept):
    time = LogTime(T0, 3.0, kept)
    time.copied(T0, T0 + 100 * S, 5.0)
    assert (time.leapt_ns, time.now(T0, 5.0)) == (0, T0 + 100 * S)  # those who ran have measured this
    leap = Leap(T0 + 700 * S, 500 * S)
    time.copied(T0 + 100 * S, T0 + 800 * S, 6.0, [leap])
    assert time.leaps == (leap,)
    assert time.age_time(T0 + 800 * S) - time.age_time(T0 + 100 * S) == 200 * S


def test_a_quick_restart_is_no_leap():
    time = LogTime(T0, 0.0, LogTimeState(T0))
    assert (time.stamp(T0 + S // 2, 0.0), time.leapt_ns) == (T0 + S // 2, 0)


def test_time_without_records_is_kept_over_a_restart():
    time = began()
    time.now(T0 + DAY_S * S, DAY_S)
    assert LogTime(T0, 0.0, time.state()).now(T0 + DAY_S * S, 0.0) == T0 + DAY_S * S


def test_leaps_are_bounded_and_the_oldest_two_become_one():
    state, wall_ns = began().state(), T0
    for _ in range(40):
        wall_ns += DAY_S * S
        time = LogTime(state.ns, 0.0, state)
        time.stamp(wall_ns, 0.0)
        state = time.state()
    assert (len(state.leaps), time.leapt_ns) == (16, 40 * DAY_S * S)
    assert state.leaps[0].amount_ns == 25 * DAY_S * S


def test_a_clock_that_is_off_by_a_minute_is_told():
    time = began()
    assert [time.clock_off_ns(T0 + seconds * S) // S for seconds in (59, 60, -59, -60)] == [0, 60, 0, -60]
    assert LogTime(0, 0.0).clock_off_ns(T0) == 0
    assert LogTime(T0, 0.0).clock_off_ns(T0 + DAY_S * S) == 0  # not before something is stamped


STEPS = st.lists(
    st.tuples(st.integers(0, 10**12), st.integers(-(10**15), 10**15), st.sampled_from(["now", "stamp", "restart"])),
    max_size=40,
)


@given(STEPS)
def test_it_never_goes_back_and_what_ages_does_so_no_faster_than_the_monotonic_clock(steps):
    time, now_ns, wall_ns = began(), 0, T0
    records = [(T0, 0)]
    for elapsed, jump, kind in steps:
        before = time.state().ns
        now_ns += elapsed
        wall_ns = max(0, wall_ns + elapsed + jump)
        if kind == "restart":  # the monotonic clock begins anew, too; what passed meanwhile is not measured
            time = LogTime(records[-1][0], now_ns / S, time.state())
        at = time.stamp(wall_ns, now_ns / S) if kind == "stamp" else time.now(wall_ns, now_ns / S)
        assert at >= before
        if kind == "stamp":
            records.append((at, now_ns))
        for stamped, appended in records:
            age = time.age_time(at) - time.age_time(stamped)
            assert age <= (now_ns - appended) * 1.001 + S * len(steps) + 1_000
            if stamped < time.before(at, 60 * S):
                assert age >= 60 * S


@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(1, 50)), max_size=5), st.integers(0, 2_000), st.integers(0, 900)
)
def test_before_is_the_inverse_of_age(parts, now, age):
    leaps, at = [], 0
    for measured, leapt in parts:
        at += measured + leapt
        leaps.append(Leap(at, leapt))
    time = LogTime(at, 0.0, LogTimeState(at + now, tuple(leaps)))
    before = time.before(at + now, age)
    assert time.age_time(at + now) - time.age_time(before) == age


def test_a_leap_that_is_told_twice_counts_once():
    time, leaps = began(), [Leap(T0 + 100 * S, 50 * S), Leap(T0 + 300 * S, 60 * S)]
    time.copied(T0, T0 + 200 * S, 1.0, leaps)
    time.copied(T0 + 200 * S, T0 + 400 * S, 2.0, leaps)
    assert time.leaps == tuple(leaps)
    time.copied(T0 + 400 * S, T0 + 401 * S, 2.0, [Leap(T0 + 300 * S, 110 * S)])  # which its leader has joined
    assert time.leaps == tuple(leaps)


def test_what_was_leapt_over_before_a_cut_is_no_age_although_the_leader_does_not_know_of_it():
    """Its record was never committed, and is gone; but the time of this log does not go back."""
    time = LogTime(T0, 0.0, LogTimeState(T0))
    time.stamp(T0 + 600 * S, 0.0)
    time.copied(T0, T0 + 10 * S, 10.0)
    now = time.stamp(T0 + 20 * S, 20.0)
    assert time.age_time(now) - time.age_time(T0 + 10 * S) < 20 * S


def test_records_that_are_younger_than_what_was_kept_tell_of_a_leap_that_was_not():
    time = LogTime(T0, 5.0, LogTimeState(T0))
    time.found(T0 + S // 2)
    time.found(T0 + 600 * S)
    assert time.leapt_ns == 600 * S - S // 2
    assert time.now(T0 + 600 * S, 5.0) == T0 + 600 * S
