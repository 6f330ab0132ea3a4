"""Errors of a NATS server are told apart by whether they end the connection, and blame the right subscription."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from liftpy_server.ingest.server_errors import refused_bindings, split_errors


def binding(subject, group=None):
    return SimpleNamespace(subject=subject, group=group)


@pytest.mark.parametrize(
    ("control", "others", "errors"),
    [
        (b"", b"", []),
        (b"PING\r\n", b"PING\r\n", []),
        (b"-ERR 'Slow Consumer'\r\n", b"", ["Slow Consumer"]),
        (b"PING\r\n-ERR 'a'\r\nPONG\r\n-ERR 'b'\r\n", b"PING\r\nPONG\r\n", ["a", "b"]),
        (b"-ERR 'no \"q\"'\r\n+OK\r\n", b"+OK\r\n", ['no "q"']),
        (b'INFO {"x":"-ERR \'a\'"}\r\n', b'INFO {"x":"-ERR \'a\'"}\r\n', []),
        (b"-ERR\r\n", b"", [""]),
        (b"-ERR '\xff'\r\n", b"", ["\ufffd"]),
    ],
)
def test_errors_are_taken_out(control, others, errors):
    assert (others, errors) == split_errors(control)


ASKED = [
    binding("a.>"),
    binding("a"),
    binding("A"),
    binding("a", "workers"),
    binding('q"uote'),
    binding("ü.€"),
    binding("a"),
]


@pytest.mark.parametrize(
    ("text", "blamed"),
    [
        ('Permissions Violation for Subscription to "a.>"', [0]),
        ('Permissions Violation for Subscription to "a"', [1, 6]),
        ('Permissions Violation for Subscription to "A"', [2]),
        ('Permissions Violation for Subscription to "a" using queue "workers"', [3]),
        ('Permissions Violation for Subscription to "a" (sid "7")', [1, 6]),
        ('Permissions Violation for Subscription to "q\\"uote"', [4]),
        ('Permissions Violation for Subscription to "ü.€"', [5]),
        ('Permissions Violation for Subscription to "unknown"', []),
        ("maximum subscriptions exceeded", [6]),
    ],
)
def test_subscriptions_that_are_refused(text, blamed):
    assert [ASKED[number] for number in blamed] == refused_bindings(text, ASKED)


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
    assert refused_bindings(text, ASKED) is None


def test_nothing_asked_for_nothing_refused():
    assert refused_bindings("maximum subscriptions exceeded", []) == []
