"""Whether there is a Java for Spark, and how programs of the pipeline are run."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace

import psutil
import pytest

from liftpy.demo import pipeline
from liftpy.demo.pipeline import java_trouble
from liftpy.demo.view import DemoView
from liftpy_envelope.errors import LiftError


def java_home(directory, said, monkeypatch):
    """A Java that says something of its version."""
    program = directory / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(directory))
    return program


@pytest.mark.parametrize(
    ("said", "trouble"),
    [
        ('openjdk version "17.0.15" 2025-04-15', None),
        ('openjdk version "25" 2025-09-16', None),
        ('java version "1.8.0_392"', "is 1"),
        ("command not found", "is no Java"),
    ],
)
def test_which_java_will_do(tmp_path, monkeypatch, said, trouble):
    program = java_home(tmp_path, said, monkeypatch)
    found = java_trouble()
    assert found == (
        trouble and f"Spark needs Java 17 or newer, named by JAVA_HOME or on the PATH, and {program} {trouble}"
    )


def test_no_java(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java_trouble().endswith("and there is none")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_trouble().endswith("and there is none")


def test_a_java_that_does_not_run(tmp_path, monkeypatch):
    java_home(tmp_path, "", monkeypatch).write_text("")
    (tmp_path / "bin" / "java").write_bytes(b"\x7fELF")
    assert "does not run" in java_trouble()


async def report(tmp_path, text):
    program = tmp_path / "program.py"
    program.write_text(text)
    cluster = SimpleNamespace(home=tmp_path, environment=dict(os.environ))
    return await pipeline._report(cluster, program, ["--once"])


async def test_what_a_program_reports(tmp_path):
    found, took_s = await report(tmp_path, "import json, sys; print(json.dumps(sys.argv[1:]))")
    assert found == ["--once", "--json"]
    assert took_s > 0


async def test_a_program_that_fails(tmp_path):
    with pytest.raises(LiftError, match=r"program\.py ended with 3: error: no NATS"):
        await report(tmp_path, "import sys; print('error: no NATS', file=sys.stderr); sys.exit(3)")
    with pytest.raises(LiftError, match=r"program\.py ended with 3: it said nothing"):
        await report(tmp_path, "import sys; sys.exit(3)")


async def test_a_streaming_job_that_fails_is_started_again(tmp_path):
    program = tmp_path / "streaming.py"
    program.write_text(
        "import pathlib, sys\n"
        f"with pathlib.Path('{tmp_path}/starts').open('a') as file:\n"
        "    file.write('x')\n"
        f"starts = len(pathlib.Path('{tmp_path}/starts').read_text())\n"
        "sys.exit('busy') if starts < int(sys.argv[1]) else print('{}')\n"
    )
    cluster = SimpleNamespace(home=tmp_path, environment=dict(os.environ))
    view = DemoView()
    assert (await pipeline._stream(cluster, program, ["2"], view))[0] == {}
    assert "streaming.py ended with 1: busy[/]; it is started again" in view.events[0][1]
    with pytest.raises(LiftError, match="busy"):
        await pipeline._stream(cluster, program, ["99"], view)
    assert (tmp_path / "starts").read_text() == "x" * 5


async def test_a_program_that_does_not_end(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "_TIMEOUT_S", 0.5)
    with pytest.raises(LiftError, match=r"program\.py did not end within 0\.5 s"):
        await report(tmp_path, "import time; time.sleep(600)")


async def test_what_a_program_has_started_ends_with_it(tmp_path):
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid"
    text = f"import os, subprocess, sys, time; open('{tmp_path}/new', 'w').write(str({child}))"
    running = asyncio.create_task(
        report(tmp_path, f"{text}; os.rename('{tmp_path}/new', '{tmp_path}/pid'); time.sleep(600)")
    )
    async with asyncio.timeout(60):
        while not (tmp_path / "pid").exists():
            await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        child_pid = int((tmp_path / "pid").read_text())
        while psutil.pid_exists(child_pid) and psutil.Process(child_pid).status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.02)
