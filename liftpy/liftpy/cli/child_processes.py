"""Processes that a command starts and that end with it, nodes among them. Nothing restarts them by itself."""

from __future__ import annotations

import asyncio
import ctypes
import json
import signal
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = ["NodeProcess", "die_with_parent", "wait_ready"]

_READY_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 30.0
_LINE_BYTES_MAX: Final = 1024 * 1024
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)  # a child that is just forked should load nothing


def die_with_parent() -> None:
    """In the child: be ended when the parent is killed. Linux only; elsewhere the child would stay behind."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class NodeProcess:
    """One process.

    Args:
        node_id: Node id for messages.
        command: A `liftpy server --json`, with its flags.
        environment: Environment of the process.
        log: What it says is appended there; None: `log_lines` has it, and must be read.

    Attributes:
        ready: What the node said when it was up; empty before.
    """

    def __init__(self, node_id: str, command: Sequence[str], environment: Mapping[str, str], log: Path | None) -> None:
        self.node_id = node_id
        self.log = log
        self.ready: dict[str, Any] = {}
        self._command = command
        self._environment = dict(environment)
        self._process: asyncio.subprocess.Process | None = None

    async def spawn(self) -> None:
        """Start the process, also once more after it ended; `wait_ready` says when the node is up."""
        self.ready = {}
        with nullcontext() if self.log is None else self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE if log is None else log,
                limit=_LINE_BYTES_MAX,
                env=self._environment,
                start_new_session=True,  # an interrupt at the terminal is ours to handle first
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )

    async def read_ready(self) -> None:
        """Wait until the node says that it is up.

        Raises:
            LiftError: it ended instead.
        """
        if not await self.is_ready():
            await self._running.wait()
            raise LiftError(self.obituary())

    async def is_ready(self) -> bool:
        """Wait until the node says that it is up; False if it ends instead."""
        output = self._running.stdout
        assert output is not None, "it was asked for"
        line = await output.readline()
        if line:
            self.ready = json.loads(line)
        return bool(line)

    async def log_lines(self) -> AsyncIterator[bytes]:
        """What the process says, line by line, until it ends. A line that is longer than 1 MiB is left out."""
        said = self._running.stderr
        assert said is not None, "it has no file for its log"
        while True:
            try:
                line = await said.readline()
            except ValueError:
                continue
            if not line:
                return
            yield line

    @property
    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "spawn it first"
        return self._process

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._running.pid

    @property
    def has_ended(self) -> bool:
        """It was there, and is no more."""
        return self._process is not None and self._process.returncode is not None

    def obituary(self) -> str:
        """What became of a process that ended."""
        code = self._running.returncode
        assert code is not None, "it has not ended"
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        if self.log is None:
            return f"{self.node_id} (pid {self.pid}) {how}"
        last_words = f": {self._last_words(self.log)}" if code > 0 else ""
        return f"{self.node_id} (pid {self.pid}) {how}{last_words} (see {self.log})"

    def _last_words(self, log: Path) -> str:
        """The last line of the log; of an error in JSON the message."""
        last = "".join(log.read_text(errors="replace").strip().splitlines()[-1:])
        try:
            return str(json.loads(last)["error"]["message"])
        except (ValueError, LookupError, TypeError):
            return last

    async def wait_ended(self) -> None:
        """Wait for its end, whatever brings it."""
        await self._running.wait()

    async def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is None:
            return
        if not self.has_ended:
            self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """End it with SIGTERM, and with SIGKILL when it does not listen."""
        if self._process is None:
            return
        if not self.has_ended:
            self._process.terminate()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            await self.kill()


async def wait_ready(nodes: Iterable[NodeProcess]) -> None:
    """Wait until all of them are up.

    Raises:
        LiftError: one of them ended, or does not come up.
    """
    started = list(nodes)
    try:
        async with asyncio.timeout(_READY_TIMEOUT_S), asyncio.TaskGroup() as group:
            for node in started:
                group.create_task(node.read_ready())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    except TimeoutError:
        late = [node for node in started if not node.ready]
        raise LiftError(
            f"{', '.join(node.node_id for node in late)} did not come up within {_READY_TIMEOUT_S:g} s; "
            f"see {late[0].log}"
        ) from None
