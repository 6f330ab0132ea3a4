"""A process that handles the messages of a group, to be killed. It tells what it handles line by line.

python process_worker.py URL STREAM GROUP DEAD_LETTER: messages that end in `!` are poison; handlers fail now and then.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import liftpy
from liftpy_client.group.options import GroupOptions
from support.group_process import MemberProcess, say

SESSION_S = 2.0


class WorkerProcess(MemberProcess):
    """The process, and the lines it said so far."""

    def __init__(self, url: str, stream: str, group: str, dead_letter: str) -> None:
        super().__init__(url, stream, group)
        self._command = [sys.executable, __file__, url, stream, group, dead_letter]


async def main(url: str, stream: str, group: str, dead_letter: str) -> None:
    dice = random.Random()

    async def handle(message: liftpy.Message) -> None:
        await asyncio.sleep(0.002)
        if message.value.endswith(b"!") or dice.random() < 0.02:
            raise ValueError(f"cannot handle {message.value!r}")
        if dice.random() < 0.002:
            await asyncio.Event().wait()
        say("handled", message.key.decode(), message.value.decode(), time.monotonic_ns())

    async with liftpy.connect(url) as lift:
        say("ready")
        await lift.process(
            stream,
            handle,
            group=group,
            concurrency=32,
            retry=liftpy.Retry(8, (0.01, 0.2)),
            dead_letter=dead_letter,
            handler_timeout_s=0.5,
            options=liftpy.ConsumeOptions(wait_ms=200, response_timeout_s=2.0),
            group_options=GroupOptions(session_timeout_s=SESSION_S, rebalance_timeout_s=6.0, commit_interval_s=0.2),
        )
        say("ended")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
