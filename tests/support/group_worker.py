"""A member of a consumer group in a process of its own that writes down what it processed and what it committed.

python group_worker.py URL STREAM GROUP FILE INSTANCE_ID SESSION_S INTERVAL_S HANDLING_S

Its file has a JSON array per line: what, when (seconds since the epoch), and more:

    begin    member id, generation, {partition: committed offset, or null}    where it is to go on
    read     partition, offset, content                                       when its handling is over
    try      member id, generation, sequence, {partition: offset}             a commit is about to be sent
    commit   member id, generation, sequence, [refused partition], error      its answer
    assigned, revoked, lost    member id, [partition]                         as the callbacks were told
    retry    name of the error, its text                                      when it could not even begin
    left     whether what was finished is committed                           it was told to end, and has ended
    failed   name of the error, its text                                      what reached the application

Every line is written at once and whole, so that it is there whenever the process is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import liftpy
from liftpy_client.errors import AdminError, CoordinatorUnavailableError, NodeUnavailableError, UsageError
from liftpy_client.group.member import GroupMember
from liftpy_client.group.options import GroupOptions
from support.cluster import quick_options

if TYPE_CHECKING:
    from liftpy_client.group.consumer import GroupConsumer

STOP_S = 30.0
RETRY_S = 0.3


class Notes:
    """The file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __call__(self, what: str, *more: Any) -> None:
        os.write(self._file, json.dumps([what, time.time(), *more]).encode() + b"\n")


def watch_commits(note: Notes) -> None:
    """Note what this process asks its coordinator to commit, and what that and its questions are answered."""
    commit, committed, fetched = GroupMember.commit, GroupMember.committed, GroupMember.fetched

    def noted_commit(self, *arguments, **more):
        request = commit(self, *arguments, **more)
        if request is not None:
            rows = {row.partition: row.offset for stream in request.streams for row in stream.offsets}
            note("try", request.member_id, request.generation, request.sequence, rows)
        return request

    def noted_committed(self, request, result):
        refused = [refusal.key.partition for refusal in result.refusals]
        note("commit", request.member_id, request.generation, request.sequence, refused, result.error.name)
        return committed(self, request, result)

    def noted_fetched(self, request, result):
        found, lost = fetched(self, request, result)
        rows = {key.partition: None if row is None else row.offset for key, row in found.items()}
        if rows:
            note("begin", request.member_id, request.generation, rows)
        return found, lost

    GroupMember.commit, GroupMember.committed = noted_commit, noted_committed
    GroupMember.fetched = noted_fetched


async def work(
    url: str,
    stream: str,
    group: str,
    note: Notes,
    instance_id: str,
    session_s: float,
    interval_s: float,
    handling_s: float,
) -> None:
    """Consume until SIGTERM."""

    def told(what):
        return lambda partitions: note(what, consumer.member_id, [number for _, number in partitions])

    options = GroupOptions(
        instance_id=instance_id or None,
        session_timeout_s=session_s,
        rebalance_timeout_s=4 * session_s,
        commit_interval_s=interval_s,
        on_assigned=told("assigned"),
        on_revoked=told("revoked"),
        on_lost_partitions=told("lost"),
    )
    async with liftpy.connect(url, timeout_s=5.0) as lift:
        consumer = lift.consume(stream, group=group, options=quick_options(), group_options=options)
        closing: list[asyncio.Future[None]] = []
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: closing.append(asyncio.ensure_future(consumer.close())))
        try:
            async with AsyncExitStack() as stack:
                await enter(stack, consumer, note)
                async for message in consumer:
                    if handling_s:
                        await asyncio.sleep(handling_s)
                    note("read", message.partition, message.offset, (message.value or b"").decode())
        except (CoordinatorUnavailableError, UsageError):  # it can not commit now, or was closed before it was entered
            if not closing:
                raise
            note("left", False)
        else:
            note("left", True)
        await asyncio.gather(*closing, return_exceptions=True)


async def enter(stack: AsyncExitStack, consumer: GroupConsumer, note: Notes) -> None:
    """Enter it; again when no node is there just now, as whoever looks after a service would start it again."""
    while True:
        try:
            await stack.enter_async_context(consumer)
        except (NodeUnavailableError, AdminError) as error:
            note("retry", type(error).__name__, str(error))
            await asyncio.sleep(RETRY_S)
        else:
            return


async def main(arguments: list[str]) -> None:
    note = Notes(arguments[3])
    watch_commits(note)
    try:
        await work(*arguments[:3], note, arguments[4], *map(float, arguments[5:]))
    except liftpy.LiftError as error:
        note("failed", type(error).__name__, str(error))
        raise


class WorkerProcess:
    """The process, and what it wrote down so far.

    Args:
        home: where its files are.
        name: of it, which no other has.
        url: of NATS.
        stream: that is consumed.
        group: its group.
        instance_id: of a static member; "" for none.
        session_s: its session timeout.
        interval_s: between its commits.
        handling_s: how long a message takes.

    Attributes:
        lines: of its file, as far as `look` has read it.
    """

    def __init__(
        self,
        home: Path,
        name: str,
        url: str,
        stream: str,
        group: str,
        *,
        instance_id: str = "",
        session_s: float = 2.0,
        interval_s: float = 0.5,
        handling_s: float = 0.0,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.instance_id = instance_id
        self.lines: list[list[Any]] = []
        self._path = home / f"{name}.notes"
        self._path.touch()
        self._errors = home / f"{name}.errors"
        self._file = self._path.open("rb")
        self._rest = b""
        numbers = [str(number) for number in (session_s, interval_s, handling_s)]
        command = [sys.executable, __file__, url, stream, group, str(self._path), instance_id, *numbers]
        paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(command, stderr=errors, env=os.environ | {"PYTHONPATH": paths})

    @property
    def is_running(self) -> bool:
        """Whether it is there."""
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def look(self) -> list[list[Any]]:
        """The lines that it has written since the last look."""
        if self._file.closed:
            return []
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        new = [json.loads(line) for line in whole]
        self.lines += new
        return new

    def count(self, what: str) -> int:
        """How many lines of a kind there are; looks first."""
        self.look()
        return sum(line[0] == what for line in self.lines)

    def of(self, what: str) -> list[list[Any]]:
        """The lines of a kind; looks first."""
        self.look()
        return [line for line in self.lines if line[0] == what]

    def owned(self) -> set[int]:
        """The partitions that are its own, as it was told."""
        owned: set[int] = set()
        for line in self.lines:
            if line[0] == "assigned":
                owned |= set(line[3])
            elif line[0] in {"revoked", "lost"}:
                owned -= set(line[3])
        return owned

    def errors(self) -> str:
        """What it said on its standard error."""
        return self._errors.read_text(errors="replace")

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, whatever state it is in; everything that it wrote is read."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.look()
        self._file.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
