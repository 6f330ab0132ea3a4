"""Proves that settings are checked and never guessed, and that errors name the field and the nearest known one."""

import json
from dataclasses import dataclass, field
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import ConfigError
from liftpy_envelope.settings import from_text, parse_settings, to_plain
from support.damage import attempt
from support.examples import examples


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    size: int = 1
    ratio: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    name: str
    count: int = 1
    age_s: float = 0.0
    is_open: bool = False
    colour: Colour = Colour.RED
    tags: tuple[str, ...] = ()
    label: str | None = None
    limit: int | None = None
    tint: Colour | None = None
    inner: Inner = field(default_factory=Inner)


OUTERS = st.builds(
    Outer,
    name=st.text(max_size=5),
    count=st.integers(),
    age_s=st.floats(allow_nan=False),
    is_open=st.booleans(),
    colour=st.sampled_from(Colour),
    tags=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    label=st.none() | st.text(max_size=5),
    limit=st.none() | st.integers(),
    tint=st.none() | st.sampled_from(Colour),
    inner=st.builds(Inner, size=st.integers(), ratio=st.floats(allow_nan=False)),
)
FULL = {
    "name": "n",
    "count": 2,
    "age_s": 1.5,
    "is_open": True,
    "colour": "green",
    "tags": ["a", "b"],
    "label": "l",
    "limit": None,
    "tint": None,
    "inner": {"size": 3, "ratio": 0.25},
}


def refusal(given_settings, kind=Outer, path=""):
    with pytest.raises(ConfigError) as caught:
        parse_settings(kind, given_settings, path)
    return caught.value


@examples(150)
@given(OUTERS)
def test_round_trip(settings):
    plain = to_plain(settings)
    assert settings == parse_settings(Outer, plain)
    assert settings == parse_settings(Outer, json.loads(json.dumps(plain)))


def test_every_type_is_read():
    expected = Outer(
        name="n",
        count=2,
        age_s=1.5,
        is_open=True,
        colour=Colour.GREEN,
        tags=("a", "b"),
        label="l",
        inner=Inner(size=3, ratio=0.25),
    )
    found = parse_settings(Outer, FULL)
    assert expected == found
    assert to_plain(found) == FULL
    assert isinstance(found.colour, Colour)


def test_what_is_left_out_has_its_default():
    assert Outer(name="n") == parse_settings(Outer, {"name": "n"})


def test_a_nested_dataclass_may_be_given_as_it_is():
    assert Inner(size=9) == parse_settings(Outer, {"name": "n", "inner": Inner(size=9)}).inner


def test_a_whole_number_is_a_number():
    age = parse_settings(Outer, {"name": "n", "age_s": 3}).age_s
    assert (3.0, float) == (age, type(age))


NOT_COERCED = [
    *[("name", value) for value in (None, 7, True, b"n", ["n"], {})],
    *[("count", value) for value in (None, True, False, 1.0, 1.5, "1", "yes", [], {}, float("nan"))],
    *[("age_s", value) for value in (None, True, "1.5", [], {}, b"1")],
    *[("is_open", value) for value in (None, 0, 1, "yes", "true", "True", "", [], 1.0)],
    *[("colour", value) for value in (None, 0, True, "", "blue", "RED", ["red"])],
    *[("tags", value) for value in (None, "a,b", 7, [1], ["a", None], [["a"]], {"a": "b"}, {"a"})],
    *[("label", value) for value in (7, True, [], {})],
    *[("limit", value) for value in (True, 1.5, "1", "none", [])],
    *[("tint", value) for value in (7, "blue", "none", [])],
    *[("inner", value) for value in (None, 7, "size", [], [("size", 1)])],
]


@pytest.mark.parametrize(("name", "value"), NOT_COERCED, ids=repr)
def test_types_are_never_coerced(name, value):
    error = refusal({"name": "n"} | {name: value})
    assert name == error.field
    assert str(error).startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("count", "yes", "must be a whole number, not 'yes' (str)"),
        ("is_open", "yes", "must be true or false, not 'yes' (str)"),
        ("age_s", "x", "must be a number, not 'x' (str)"),
        ("tags", 7, "must be a list of strings, not 7 (int)"),
        ("label", 7, "must be a string or none, not 7 (int)"),
        ("colour", "gren", "'gren' is not one of red, green; did you mean green?"),
        ("colour", 7, "must be one of red, green, not 7 (int)"),
        ("inner", 7, "must be a table of settings, not 7 (int)"),
    ],
)
def test_errors_say_what_is_wanted_and_what_was_found(name, value, words):
    assert f"{name}: {words}" == str(refusal({"name": "n", name: value}))


def test_an_unknown_setting_names_the_nearest_known_one():
    error = refusal({"name": "n", "cuont": 1})
    assert (error.field, str(error)) == ("cuont", "cuont: unknown setting; did you mean count?")
    assert str(refusal({"name": "n", "zzz": 1})) == "zzz: unknown setting"


