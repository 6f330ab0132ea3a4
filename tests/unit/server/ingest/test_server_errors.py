"""Errors of a NATS server blame the right subscription, and settle nothing when they can not be understood."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from liftpy_server.ingest.server_errors import refused_bindings, unquote_go


def binding(subject, group=None):
    return SimpleNamespace(subject=subject, group=group)


ASKED = [
    binding("a.>"),
    binding("a"),
    binding("A"),
    binding("a", "workers"),
    binding('q"uote'),
    binding("ü.€"),
    binding("a"),
    binding("zero\u200bwidth"),
    binding("\x07bell\x7f\U000e0001.\U0001f600", "wor\u200bkers"),
]
NUMBERED = dict(enumerate(ASKED, 2))


@pytest.mark.parametrize(
    ("text", "blamed"),
    [
        ('Permissions Violation for Subscription to "a.>"', [0]),
        ('Permissions Violation for Subscription to "a"', [1, 6]),
        ('Permissions Violation for Subscription to "A"', [2]),
        ('Permissions Violation for Subscription to "a" using queue "workers"', [3]),
        ('Permissions Violation for Subscription to "a" (sid "8")', [6]),
        ('Permissions Violation for Subscription to "q\\"uote"', [4]),
        ('Permissions Violation for Subscription to "ü.€"', [5]),
        ('Permissions Violation for Subscription to "a.>", too many tokens', [0]),
        (r'Permissions Violation for Subscription to "zero\u200bwidth"', [7]),
        (
            r'Permissions Violation for Subscription to "\abell\x7f\U000e0001.😀" using queue "wor\u200bkers"',
            [8],
        ),
        ("maximum subscriptions exceeded", [8]),
    ],
)
def test_subscriptions_that_are_refused(text, blamed):
    assert [ASKED[number] for number in blamed] == refused_bindings(text, NUMBERED, [])


@pytest.mark.parametrize(
    "text",
    [
        "Slow Consumer",
        "Authorization Violation",
        "Stale Connection",
        "",
        "Secure Connection - TLS Required",
        'Permissions Violation for Publish to "a"',
    ],
)
def test_errors_about_something_else(text):
    assert refused_bindings(text, NUMBERED, []) is None


def test_nothing_asked_for_nothing_refused():
    assert refused_bindings("maximum subscriptions exceeded", {}, []) == []


@pytest.mark.parametrize(
    "text",
    [
        'Permissions Violation for Subscription to "unknown"',
        "Permissions Violation for Subscription to a in other words",
        "Invalid Subject",
    ],
)
def test_what_can_not_be_understood_refuses_what_is_not_confirmed(text):
    assert refused_bindings(text, NUMBERED, ASKED[2:4]) == ASKED[2:4]
    assert refused_bindings(text, NUMBERED, []) == ASKED


@pytest.mark.parametrize(
    ("quoted", "subject"),
    [
        ('""', b""),
        ('"a.*.>"', b"a.*.>"),
        (r'"\\"', b"\\"),
        (r'"\"\\"', b'"\\'),
        (r'"\xffx"', b"\xffx"),
        (r'"\u00ad\U0001f600"', "\u00ad\U0001f600".encode()),
        ('"\u200b"', "\u200b".encode()),
        ("a", None),
        ('"', None),
        (r'"\ud800"', None),
    ],
)
def test_what_go_quotes_is_read(quoted, subject):
    assert unquote_go(quoted) == subject
