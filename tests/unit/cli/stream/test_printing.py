"""What `liftpy consume` prints of a message."""

from __future__ import annotations

import json

import pytest

from liftpy.cli.stream.printing import (
    Style,
    dead_letter_json_printer,
    json_printer,
    raw_printer,
    template_printer,
    text_printer,
)
from liftpy_client.errors import UsageError
from liftpy_client.message import Message
from liftpy_client.processing.dead_letters import dead_letter_headers
from liftpy_envelope.headers import encode_header_block

NS = 1_769_860_800_123_456_789
TIME = "2026-01-31 12:00:00.123456"


def message(value=b"v", *, key=None, headers=None, subject="orders.new", partition=0):
    return Message("orders", partition, 7, NS, subject, key, headers, value)


def text(found, **style):
    return text_printer(Style(**style))(found).decode()


def test_text_says_place_date_subject_key_and_value():
    assert text(message(key=b"k")) == f"7 {TIME} orders.new k v\n"
    assert text(message(partition=2), several=True) == f"orders 2:7 {TIME} orders.new v\n"
    assert text(message(None)) == f"7 {TIME} orders.new (tombstone)\n"


def test_values_are_whole_in_a_pipe_and_cut_on_a_terminal():
    long = message(b"x" * 500)
    assert "x" * 500 in text(long)
    assert text(long, shortened=True).endswith(" " + "x" * 200 + "…\n")


def test_headers_are_printed_if_wanted_and_the_key_once():
    found = message(key=b"k", headers=b"NATS/1.0\r\nA: 1\r\nA: 2\r\nLift-Key: k\r\n\r\n")
    assert text(found) == f"7 {TIME} orders.new k v\n"
    assert text(found, headers=True) == f"7 {TIME} orders.new {{A: 1; A: 2}} k v\n"


def dead_letter(**changes):
    headers = dead_letter_headers(
        message(b"v", partition=2, headers=b"NATS/1.0\r\nA: 1\r\n\r\n"), "billing", 5, KeyError("no")
    )
    return message(b"v", subject="dead.orders", headers=encode_header_block(headers | changes))


def test_dead_letters_say_where_they_come_from_and_why():
    shown = text(dead_letter(), dead_letters=True)
    assert shown == f"7 {TIME} dead.orders [orders 2:7 orders.new, 5 attempts by billing: KeyError: 'no'] v\n"
    assert "{A: 1} v" in text(dead_letter(), dead_letters=True, headers=True)
    assert "\x1b" not in text(dead_letter(**{"Dead-Letter-Cause": "\x1b[2J"}), dead_letters=True)
    for broken in (message(), dead_letter(**{"Dead-Letter-Offset": "x"})):
        assert "(no dead letter)" in text(broken, dead_letters=True)


def test_dead_letters_as_json():
    shown = json.loads(dead_letter_json_printer(dead_letter()))
    assert shown["headers"] == {"A": "1"}
    assert shown["dead_letter"] == {
        "cause": "KeyError: 'no'",
        "attempts": 5,
        "group": "billing",
        "stream": "orders",
        "partition": 2,
        "offset": 7,
        "subject": "orders.new",
        "time": "2026-01-31T12:00:00.123456+00:00",
    }
    assert json.loads(dead_letter_json_printer(message()))["dead_letter"] is None


def test_nothing_acts_on_the_terminal():
    found = message(b"\x1b[2J\n", key=b"\x07", subject="a.\x9b", headers=b"NATS/1.0\r\nA: \x1b[1m\r\n\r\n")
    template = template_printer("{key}{value}{subject}{headers}", safe=True)
    for line in (text(found, headers=True), template(found).decode()):
        assert line.removesuffix("\n").isprintable()


def test_colors_only_where_they_are_wanted():
    assert "\x1b" not in text(message(key=b"k"))
    assert "\x1b[36mk\x1b[0m" in text(message(key=b"k"), colors=True)


def test_the_second_changes():
    show = text_printer(Style())
    first, second = message(), message()
    second.timestamp_ns += 1_000_000_000
    assert [show(each).decode().split()[2] for each in (first, second, first)] == [
        "12:00:00.123456", "12:00:01.123456", "12:00:00.123456",
    ]  # fmt: skip


def test_json_keeps_all_values_of_a_header():
    shown = json.loads(json_printer(message(b"\xff", headers=b"NATS/1.0\r\nA: 1\r\nB: x\r\nA: 2\r\nA: 3\r\n\r\n")))
    assert shown["headers"] == {"A": ["1", "2", "3"], "B": "x"}
    assert shown["value_base64"] == "/w=="
    assert "value" not in shown


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("{offset} {subject} {key} {value}", b"7 orders.new k v\x1b\n"),
        (r"{stream}\t{partition}\\n{{}}", b"orders\t0\\n{}\n"),
        ("{time} {timestamp_ns}", b"2026-01-31T12:00:00.123456+00:00 1769860800123456789\n"),
        ("{headers}", b"A: 1; A: 2\n"),
        ("", b"\n"),
    ],
)
def test_a_template(template, line):
    found = message(b"v\x1b", key=b"k", headers=b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n")
    assert template_printer(template, safe=False)(found) == line


@pytest.mark.parametrize("template", ["{", "{x}", "{}", "{offset.real}", "{offset:>8}", "{key!r}"])
def test_a_wrong_template_is_refused(template):
    with pytest.raises(UsageError, match="--format"):
        template_printer(template, safe=False)


def test_a_template_with_a_width_is_told_what_to_write():
    with pytest.raises(UsageError, match=r"a field has no width and no conversion; write \{offset\}"):
        template_printer("{offset:>5}", safe=False)


def test_values_alone_are_as_they_are():
    assert raw_printer(message(b"\xff\n")) == b"\xff\n\n"
    assert raw_printer(message(None)) == b"\n"
