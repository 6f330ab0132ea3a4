"""What is written down of gaps: the newest version counts, and too many are joined, so that no time is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_server.gaps.gap import CAUSE_CHARS_MAX, GAPS_KEPT_MAX, Gap, bounded, newest_of
from support.examples import examples


def gap(gap_id="a", since_ns=5, until_ns=9, cause="x", messages=None, version=1):
    return Gap(id=gap_id, version=version, since_ns=since_ns, until_ns=until_ns, cause=cause, messages=messages)


def test_the_newest_version_counts_in_whatever_order_they_come():
    first, second, third = (gap(version=version, messages=version) for version in (1, 2, 3))
    assert newest_of((), [second, first]) == (second,)
    assert newest_of((first,), [third, second]) == (third,)
    assert newest_of((third,), [third]) == (third,)


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