@pytest.mark.parametrize(
    "name", [7, None, ("name",), b"name", True, 1 << 20_000], ids=["int", "none", "tuple", "bytes", "bool", "huge"]
)
def test_a_name_that_is_no_text_is_unknown(name):
    assert "unknown setting" in str(refusal({"name": "n", name: 1}))


def test_a_missing_setting_is_named():
    error = refusal({"count": 1})
    assert (error.field, str(error)) == ("name", "name: is missing")


def test_a_nested_setting_is_named_with_its_path():
    inner = {"name": "n", "inner": {"size": "big"}}
    assert refusal(inner).field == "inner.size"
    assert refusal(inner, path="node").field == "node.inner.size"
    assert refusal({}, path="node").field == "node.name"
    assert str(refusal({"name": "n", "inner": {"sise": 1}})) == "inner.sise: unknown setting; did you mean size?"


@pytest.mark.parametrize("given_settings", [None, 7, "name", [], [("name", "n")], b"{}"])
def test_what_is_no_table_is_refused(given_settings):
    assert refusal(given_settings).field == "settings"
    assert refusal(given_settings, path="node").field == "node"


def test_long_values_and_names_are_not_told_at_length():
    assert len(str(refusal({"name": "n", "count": "x" * 1_000_000}))) < 200
    assert len(str(refusal({"name": "n", "count": [0] * 10_000}))) < 200
    assert len(str(refusal({"name": "n", "colour": "x" * 1_000_000}))) < 200
    assert len(str(refusal({"name": "n", "x" * 1_000_000: 1}))) < 200


@pytest.mark.parametrize("name", ["name", "count", "age_s"])
def test_an_integer_too_large_to_print_is_refused_or_read(name):
    attempt(lambda value: parse_settings(Outer, {"name": "n", name: value}), 1 << 20_000, ConfigError)


@pytest.mark.parametrize("number", [10**309, -(10**309), 10**4_000], ids=["large", "small", "larger"])
def test_an_integer_too_large_for_a_float_is_refused(number):
    assert refusal({"name": "n", "age_s": number}).field == "age_s"


TEXTS = [
    ("name", "7", "7"),
    ("name", "none", "none"),
    ("name", "", ""),
    ("count", "7", 7),
    ("count", "-7", -7),
    ("age_s", "1.5", 1.5),
    ("age_s", "2", 2),
    ("age_s", "1e3", 1_000.0),
    ("is_open", "true", True),
    ("is_open", "False", False),
    ("is_open", "TRUE", True),
    ("colour", "green", "green"),
    ("tags", "a, b ,,c", ["a", "b", "c"]),
    ("tags", "", []),
    ("label", "text", "text"),
    ("label", "none", None),
    ("label", "", None),
    ("limit", "None", None),
    ("limit", "9", 9),
    ("tint", "red", "red"),
    ("tint", "none", None),
]


@pytest.mark.parametrize(("name", "text", "expected"), TEXTS)
def test_text_of_the_environment_is_converted(name, text, expected):
    found = from_text(Outer, name, text)
    assert (expected, type(expected)) == (found, type(found))
    parse_settings(Outer, {"name": "n", name: found})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *[
            ("count", text)
            for text in ("", "yes", "1.5", "1_000", "0x10", "none", "true", "7 7", "\u0667x", "9" * 5_000)
        ],
        *[("age_s", text) for text in ("", "fast", "true", "1,5", "[1.5]")],
        *[("is_open", text) for text in ("", "yes", "on", "1", "0", "none", "null", '"true"')],
        *[("colour", text) for text in ("", "blue", "Red")],
        *[("tint", text) for text in ("blue", "null")],
        *[("limit", text) for text in ("many", "true", "1.0")],
        *[("inner", text) for text in ("7", "", "text", "[]")],
    ],
)
def test_text_that_spells_no_value_is_refused(name, text):
    with pytest.raises(ConfigError) as caught:
        parse_settings(Outer, {"name": "n", name: from_text(Outer, name, text)})
    assert name == caught.value.field


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000], ids=["lists", "tables"])
def test_text_that_is_nested_without_end_is_refused(text):
    with pytest.raises(ConfigError):
        from_text(Outer, "count", text)


def test_a_long_text_is_not_told_at_length():
    with pytest.raises(ConfigError) as caught:
        from_text(Outer, "count", "x" * 100_000)
    assert len(str(caught.value)) < 200


@examples(200)
@given(st.sampled_from(sorted(FULL)), st.text(max_size=20))
def test_any_text_is_refused_or_a_setting(name, text):
    attempt(lambda value: parse_settings(Outer, {"name": "n", name: from_text(Outer, name, value)}), text, ConfigError)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
TABLES = st.fixed_dictionaries({}, optional=dict.fromkeys((*FULL, "unknown"), VALUES))


@examples(200)
@given(VALUES | TABLES | TABLES.map(lambda table: FULL | table))
def test_any_table_is_refused_or_read(table):
    found = attempt(lambda given_table: parse_settings(Outer, given_table), table, ConfigError)
    if found is not None:
        assert repr(found) == repr(parse_settings(Outer, to_plain(found)))
