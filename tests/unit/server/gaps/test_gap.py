"""What is written down of gaps: no time is forgotten, whoever tells of them, in whatever order, and however many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_server.gaps.gap import CAUSE_CHARS_MAX, GAPS_KEPT_MAX, Gap, all_told, bounded
from support.examples import examples


def gap(gap_id="a", since_ns=5, until_ns=9, cause="x", messages=None, version=1):
    return Gap(id=gap_id, version=version, since_ns=since_ns, until_ns=until_ns, cause=cause, messages=messages)


def test_the_newest_version_counts_in_whatever_order_they_come():
    first, second, third = (gap(version=version, messages=version) for version in (1, 2, 3))
    assert all_told((), [second, first]) == (second,)
    assert all_told((first,), [third, second]) == (third,)
    assert all_told((third,), [third]) == (third,)


def test_two_nodes_that_end_a_gap_end_it_when_the_last_of_them_does():
    """The leader before ended it and could not tell; the next one went on with it, and has told of that first."""
    lasts, ended, ended_later = gap(until_ns=None), gap(since_ns=4, until_ns=7, version=3), gap(until_ns=9, version=2)
    both = gap(since_ns=4, until_ns=9, version=3)
    assert all_told((lasts, ended_later), [ended]) == (both,)
    assert all_told((lasts, ended), [ended_later]) == (both,)


def test_a_gap_that_is_over_stays_so_when_a_node_that_led_tells_of_it_late():
    assert all_told((gap(version=2),), [gap(since_ns=4, until_ns=None, version=3)]) == (gap(since_ns=4, version=3),)


def test_what_was_joined_stays_so_when_more_is_told_of_the_last_of_it():
    joined = gap("b", 1, 8, "several causes", version=2)
    assert all_told((joined,), [gap("b", 7, 9, "x", version=3)]) == (gap("b", 1, 9, "several causes", version=3),)


versions = st.lists(
    st.builds(
        lambda since, length, version: gap("g", since, None if length is None else since + length, version=version),
        st.integers(0, 9),
        st.none() | st.integers(0, 9),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=5,
)


@given(versions, st.randoms(use_true_random=False))
@examples(200)
def test_a_gap_is_the_same_in_whatever_order_and_however_often_it_is_told_and_covers_each_end(told, rng):
    (known,) = all_told((), told)
    again = [*told, *told]
    rng.shuffle(again)
    assert all_told((), again) == (known,)
    ends = [each.until_ns for each in told if each.until_ns is not None]
    assert (known.since_ns, known.until_ns) == (min(each.since_ns for each in told), max(ends, default=None))


def test_few_gaps_stay_as_they_are():
    gaps = tuple(gap(str(number)) for number in range(GAPS_KEPT_MAX))
    assert bounded(gaps) == gaps


def test_of_too_many_gaps_the_oldest_are_joined():
    gaps = (gap("a", 1, 2), gap("b", 5, 6, messages=3), gap("c", 7, 8, messages=4), gap("d", 9, None))
    joined, *rest = bounded(gaps, 3)
    assert (joined, rest) == (gap("b", 1, 6), list(gaps[2:]))
    assert bounded(gaps[1:], 2) == (gap("c", 5, 8, messages=7), gaps[3])


def test_gap_of_several_causes_says_so():
    assert bounded((gap("a", cause="x"), gap("b", cause="y")), 1)[0].cause == "several causes"


def test_a_gap_that_lasts_is_joined_last():
    gaps = (gap("a", 1, None), gap("b", 2, 3), gap("c", 4, 5))
    assert bounded(gaps, 2) == (gap("c", 2, 5), gaps[0])
    assert bounded(gaps, 1) == (gap("a", 1, None),)


gaps_of_any_kind = st.lists(
    st.builds(
        lambda number, since, length, messages: gap(
            f"g{number}", since, None if length is None else since + length, messages=messages
        ),
        st.integers(0, 40),
        st.integers(0, 100),
        st.none() | st.integers(0, 50),
        st.none() | st.integers(0, 9),
    ),
    max_size=40,
    unique_by=lambda each: each.id,
).map(tuple)


@given(gaps_of_any_kind, st.integers(1, 8))
@examples(200)
def test_joining_forgets_no_time_and_no_message(gaps, count_max):
    kept = bounded(gaps, count_max)
    assert len(kept) <= max(count_max, 1)
    for each in gaps:
        end = float("inf") if each.until_ns is None else each.until_ns
        assert any(
            of.since_ns <= each.since_ns and end <= (float("inf") if of.until_ns is None else of.until_ns)
            for of in kept
        )
    if all(each.messages is not None for each in gaps):
        assert sum(each.messages for each in kept) == sum(each.messages for each in gaps)


@given(gaps_of_any_kind)
@examples(50)
def test_what_was_written_is_read_back(gaps):
    assert tuple(Gap.from_plain(each.to_plain()) for each in gaps) == gaps


@pytest.mark.parametrize(
    "row",
    [
        [],
        ["a", 1, 5, 9, "x"],
        ["", 1, 5, 9, "x", None],
        ["a" * 301, 1, 5, 9, "x", None],
        [b"a", 1, 5, 9, "x", None],
        ["a", "1", 5, 9, "x", None],
        ["a", 1, -5, 9, "x", None],
        ["a", 1, 5.0, 9, "x", None],
        ["a", 1, 5, 2**63, "x", None],
        ["a", 1, 5, 4, "x", None],
        ["a", 1, 5, 9, None, None],
        ["a", 1, 5, 9, "x", True],
    ],
)
def test_what_is_no_gap_is_refused(row):
    with pytest.raises(ValueError):
        Gap.from_plain(row)


def test_a_long_cause_is_cut():
    assert len(Gap.from_plain(["a", 1, 5, None, "x" * 1_000, None]).cause) == CAUSE_CHARS_MAX
