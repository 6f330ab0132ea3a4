"""`liftpy spark ...`: sizes and time spans that are none are told with their option, before a bucket is asked for."""

from __future__ import annotations

import json

import pytest

from support.cli import Cli

MISTAKES = [
    (("scrub",), "--task-bytes", "size"),
    (("export", "orders", "target"), "--task-bytes", "size"),
    (("export", "orders", "target"), "--hold", "time span"),
    (("merge", "orders"), "--object-bytes", "size"),
    (("compact", "orders"), "--task-bytes", "size"),
    (("compact", "orders"), "--object-bytes", "size"),
    (("collect",), "--grace", "time span"),
    (("collect",), "--staging-grace", "time span"),
    (("restore",), "--task-bytes", "size"),
    (("restore",), "--hold", "time span"),
]


@pytest.mark.parametrize(("command", "option", "what"), MISTAKES)
def test_a_size_or_a_time_that_is_none(tmp_path, command, option, what):
    cli = Cli(None, tmp_path)
    said = f"{option}: 'many' is not a {what} such as"
    assert said in cli.error("spark", *command, option, "many", code=2)
    told = json.loads(cli.error("spark", *command, option, "many", "--json", code=2))
    assert told["error"]["kind"] == "UsageError"
    assert said in told["error"]["message"]
