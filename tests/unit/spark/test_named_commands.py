"""Commands that messages and pages about Spark name are there, with the options that they name."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest
from typer.main import get_command

from liftpy.cli.app import app

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"\bliftpy (stream|tier|spark|group|context) ([a-z]+)\b(?!\")([^`.;\n]*)")
OPTION = re.compile(r"--[a-z][a-z-]*")
FILES = sorted(chain((ROOT / "clients/liftpy_spark").rglob("*.py"), (ROOT / "docs/spark").glob("*.md")))


def named():
    for file in FILES:
        for group, command, rest in NAMED.findall(file.read_text()):
            yield pytest.param(group, command, OPTION.findall(rest), id=f"{file.name}: {group} {command}{rest:.40}")


@pytest.mark.parametrize(("group", "command", "options"), [*named()])
def test_what_is_named_is_there(group, command, options):
    commands = get_command(app).commands[group].commands
    assert command in commands
    known = {
        option for parameter in commands[command].params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert {*options} <= known
