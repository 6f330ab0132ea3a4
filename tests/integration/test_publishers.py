"""Publishers of other languages, as docs/howto/publish-other-languages.md shows them, against a real node."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.reading import read_all, stored

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "publish-other-languages.md").read_text()
ADDRESS = "nats://127.0.0.1:4222"
RUN_S_MAX = 60
INSTALL_S_MAX = 300
JS_PACKAGES = ("@nats-io/transport-node", "@nats-io/jetstream")
GO_MODULE = "github.com/nats-io/nats.go"

# What the nats CLI takes, from its source (cli/pub_command.go): options, and whether a value follows.
NATS_CLI = {
    "pub": {"-J": False, "--jetstream": False, "-H": True, "--header": True, "--reply": True, "--no-templates": False},
    "request": {"-H": True, "--header": True, "--raw": False, "-r": False, "--no-templates": False},
}


def block(language: str) -> str:
    """The only block of the page in a language."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return text


def program(language: str, url: str) -> str:
    """The only program of the page in a language, for another NATS server."""
    text = block(language)
    assert text.count(ADDRESS) == 1
    return text.replace(ADDRESS, url)


async def run(*command: str, cwd: Path, timeout_s: float = RUN_S_MAX) -> subprocess.CompletedProcess[str]:
    """Run a command, which may fail."""
    return await asyncio.to_thread(
        subprocess.run, command, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def counted_from(before: int, text: str) -> str:
    """The output of a program, on a stream that has this many messages already."""
    return re.sub(r'("(?:seq|offset)":|seq )(\d+)', lambda part: f"{part[1]}{int(part[2]) + before}", text)


async def check(lift, *command: str, cwd: Path) -> None:
    """A program prints what the page says, and stores what it is to store; and again when it runs once more."""
    for before in (0, 5):
        result = await run(*command, cwd=cwd)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout == counted_from(before, block("text"))
    await stored(lift, "orders", 10)
    found = [(message.subject, message.value, message.key) for message in await read_all(lift, "orders")]
    assert found == 2 * [
        ("orders.new", b"1", None),
        ("orders.new", b"2", None),
        ("orders.new", b"3", None),
        ("orders.paid", b"4", b"customer-7"),
        ("orders.paid", None, b"customer-6"),
    ]


@pytest.fixture
async def orders(shared_lift):
    """The stream that the page makes, empty."""
    await shared_lift.create_stream("orders", subject="orders.>")
    yield shared_lift
    await shared_lift.delete_stream("orders")


async def test_python(orders, shared_nats, tmp_path):
    (tmp_path / "publish.py").write_text(program("python", shared_nats.url))
    await check(orders, sys.executable, "publish.py", cwd=tmp_path)


@pytest.mark.slow
async def test_javascript(orders, shared_nats, tmp_path):
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed here")
    (tmp_path / "package.json").write_text("{}")
    installed = await run(
        "npm", "install", "--no-audit", "--no-fund", *JS_PACKAGES, cwd=tmp_path, timeout_s=INSTALL_S_MAX
    )
    if installed.returncode:
        pytest.skip(f"npm can not install {' '.join(JS_PACKAGES)}: {installed.stderr[-300:]}")
    (tmp_path / "publish.mjs").write_text(program("js", shared_nats.url))
    await check(orders, "node", "publish.mjs", cwd=tmp_path)


@pytest.mark.slow
async def test_go(orders, shared_nats, tmp_path):
    if shutil.which("go") is None:
        pytest.skip("go is not installed here")
    (tmp_path / "main.go").write_text(program("go", shared_nats.url))
    for step in (("mod", "init", "publish"), ("get", GO_MODULE), ("mod", "tidy"), ("build", "-o", "publish", ".")):
        done = await run("go", *step, cwd=tmp_path, timeout_s=INSTALL_S_MAX)
        if done.returncode and step[0] != "build":
            pytest.skip(f"go can not fetch {GO_MODULE}: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stderr
    await check(orders, str(tmp_path / "publish"), cwd=tmp_path)


def cli_lines() -> list[str]:
    """The commands of the page for the nats CLI."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return [line for text in blocks for line in text.splitlines() if line.startswith("nats ")]


@pytest.mark.parametrize("line", cli_lines())
def test_commands_of_the_nats_cli_are_spelled_right(line):
    _, verb, *words = shlex.split(line)
    options, arguments = NATS_CLI[verb], []
    rest = iter(words)
    for word in rest:
        if word.startswith("-"):
            value = next(rest) if options[word] else None
            if word in {"-H", "--header"}:
                assert re.fullmatch(r"(Nats|Lift)-[A-Za-z-]+:\S+", value)
        else:
            arguments.append(word)
    assert len(arguments) == 2


async def test_the_nats_cli(orders, shared_nats, tmp_path):
    if shutil.which("nats") is None:
        pytest.skip("the nats CLI is not installed here")
    said = [
        await asyncio.to_thread(
            subprocess.run,
            shlex.split(line),
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"NATS_URL": shared_nats.url, "XDG_CONFIG_HOME": str(tmp_path)},
        )
        for line in cli_lines()
    ]
    assert [result.returncode for result in said] == [0, 0, 0, 0, 0, 1]
    assert len(await read_all(orders, "orders")) == 5
