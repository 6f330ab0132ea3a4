"""Wrong names of options: type checkers find them in a user's program, and calls refuse them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields

import pytest

import liftpy
from liftpy_client.admin.admin import Admin
from liftpy_client.admin.stream_settings import StreamChanges, StreamSettings
from liftpy_client.connection.nats_options import ConnectOptions, NatsOptions
from liftpy_envelope.errors import ConfigError
from liftpy_envelope.stream_config import StreamConfig
from support.fake_cluster import FakeCluster

_PROGRAM = """
import liftpy

async def main() -> None:
    async with liftpy.connect("nats://h", user="u", password="p", timeout_s=1.0) as lift:
        await lift.create_stream("s", subject="s.>", partitions=3, sync="interval")
        await lift.update_stream("s", retention_age_s=60)
        async for message in lift.consume("s", group="g"):
            print(message.value)
    liftpy.connect("nats://h", usr="u")  # wrong
    liftpy.connect_sync("nats://h", usr="u")  # wrong
    await lift.create_stream("s", subject="s.>", partitons=3)  # wrong
    await lift.create_stream("s", subject="s.>", partitions="3")  # wrong
    await lift.update_stream("s", retention_age=60)  # wrong
"""

_WRONG = {number for number, line in enumerate(_PROGRAM.splitlines(), 1) if "# wrong" in line}


def test_the_names_are_those_of_the_options():
    settings = {field.name for field in fields(StreamConfig)} - {"name", "subject"}
    assert StreamSettings.__annotations__.keys() == settings
    assert StreamChanges.__annotations__.keys() == settings | {"subject"}
    assert ConnectOptions.__annotations__.keys() == {field.name for field in fields(NatsOptions)} - {"url"}


async def test_wrong_names_are_refused_with_those_that_may_be_meant():
    with pytest.raises(ConfigError, match=r"usr.*did you mean user\?"):
        liftpy.connect("nats://127.0.0.1", usr="u")
    admin = Admin(FakeCluster({}))
    with pytest.raises(ConfigError, match=r"partitons.*did you mean partitions\?"):
        await admin.create_stream("s", subject="s.>", partitons=3)
    with pytest.raises(ConfigError, match=r"nonsense: unknown setting"):
        await admin.update_stream("s", nonsense=3)


@pytest.mark.thorough
def test_mypy_finds_what_is_wrong_in_a_users_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")]
    found = subprocess.run(
        [*command, "--config-file=", str(program)], capture_output=True, text=True, check=False, timeout=300
    )
    told = {int(line.split(":")[1]) for line in found.stdout.splitlines() if line.startswith(str(program))}
    assert told == _WRONG, found.stdout + found.stderr


@pytest.mark.thorough
def test_pyright_finds_what_is_wrong_in_a_users_program(tmp_path):
    pytest.importorskip("pyright", reason="pyright is not installed")
    if shutil.which("node") is None:
        pytest.skip("pyright runs on node, which is not installed here")
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "include": ["program.py"]}')
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    environment = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    told = {row["range"]["start"]["line"] + 1 for row in json.loads(found.stdout)["generalDiagnostics"]}
    assert told == _WRONG, found.stdout + found.stderr
