"""Proves that subjects are judged, matched and overlapped as a naive reading of the rules of NATS has it."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import SubjectInvalidError
from liftpy_envelope.limits import SUBJECT_BYTES_MAX
from liftpy_envelope.subject import (
    RESERVED_PATTERNS,
    check_literal,
    check_pattern,
    is_literal,
    matches,
    overlaps,
    reserved_overlap,
)
from support.damage import attempt
from support.examples import examples

TOKENS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Z"), exclude_characters="."), min_size=1, max_size=4)
LITERALS = st.lists(TOKENS.filter(lambda token: token not in {"*", ">"}), min_size=1, max_size=5).map(".".join)
# `c` stands in no pattern of the alphabet: it is every token that a pattern does not name
ALL_LITERALS = [".".join(tokens) for size in range(1, 6) for tokens in product("abc", repeat=size)]


def naive_match(wanted, given_tokens):
    """By recursion over the tokens, as the rules are told."""
    if not wanted:
        return not given_tokens
    if wanted == [">"]:
        return bool(given_tokens)
    if not given_tokens:
        return False
    return wanted[0] in ("*", given_tokens[0]) and naive_match(wanted[1:], given_tokens[1:])


def patterns(size_max):
    """Every pattern over `a`, `b`, `*` and a `>` at the end."""
    for size in range(1, size_max + 1):
        for head in product("ab*", repeat=size - 1):
            for last in "ab*>":
                yield ".".join((*head, last))


def receivers(pattern):
    return frozenset(literal for literal in ALL_LITERALS if naive_match(pattern.split("."), literal.split(".")))


PATTERNS = st.lists(st.sampled_from("ab*"), max_size=4).flatmap(
    lambda head: st.sampled_from("ab*>").map(lambda last: ".".join((*head, last)))
)


def test_matches_is_the_naive_match_for_every_short_pattern():
    for pattern in patterns(4):
        expected = receivers(pattern)
        assert expected == {literal for literal in ALL_LITERALS if matches(pattern, literal)}


def test_overlaps_is_a_common_literal_for_every_pair_of_short_patterns():
    received = {pattern: receivers(pattern) for pattern in patterns(3)}
    for left, right in product(received, repeat=2):
        assert (not received[left].isdisjoint(received[right])) == overlaps(left, right), (left, right)


@examples(200)
@given(PATTERNS, PATTERNS)
def test_overlaps_is_a_common_literal(left, right):
    assert (not receivers(left).isdisjoint(receivers(right))) == overlaps(left, right)
    assert overlaps(left, right) == overlaps(right, left)


@examples(100)
@given(LITERALS, st.data())
def test_a_literal_matches_itself_and_what_is_loosened_from_it(literal, data):
    tokens = literal.split(".")
    loosened = [data.draw(st.sampled_from(("*", token))) for token in tokens]
    cut = data.draw(st.integers(0, len(tokens) - 1))
    for pattern in (literal, ".".join(loosened), ".".join((*loosened[:cut], ">"))):
        assert matches(pattern, literal)
        assert overlaps(pattern, literal)
    assert not matches(literal + ".>", literal)
    assert not matches(literal, literal + ".more")


@examples(150)
@given(LITERALS)
def test_every_literal_is_accepted(literal):
    assert literal == check_literal(literal)
    assert literal == check_pattern(literal)
    assert is_literal(literal)


@pytest.mark.parametrize("subject", ["*", ">", "a.*", "a.>", "*.*", "*.a.>", "a.*.b", "*.>"])
def test_wildcards_are_patterns_and_no_literals(subject):
    assert subject == check_pattern(subject)
    assert not is_literal(subject)
    with pytest.raises(SubjectInvalidError):
        check_literal(subject)


@pytest.mark.parametrize(
    "subject", ["a*", "*a", "a>", ">a", "a.b*c", "**", ">>", "$JS.API", "_INBOX.x", "\xe9.\u65e5", "a:b"]
)
def test_wildcards_within_a_token_are_plain_characters(subject):
    assert subject == check_literal(subject)
    assert is_literal(subject)


INVALID = [
    "",
    ".",
    "..",
    ".a",
    "a.",
    "a..b",
    ">.a",
    "a.>.b",
    ">.>",
    " ",
    "a b",
    "a\tb",
    "a\r\nb",
    "a\n",
    "a\0b",
    "a\x0cb",
]


@pytest.mark.parametrize("subject", [*INVALID, None, 7, b"orders", ["a"], True, "\u2003", "a\x0bb"], ids=repr)
@pytest.mark.parametrize("check", [check_pattern, check_literal])
def test_what_is_no_subject_is_refused(check, subject):
    with pytest.raises(SubjectInvalidError):
        check(subject)


@pytest.mark.parametrize("subject", ["\ud800", "a.\udfff.b", "orders.\udc80"], ids=ascii)
@pytest.mark.parametrize("check", [check_pattern, check_literal])
def test_what_no_utf8_spells_is_refused(check, subject):
    with pytest.raises(SubjectInvalidError):
        check(subject)


def test_the_limit_is_in_bytes():
    assert check_pattern("a" * SUBJECT_BYTES_MAX)
    assert check_pattern("\u20ac" * (SUBJECT_BYTES_MAX // 3))
    for subject in ("a" * (SUBJECT_BYTES_MAX + 1), "\u20ac" * (SUBJECT_BYTES_MAX // 3 + 1)):
        with pytest.raises(SubjectInvalidError) as caught:
            check_pattern(subject)
        assert len(str(caught.value)) < 200


def test_subjects_of_ten_thousand_tokens():
    literal = ".".join(["a"] * 10_000)
    stars = ".".join(["*"] * 10_000)
    for subject in (literal, stars, "a." * 10_000, "." * 10_000):
        with pytest.raises(SubjectInvalidError):
            check_pattern(subject)
    for pattern in (literal, stars, ">", "*.>", literal[:-2] + ".>"):
        assert matches(pattern, literal)
        assert overlaps(pattern, literal)
    for pattern in (literal + ".a", literal + ".>", stars + ".*", literal[:-1] + "b", "b.>"):
        assert not matches(pattern, literal)
        assert not overlaps(pattern, literal)
    longest = ".".join(["a"] * (SUBJECT_BYTES_MAX // 2))
    assert longest == check_literal(longest)


def test_reserved_patterns_are_the_documented_ones():
    assert RESERVED_PATTERNS == ("_INBOX.>", "LIFT.>", "$>")


def reserved_by(literal):
    """The reserved pattern that a literal belongs to, from the rules as they are told."""
    first, *rest = literal.split(".")
    if first.startswith("$"):
        return "$>"
    return f"{first}.>" if first in {"_INBOX", "LIFT"} and rest else None


SOME_TOKENS = ("a", "_INBOX", "LIFT", "$JS")
SOME_LITERALS = [".".join(tokens) for size in range(1, 5) for tokens in product(SOME_TOKENS, repeat=size)]
SOME_PATTERNS = [
    ".".join((*head, last))
    for size in range(1, 4)
    for head in product((*SOME_TOKENS, "*"), repeat=size - 1)
    for last in (*SOME_TOKENS, "*", ">")
]


def test_a_literal_is_reserved_by_the_pattern_it_belongs_to():
    expected = {literal: reserved_by(literal) for literal in SOME_LITERALS}
    assert expected == {literal: reserved_overlap(literal) for literal in SOME_LITERALS}


@pytest.mark.parametrize("literal", ["_INBOX", "LIFT", "_INBOXES.a", "LIFTS.a", "lift.a", "_inbox.a", "a$.b", "\xe9$"])
def test_what_only_looks_reserved_is_not(literal):
    assert reserved_overlap(literal) is None


def test_a_pattern_is_reserved_by_one_of_those_its_literals_belong_to():
    for pattern in SOME_PATTERNS:
        received = [one for one in SOME_LITERALS if naive_match(pattern.split("."), one.split("."))]
        allowed = {reserved_by(literal) for literal in received} - {None} or {None}
        assert reserved_overlap(pattern) in allowed, pattern


@examples(300)
@given(st.text(max_size=12) | st.text("ab.*> \n$", max_size=12))
def test_any_text_is_refused_or_a_subject(text):
    pattern = attempt(check_pattern, text, SubjectInvalidError)
    literal = attempt(check_literal, text, SubjectInvalidError)
    if pattern is not None:
        assert all(text.split("."))
        assert text.encode().decode() == pattern
        assert is_literal(text) == (literal is not None)
        reserved_overlap(text)
    else:
        assert literal is None
