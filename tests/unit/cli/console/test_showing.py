"""How the console shows payloads, numbers and gaps."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy.cli.console.guard import Guard, is_loopback
from liftpy.cli.console.messages import LIMIT, Query
from liftpy.cli.console.showing import brief, dollars, payload, points, rate, share, spans
from liftpy.cli.console.watcher import POINTS_MAX, Course
from liftpy_client.errors import UsageError


@pytest.mark.parametrize(
    ("data", "kind", "text", "is_cut"),
    [
        (None, "none", "", False),
        (b"", "empty", "", False),
        (b'{"b": [1, "\xc3\xa9"]}', "json", '{\n  "b": [\n    1,\n    "é"\n  ]\n}', False),
        (b"{not json", "text", "{not json", False),
        (b"[" * 100_000, "text", "[" * 65_536, True),
        (b"two\nlines\x1b[31m", "text", "two\nlines\\x1b[31m", False),
        (b"\x00A\xff", "hex", "000000  00 41 ff" + " " * 40 + " .A.", False),
        (b"x" * 70_000, "text", "x" * 65_536, True),
    ],
)
def test_payloads(data, kind, text, is_cut):
    assert payload(data) == (kind, text, is_cut)


def test_long_binary_payloads_are_cut():
    shown = payload(b"\xff" * 10_000)
    assert (shown.kind, shown.is_cut, shown.text.count("\n") + 1) == ("hex", True, 256)


@given(st.binary(max_size=2_000))
def test_any_bytes_can_be_shown(data):
    assert payload(data).kind in {"json", "text", "hex", "empty"}
    assert len(brief(data)) <= 330
    assert brief(data).isprintable()


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_says_the_same_when_it_is_indented(value):
    shown = payload(json.dumps([value]).encode())
    assert (shown.kind, json.loads(shown.text)) == ("json", [value])


@pytest.mark.parametrize(
    "published",
    ['{"price":1.10,"id":12345678901234567890.5}', '{"a":1,"a":2}', '["\\ud800","a\\"b\\\\",1e999]', "[[],{},[ ]]"],
)
def test_json_is_shown_as_it_was_published(published):
    shown = payload(published.encode())
    assert (shown.kind, shown.is_cut) == ("json", False)
    shown.text.encode()
    assert "".join(shown.text.split()) == "".join(published.split())


def test_what_json_strings_have_does_not_act_on_the_page():
    assert payload('["\u202e\u00a0é"]'.encode()) == ("json", '[\n  "\\u202e\\u00a0é"\n]', False)


def test_deeply_nested_json_does_not_become_a_huge_page():
    stack = "[" * 900 + "]" * 900
    shown = payload(f"[{','.join([stack] * 140)}]".encode())
    assert (shown.kind, shown.is_cut) == ("json", True)
    assert len(shown.text) < 300_000


@pytest.mark.parametrize("host", [b"[::1", b"[", b"a]", b"\xff"])
def test_a_host_that_is_none_is_refused(host):
    assert Guard(None, None)._refusal({b"host": host}).status_code == 421


def test_a_course_keeps_the_newest_points_and_fits_its_field():
    course = Course()
    assert points(course) == ""
    for number in range(POINTS_MAX + 50):
        course.add(1_000.0 + 2 * number, float(number))
    assert (len(course.points), course.last) == (POINTS_MAX, POINTS_MAX + 49)
    pairs = [tuple(map(float, pair.split(","))) for pair in points(course).split()]
    assert (pairs[0][0], pairs[-1]) == (0.0, (300.0, 2.0))
    assert all(0 <= x <= 300 and 0 <= y <= 40 for x, y in pairs)
    flat = Course()
    flat.add(5.0, 0.0)
    flat.add(5.0, 0.0)
    assert points(flat) == "0.0,40.0 0.0,40.0"


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.none() | st.integers(0, 10**6)), max_size=20),
    st.integers(0, 2 * 10**6),
)
def test_gaps_are_on_their_time_line(times, now_ns):
    gaps = [{"since_ns": since, "until_ns": None if length is None else since + length} for since, length in times]
    found = spans(gaps, max([now_ns, *(gap["since_ns"] for gap in gaps)]))
    assert [span.gap for span in found] == gaps
    for span in found:
        assert 0 <= span.x <= 1_000
        assert 3 <= span.width <= 1_000
        assert span.x + span.width <= 1_003.1


def test_rates():
    assert [rate(number) for number in (None, 0, 0.25, 12.6, 1234.5)] == ["-", "0/s", "0.2/s", "13/s", "1,234/s"]


def test_shares_and_amounts():
    assert [share(part) for part in (None, 0, 0.256, 1.5)] == ["-", "0 %", "26 %", "150 %"]
    assert [dollars(amount) for amount in (0, 0.00012345, 1, 1234.567)] == ["$0.00", "$0.000123", "$1.00", "$1,234.57"]


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True)]
    + [(host, False) for host in ("", "0.0.0.0", "10.0.0.1", "::", "localhost.example.com", "127.0.0.1.nip.io")],
)
def test_loopback(host, is_local):
    assert is_loopback(host) is is_local


def test_what_a_form_asks_for():
    assert Query.of_fields({}, 3) == Query(partition=None, place="newest", limit=LIMIT)
    asked = {"partition": " 1", "from": "7", "key": "k", "subject": "", "limit": "9", "unknown": "x"}
    assert Query.of_fields(asked, 3) == Query(partition=1, place=7, key="k", limit=9)
    assert Query.of_fields({"from": "7"}, 1).partition == 0, "there is no other"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"partition": "3"}, "partition"),
        ({"partition": "one"}, "partition"),
        ({"from": "7"}, "from"),
        ({"from": "soon"}, "from"),
        ({"limit": "501"}, "limit"),
        ({"contains": "x" * 1_001}, "contains"),
    ],
)
def test_what_a_form_may_not_ask_for(fields, named):
    with pytest.raises(UsageError, match=f"^{named}: "):
        Query.of_fields(fields, 3)
