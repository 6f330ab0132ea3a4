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


def test_a_staging_directory_that_is_none(tmp_path):
    cli = Cli(None, tmp_path)
    for path, more, said in (
        ("staging", (), "'staging' is no absolute path"),
        (str(tmp_path / "missing"), (), f"there is no directory {tmp_path}/missing on this machine"),
        (str(tmp_path), ("-p", "1"), "what is staged is of a stream, so leave --partition out"),
    ):
        told = json.loads(cli.error("spark", "collect", "orders", "--staging-directory", path, *more, "--json", code=2))
        assert told["error"]["message"] == f"--staging-directory: {said}"
