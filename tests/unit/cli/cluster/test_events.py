"""Events as lines of text."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from liftpy.cli.app import app
from liftpy.cli.cluster.events import event_line

AT = 1_700_000_000_123_000_000


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            {"kind": "leader.changed", "stream": "orders", "partition": 0, "node": "n2", "leader": "n2"}
            | {"unclean": False},
            "leader.changed   orders/0 on n2: leader=n2 unclean=false",
        ),
        ({"kind": "node.gone", "node": "n1", "cause": "its session ended"}, "node.gone        n1: (its session ended)"),
        (
            {"kind": "stream.edited", "stream": "s", "changes": {"paused": [False, True]}},
            "stream.edited    s: changes=paused: False -> True",
        ),
        (
            {"kind": "gap.opened", "stream": "s", "partition": 1, "gap": "n.1.1", "since_ns": AT},
            "gap.opened       s/1: gap=n.1.1 since_ns=2023-11-14T22:13:20.123",
        ),
        ({"kind": "node.draining", "node": "a\x1b[2J"}, "node.draining    a\\x1b[2J"),
        ({"kind": "isr.shrunk", "stream": "s", "partition": 0, "left": ["a", "b"]}, "isr.shrunk       s/0: left=a,b"),
        ({"kind": "of.later", "stream": "s", "x": {"y": 1}}, "of.later         s: x=y: 1"),
    ],
)  # fmt: skip
def test_a_line(event, line):
    assert event_line({"time_ns": AT} | event) == f"2023-11-14 22:13:20.123 {line}"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--kind", "leader.change"], "did you mean leader.changed?"),
        (["--since", "yesterday"], "--since: 'yesterday' is not a time span such as 90s, 1h30m or 7d, or all"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    result = CliRunner().invoke(app, ["-s", "nats://127.0.0.1:1", "events", *arguments])
    assert result.exit_code == 2
    assert text in result.stderr
