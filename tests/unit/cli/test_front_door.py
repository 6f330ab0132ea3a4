"""The command and the package are there at once; what is heavy is imported by what needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.main import get_command

from liftpy.cli.app import SUMMARIES, app

HEAVY = {"pyarrow", "numpy", "nats", "boto3", "pandas", "pyspark", "uvloop", "aiohttp"}
COMMAND = "import sys, liftpy.__main__ as main; sys.argv = ['liftpy', {arguments}]; main.main()"


def loaded(code):
    """Top-level names of the modules of a process, after it did something."""
    script = f"import sys, atexit; atexit.register(lambda: print('', *sys.modules, file=sys.stderr)); {code}"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" not in found.stderr
    return {module.partition(".")[0] for module in found.stderr.split()}


@pytest.mark.parametrize(
    "code", ["import liftpy", *(COMMAND.format(arguments=f"'{flag}'") for flag in ("--help", "--version"))]
)
def test_nothing_heavy_is_imported_for(code):
    assert loaded(code) & HEAVY == set()


def test_a_command_of_the_cluster_needs_no_arrow():
    """A refused connection is enough to see what it imports."""
    code = COMMAND.format(arguments="'-s', 'nats://127.0.0.1:1', '--timeout', '1s', 'stream', 'ls'")
    assert loaded(code) & (HEAVY - {"nats"}) == set()


@pytest.mark.parametrize("name", SUMMARIES)
def test_the_list_says_what_the_command_says(name):
    command = get_command(app).commands[name]
    assert command.name == name
    assert " ".join(command.help.split("\n\n")[0].split()) == SUMMARIES[name]
