"""Up to when a copy is whole: never later than what it has, and as late as what is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liftpy_server.gaps.whole import Whole, WholeHistory
from support.examples import examples


def test_the_newest_pair_that_is_reached_counts():
    history = WholeHistory()
    assert history.newest(100) is None
    for at_s, end in ((1.0, 10), (2.0, 20), (3.0, 30)):
        history.note(at_s, end, 10)
    assert [history.newest(end) for end in (9, 10, 25, 30)] == [None, Whole(1.0, 10), Whole(2.0, 20), Whole(3.0, 30)]


def test_time_goes_on_while_nothing_is_published():
    history = WholeHistory()
    for at_s in (1.0, 2.0, 3.0):
        history.note(at_s, 10, 10)
    assert history.newest(10) == Whole(3.0, 10)


def test_what_is_told_late_says_nothing():
    history = WholeHistory([Whole(2.0, 10)])
    history.note(1.0, 20, 20)
    assert history.newest(20) == Whole(2.0, 10)


def test_what_was_cut_off_is_not_relied_on():
    """Other records come in the place of those that were there."""
    history = WholeHistory([Whole(1.0, 10), Whole(2.0, 20)])
    history.cut(15)
    assert history.newest(30) == Whole(1.0, 10)


def test_the_newest_pair_that_can_not_be_cut_off_is_kept():
    history = WholeHistory()
    for at_s, end in ((1.0, 10), (2.0, 20), (3.0, 30)):
        history.note(at_s, end, 15)
    history.cut(15)
    assert history.newest(15) == Whole(1.0, 10)


def test_a_follower_that_is_far_behind_keeps_the_pair_that_it_has():
    history = WholeHistory()
    for number in range(1_000):
        history.note(float(number), number, 5)
    assert history.newest(5) == Whole(5.0, 5)
    assert history.newest(10_000) == Whole(999.0, 999)
    assert len(history._pairs) <= 16


steps = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=60)


@given(steps)
@examples(200)
def test_never_whole_later_than_the_log_says(given_steps):
    """The leader's log grows, the follower's behind it; now and then the follower is cut back."""
    history, now, leader_end, log_end = WholeHistory(), 0.0, 0, 0
    told = []
    for published, copied, late, is_cut in given_steps:
        leader_end += published
        now += 1
        told.append(Whole(now - late, leader_end))
        history.note(now - late, leader_end, log_end)
        log_end = min(leader_end, log_end + copied)
        if is_cut:
            log_end = max(0, log_end - 2)
            history.cut(log_end)
        newest = history.newest(log_end)
        assert newest is None or (newest in told and newest.end <= log_end)
