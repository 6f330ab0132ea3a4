"""Proves that names are `[A-Za-z0-9_-]{1,128}` and nothing else."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import NameInvalidError
from liftpy_envelope.names import check_name
from support.damage import attempt
from support.examples import examples

ALLOWED = string.ascii_letters + string.digits + "_-"


@examples(100)
@given(st.text(ALLOWED, min_size=1, max_size=128))
def test_names_are_accepted_as_they_are(name):
    assert name == check_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a" * 129,
        "a b",
        "a.b",
        "a/b",
        "..",
        "a\n",
        "\na",
        "a\0",
        "\xe9",
        "\u0661",
        "\uff41",
        "a*",
        ">",
        "a:b",
        "a\\b",
    ],
    ids=ascii,
)
def test_other_text_is_refused(name):
    with pytest.raises(NameInvalidError):
        check_name(name)


@pytest.mark.parametrize("name", [None, 7, b"orders", ["orders"], True, object()], ids=lambda name: type(name).__name__)
def test_what_is_no_text_is_refused(name):
    with pytest.raises(NameInvalidError):
        check_name(name)


def test_the_error_says_what_was_named_and_how_and_is_short():
    with pytest.raises(NameInvalidError) as caught:
        check_name("no way!", "consumer")
    assert "consumer name 'no way!'" in str(caught.value)
    with pytest.raises(NameInvalidError) as caught:
        check_name("x" * 1_000_000)
    assert len(str(caught.value)) < 200


@examples(200)
@given(st.text(max_size=140))
def test_any_text_is_refused_or_a_name(text):
    expected = text if 1 <= len(text) <= 128 and set(text) <= set(ALLOWED) else None
    assert expected == attempt(check_name, text, NameInvalidError)
