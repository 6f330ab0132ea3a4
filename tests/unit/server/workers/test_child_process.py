"""The end of a process that a node started beside itself."""

from __future__ import annotations

import asyncio
import logging
import sys

from liftpy_server.workers import child_process
from liftpy_server.workers.child_process import end_child

DEAF = "import time; print(flush=True); time.sleep(600)"
HEARS = "import sys; sys.stdin.read()"


async def started(program):
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )


async def test_it_ends_with_its_input():
    process = await started(HEARS)
    await end_child(process, "the worker")
    assert process.returncode == 0


async def test_one_that_does_not_hear_is_killed_and_nobody_is_warned(monkeypatch, caplog):
    """It may be busy with its start: on a machine with much to do that is no news."""
    monkeypatch.setattr(child_process, "_END_TIMEOUT_S", 0.05)
    caplog.set_level(logging.INFO)
    process = await started(DEAF)
    assert process.stdout is not None
    await process.stdout.readline()
    await end_child(process, "the worker")
    assert process.returncode == -9
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "the worker did not end in 0.05 s, and is killed")
    ]
