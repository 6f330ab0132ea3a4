"""The `liftpy` command, run as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from liftpy.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = (sys.executable, "-m", "liftpy")
RUN_S_MAX = 100


class Cli:
    """Runs commands inside this process, without what the environment says of NATS.

    Args:
        url: of the NATS server; None leaves it to the environment.
        home: where contexts are looked for.
    """

    def __init__(self, url: str | None, home: Path, **environment: str) -> None:
        self._prefix = [] if url is None else ["-s", url]
        unset = dict.fromkeys((name for name in os.environ if name.startswith(("NATS_", "LIFTPY_"))), None)
        self.environment = unset | {"XDG_CONFIG_HOME": str(home), "COLUMNS": "200"} | environment

    def run(self, *arguments: str, code: int = 0, answer: str | None = None) -> Any:
        """Run a command that ends with `code`; a traceback is never right."""
        result = CliRunner().invoke(app, [*self._prefix, *arguments], input=answer, env=self.environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
        assert "Traceback" not in result.output
        assert result.exit_code == code, result.output
        return result

    def out(self, *arguments: str) -> str:
        """What a command prints."""
        return self.run(*arguments).stdout

    def json(self, *arguments: str) -> Any:
        """The JSON that a command prints."""
        return json.loads(self.run(*arguments, "--json").stdout)

    def lines(self, *arguments: str) -> list[Any]:
        """The JSON lines that a command prints."""
        return [json.loads(line) for line in self.run(*arguments, "--json").stdout.splitlines()]

    def error(self, *arguments: str, code: int = 1) -> str:
        """What a command says when it fails: in words, and as JSON for scripts."""
        result = self.run(*arguments, code=code)
        assert result.stdout == ""
        return result.stderr


def environment_of(home: Path, **more: str) -> dict[str, str]:
    """An environment for processes of their own."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("NATS_", "LIFTPY_"))}
    return kept | {"HOME": str(home), "XDG_CONFIG_HOME": str(home)} | more


def run_process(*arguments: str, home: Path, data: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a process of its own."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=data,
        capture_output=True,
        timeout=RUN_S_MAX,
        check=False,
        env=environment_of(home, **more),
    )


class DevProcess:
    """`liftpy dev --json`, and the nats-server that it starts."""

    def __init__(self, data: Path, home: Path, *arguments: str, **more: str) -> None:
        command = [*COMMAND, "dev", "--data-dir", str(data), "--port", "0", "--pull-port", "0", "--json", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment_of(home, **more)
        )
        self.ready = json.loads(self.process.stdout.readline() or "{}")

    @property
    def url(self) -> str:
        return self.ready["nats_url"]

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, bytes]:
        """Exit code, and what it said."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=RUN_S_MAX)
        return self.process.returncode, said


def line_with(text: str, *words: str) -> str:
    """The line of a table that has all of these words."""
    padded = (f" {line} ".replace("\t", "  ") for line in text.splitlines())
    lines = [line for line in padded if all(word in line for word in words)]
    assert len(lines) == 1, text
    return lines[0]
