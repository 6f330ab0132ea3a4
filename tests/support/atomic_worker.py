"""A process that makes outputs of the messages of a group, to be killed. It tells what it handles line by line.

python atomic_worker.py URL STREAM GROUP: of each message one output for `once.a.<number>`, and two for `once.b`; now
and then handlers fail, and messages that end in `!` are poison. It commits rarely, so a kill falls between outputs and
commit.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import liftpy
from liftpy_client.group.options import GroupOptions
from support.group_process import MemberProcess, say

SESSION_S = 2.0


class AtomicWorkerProcess(MemberProcess):
    """The process, and the lines it said so far."""

    def __init__(self, url: str, stream: str, group: str) -> None:
        super().__init__(url, stream, group)
        self._command = [sys.executable, __file__, url, stream, group]


async def main(url: str, stream: str, group: str) -> None:
    dice = random.Random()

    async def handle(message: liftpy.Message, outputs: liftpy.Transaction) -> None:
        outputs.publish(f"once.a.{int(message.key) % 3}", message.value, key=message.key)
        await asyncio.sleep(dice.random() * 0.02)
        if message.value.endswith(b"!") or dice.random() < 0.02:
            raise ValueError(f"cannot handle {message.value!r}")
        for half in (b"1", b"2"):
            outputs.publish("once.b", message.value + b"." + half, key=message.value)
        say("handled", message.value.decode())

    async with liftpy.connect(url) as lift:
        say("ready")
        await lift.process(
            stream,
            handle,
            group=group,
            atomic=True,
            concurrency=16,
            retry=liftpy.Retry(6, (0.01, 0.1)),
            dead_letter="once.dead",
            handler_timeout_s=2.0,
            options=liftpy.ConsumeOptions(wait_ms=200, response_timeout_s=2.0),
            group_options=GroupOptions(session_timeout_s=SESSION_S, rebalance_timeout_s=12.0, commit_interval_s=1.5),
        )
        say("ended")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
