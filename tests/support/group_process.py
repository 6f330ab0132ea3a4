"""A member of a consumer group in a process of its own, to be frozen and killed. It tells what happens line by line.

python group_process.py URL STREAM GROUP INSTANCE_ID HANDLING_S
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Self

import liftpy
from liftpy_client.group.options import GroupOptions

SESSION_S = 2.0


def say(what: str, *more: object) -> None:
    sys.stdout.write(" ".join(map(str, (what, *more))) + "\n")  # in one piece, also when nothing is buffered
    sys.stdout.flush()


async def main(url: str, stream: str, group: str, instance_id: str, handling_s: float) -> None:
    options = GroupOptions(
        instance_id=instance_id or None,
        session_timeout_s=SESSION_S,
        commit_interval_s=0.1,
        on_assigned=lambda partitions: say("assigned", len(partitions)),
        on_revoked=lambda partitions: say("revoked", len(partitions)),
        on_lost_partitions=lambda partitions: say("lost", len(partitions)),
    )
    async with liftpy.connect(url) as lift:
        try:
            async with lift.consume(stream, group=group, group_options=options) as consumer:
                async for message in consumer:
                    say("message", message.partition, message.offset)
                    await asyncio.sleep(handling_s)
        except liftpy.LiftError as error:
            say("error", type(error).__name__)


class MemberProcess:
    """The process, and the lines it said so far."""

    def __init__(self, url: str, stream: str, group: str, instance_id: str = "", handling_s: float = 0.0) -> None:
        self._command = [sys.executable, __file__, url, stream, group, instance_id, str(handling_s)]
        self.lines: list[list[str]] = []

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(*self._command, stdout=subprocess.PIPE)
        self._listening = asyncio.create_task(self._listen())
        return self

    async def _listen(self) -> None:
        # The last line of who is killed may be torn.
        while (line := await self.process.stdout.readline()).endswith(b"\n"):
            self.lines.append(line.decode().split())

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL; what it said before is all there when this returns."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._listening

    def count(self, what: str) -> int:
        return sum(line[0] == what for line in self.lines)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5], float(sys.argv[5])))
