"""What the documentation shows works as it stands there.

Python snippets run against a node; `<!-- not run -->` before one says that it is a sketch. Names that a snippet takes
for granted (`lift`, `nc`, `values`, `record_batch`) are there. Commands are checked for verbs and options that exist.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shlex
import textwrap
from pathlib import Path

import nats
import pyarrow as pa
import pytest
import typer

import liftpy
from liftpy.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(<!-- not run -->\s*)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ADDRESS = re.compile(r"nats://(?:127\.0\.0\.1|localhost):4222")


def blocks(*languages):
    """Every block in one of the languages, with a name that says where it stands."""
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            if match[2] in languages and not match[1]:
                line = text.count("\n", 0, match.start(3)) + 1
                yield pytest.param(textwrap.dedent(match[3]), id=f"{page.name}:{line}")


def commands():
    """Every command line that begins with `liftpy`."""
    for block in blocks("", "sh", "bash", "shell", "console"):
        for line in block.values[0].replace("\\\n", " ").splitlines():
            words = line.strip().removeprefix("$ ")
            if words.startswith("liftpy "):
                yield pytest.param(words, id=f"{block.id} {words}"[:100])


@pytest.fixture
async def ending_consumers(monkeypatch):
    """Consumers that would go on for ever stop at what is there now."""
    for name in ("consume", "consume_batches"):
        consume = getattr(liftpy.Lift, name)

        def until_now(self, stream, *, stop=None, _consume=consume, **where):
            return _consume(self, stream, stop=stop or "latest", **where)

        monkeypatch.setattr(liftpy.Lift, name, until_now)


@pytest.mark.parametrize("source", list(blocks("python")))
async def test_snippet(source, shared_lift, shared_nats, ending_consumers):
    for stream in [stream async for stream in shared_lift.streams()]:
        await shared_lift.delete_stream(stream.name)
    if "create_stream" not in source:
        await shared_lift.create_stream("orders", subject="orders.>")
        await shared_lift.publish("orders.new", b"first")
    client = await nats.connect(shared_nats.url)
    names = {
        "liftpy": liftpy,
        "lift": shared_lift,
        "nc": client,
        "values": [b"1", b"2"],
        "record_batch": pa.record_batch({"value": pa.array([b"3", b"4"])}),
        "__name__": "__main__",
    }
    source = ADDRESS.sub(shared_nats.url, source)
    code = compile(source, "snippet", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    try:
        async with asyncio.timeout(40):
            if inspect.CO_COROUTINE & code.co_flags:
                await eval(code, names)
            else:
                await asyncio.to_thread(exec, code, names)
    finally:
        await client.close()


@pytest.mark.parametrize("line", list(commands()))
def test_command(line):
    command = typer.main.get_command(app)
    words = shlex.split(line, comments=True)[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    for word in words:
        verb = getattr(command, "commands", {}).get(word)
        if verb is not None:
            command = verb
            known |= {option for parameter in verb.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert not getattr(command, "commands", {}) or "--help" in words or "--version" in words, f"no such verb: {line}"
    options = {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
    assert options <= known | {"--help", "-h"}
