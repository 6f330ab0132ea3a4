"""A filter takes the records that subscriptions to its patterns would have received, however many are looked at."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import SubjectInvalidError
from liftpy_envelope.limits import SUBJECT_BYTES_MAX
from liftpy_envelope.subject import SUBJECT_PATTERNS_MAX, check_patterns, matches
from liftpy_envelope.subject_filter import SubjectMatcher
from support.examples import examples

TOKENS = st.sampled_from(("a", "b", "ab", "ä", "a+", "[", "\\", "*a", "a>", "^", "$", "(?i)a", "#"))
SUBJECTS = st.lists(TOKENS | st.just(""), min_size=1, max_size=4).map(".".join)
PATTERNS = st.builds(
    lambda tokens, rest: ".".join((*tokens, *rest)),
    st.lists(TOKENS | st.just("*"), min_size=1, max_size=3),
    st.sampled_from(((), (">",))),
) | st.just(">")


def array(*subjects):
    return pa.array(subjects, pa.binary())


@examples(300)
@given(st.lists(PATTERNS, min_size=1, max_size=4), st.lists(SUBJECTS, max_size=80))
def test_a_mask_says_what_matches_say(patterns, subjects):
    matcher = SubjectMatcher(check_patterns(patterns))
    expected = [any(matches(pattern, subject) for pattern in patterns) for subject in subjects]
    assert [matcher.matches(subject.encode()) for subject in subjects] == expected
    assert matcher.mask(array(*(subject.encode() for subject in subjects))).to_pylist() == expected
    many = [f"{subject}.{n}" for n in range(40) for subject in subjects]
    expected = [any(matches(pattern, subject) for pattern in patterns) for subject in many]
    assert matcher.mask(array(*(subject.encode() for subject in many))).to_pylist() == expected


def test_a_slice_of_an_array_is_masked_by_itself():
    subjects = array(*(b"a.%d" % (number % 50) for number in range(500)))
    mask = SubjectMatcher(["a.7", "a.8"]).mask(subjects.slice(5, 100))
    assert [index for index, is_wanted in enumerate(mask.to_pylist()) if is_wanted] == [2, 3, 52, 53]
    assert len(SubjectMatcher(["a"]).mask(array())) == 0


def test_bytes_that_are_no_text_are_subjects_too():
    subjects = [b"a.\xff", b"a.\xff.\xfe", b"\xff", b"a.\n", b"a"] + [b"x.%d" % number for number in range(60)]
    for matcher in (SubjectMatcher(["a.*"]), SubjectMatcher(["a.*", "nothing"])):
        assert [s for s, hit in zip(subjects, matcher.mask(array(*subjects)).to_pylist(), strict=True) if hit] == [
            b"a.\xff",
            b"a.\n",
        ]
    assert SubjectMatcher(["*.*.>", "\u00ff"]).mask(array(*subjects)).to_pylist().count(True) == 1


def test_without_patterns_or_with_the_widest_one_nothing_is_left_out():
    for patterns in ((), (">",), ("a.b", ">")):
        matcher = SubjectMatcher(patterns)
        assert matcher.takes_all
        assert matcher.matches(b"x.y")
        assert matcher.mask(array(b"a", b"", b"x.y")).to_pylist() == [True] * 3
    assert not SubjectMatcher(("*.>",)).takes_all


def test_what_is_remembered_is_bounded():
    matcher = SubjectMatcher(["a.1.*"])
    for number in range(10_000):
        assert matcher.matches(b"a.%d.x" % number) == (number == 1)
    assert matcher.matches(b"a.1.x")
    assert len(matcher._cache) <= 4_096
    matcher.matches(b"a.1." + bytes(4_000))
    assert all(len(subject) <= 256 for subject in matcher._cache)


def test_the_largest_filter_works():
    tokens = ["*"] * (SUBJECT_BYTES_MAX // 2 - 2)
    patterns = check_patterns([".".join((*tokens, f"{number:02}")) for number in range(SUBJECT_PATTERNS_MAX)])
    matcher = SubjectMatcher(patterns)
    subjects = [b"a." * len(tokens) + b"%02d" % number for number in range(100)]
    assert matcher.mask(array(*subjects)).to_pylist() == [number < SUBJECT_PATTERNS_MAX for number in range(100)]


@pytest.mark.parametrize("patterns", [["a", ""], [7], [b"a"], ["a..b"], ["a.>.b"], ["a b"], ["a\ud800"]])
def test_what_is_no_pattern_is_refused(patterns):
    with pytest.raises(SubjectInvalidError):
        check_patterns(patterns)


def test_too_many_patterns_are_refused():
    assert len(check_patterns(["a"] * SUBJECT_PATTERNS_MAX)) == SUBJECT_PATTERNS_MAX
    with pytest.raises(SubjectInvalidError, match="up to 64 subjects, not 65"):
        check_patterns(["a"] * (SUBJECT_PATTERNS_MAX + 1))
