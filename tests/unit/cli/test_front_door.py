"""The command and the package are there at once; what is heavy is imported by what needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from typer.main import get_command

from liftpy.cli.app import SUMMARIES, app

HEAVY = {
    "pyarrow",
    "numpy",
    "msgspec",
    "boto3",
    "pandas",
    "pyspark",
    "uvloop",
    "aiohttp",
    "pydantic",
    "nacl",
    "pygments",
}
COMMAND = "import sys, liftpy.__main__ as main; sys.argv = ['liftpy', {arguments}]; main.main()"
LIST = COMMAND.format(arguments="'-s', 'nats://127.0.0.1:1', '--timeout', '1s', 'stream', 'ls'")
"""A refused connection is enough to see what it imports."""


def loaded(code):
    """The modules of a process, after it did something."""
    script = f"import sys, atexit; atexit.register(lambda: print('', *sys.modules, file=sys.stderr)); {code}"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" not in found.stderr
    return found.stderr.splitlines()[-1].split()


@pytest.mark.parametrize(
    ("code", "allowed", "modules_max"),
    [
        ("import liftpy", set(), 90),
        (COMMAND.format(arguments="'--help'"), set(), 260),
        (COMMAND.format(arguments="'--version'"), set(), 290),
        (LIST, {"nats"}, 356),
    ],
)
def test_few_modules_are_imported_for(code, allowed, modules_max):
    """Modules rather than seconds are counted: a module costs about as much on every machine."""
    modules = loaded(code)
    assert {module.partition(".")[0] for module in modules} & (HEAVY | {"nats"}) == allowed
    assert len(modules) <= modules_max


def test_jetstream_of_nats_py_is_loaded_where_it_is_used():
    assert "nats.js.api" not in loaded(LIST)
    use = "from liftpy.cli.late_jetstream import load_jetstream_late; load_jetstream_late(); import nats; "
    assert "nats.js.api" not in loaded(use)
    assert "nats.js.api" in loaded(use + "assert nats.js.api.Header.STATUS == 'Status'")
    assert "nats.js.api" in loaded(use + "from nats.js.api import Header; assert Header.STATUS == 'Status'")


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["--count", "7"], {"count": 7, "key": None, "header": ()}),
        (["--header", "a:b", "--header", "c:d"], {"header": ["a:b", "c:d"], "count": 1}),
        (["--key", "k", "--tombstone"], {"key": "k", "tombstone": True, "header": ()}),
        (["--key", "schlüssel"], {"key": "schlüssel"}),
    ],
)
def test_values_have_the_types_of_their_options(arguments, values):
    command = get_command(app).commands["publish"]
    context = command.make_context("publish", ["orders.new", *arguments])
    assert {name: context.params[name] for name in values} == values


@pytest.mark.parametrize("arguments", [["--count", "x"], ["--count", "0"], ["--expected-offset", "-1"]])
def test_a_value_of_the_wrong_type_is_refused(arguments):
    command = get_command(app).commands["publish"]
    with pytest.raises(typer.BadParameter):
        command.make_context("publish", ["orders.new", *arguments])


def groups_of(group, *path):
    """All groups of commands, with their paths."""
    yield path, group
    for name in group.commands:
        if hasattr(group.commands[name], "commands"):
            yield from groups_of(group.commands[name], *path, name)


@pytest.mark.parametrize("words", [{"ls", "list"}, {"info", "describe"}])
def test_two_words_mean_the_same_everywhere(words):
    for path, group in groups_of(get_command(app)):
        both = words & set(group.commands)
        assert len(both) in {0, 2}, path
        assert len({group.commands[name].callback.__wrapped__ for name in both}) <= 1, path
        assert sum(not group.commands[name].hidden for name in both) == len(both) // 2, path


@pytest.mark.parametrize("name", SUMMARIES)
def test_the_list_says_what_the_command_says(name):
    command = get_command(app).commands[name]
    assert command.name == name
    assert " ".join(command.help.split("\n\n")[0].split()) == SUMMARIES[name]
