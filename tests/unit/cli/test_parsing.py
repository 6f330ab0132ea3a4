"""Command lines that can not be parsed end with 2, and are told as JSON to whoever asked for that."""

from __future__ import annotations

import json

import pytest

from support.cli import Cli

MISTAKES = [
    ("stream ls", "--bogus", "No such option: --bogus"),
    ("stream", "nothing", "No such command 'nothing'"),
    ("", "nothing", "No such command 'nothing'"),
    ("tier fork", "orders copy", "Missing option '--subject'"),
    ("tier cursor set", "orders", "Missing argument 'name'"),
    ("tier cursor set", "orders mine many", "Invalid value for 'offset'"),
    ("tier status", "--limit -1", "Invalid value for '--limit'"),
    ("tier gc", "orders --grace", "Option '--grace' requires an argument"),
]


@pytest.mark.parametrize(("command", "arguments", "said"), MISTAKES)
@pytest.mark.parametrize("flag", ["--json", "-j", None])
def test_what_can_not_be_parsed(tmp_path, command, arguments, said, flag):
    # a group has no such flag; there it stands behind what is wrong
    words = [command, flag or "", arguments] if " " in command else [command, arguments, flag or ""]
    given = " ".join(words).split()
    error = Cli(None, tmp_path).error(*given, code=2)
    if flag is None:
        assert "Error: " in error
        assert said.lower() in error.lower()  # versions of typer write names of arguments small, or large
    else:
        told = json.loads(error)["error"]
        assert told["kind"] == "UsageError"
        assert said.lower() in told["message"].lower()


def test_what_stands_before_the_command_is_told_so_too(tmp_path):
    cli = Cli(None, tmp_path)
    told = json.loads(cli.error("--bogus", "stream", "ls", "--json", code=2))
    assert told["error"]["message"].startswith("No such option: --bogus")
    told = json.loads(cli.error("--timeout", "soon", "stream", "ls", "--json", code=2))
    assert told["error"]["message"].startswith("--timeout: 'soon' is not a time span")
    assert "error: --timeout: 'soon' is not a time span" in cli.error("--timeout", "soon", "stream", "ls", code=2)


def test_a_flag_behind_two_dashes_is_none(tmp_path):
    assert "Usage:" in Cli(None, tmp_path).error("stream", "nothing", "--", "--json", code=2)
