"""A process that a node starts beside itself and that never outlives it: both ends of its life.

It is spawned, never forked; it hears of its work on its standard input, and ends with it.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from liftpy_server.workers.json_lines import LINE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["become_child", "end_child", "kill_child", "leave", "start_child"]

logger = logging.getLogger(__name__)

_END_TIMEOUT_S: Final = 2.0
_PR_SET_PDEATHSIG: Final = 1


async def start_child(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Start `python -m module`, with this process's id as its first argument.

    Args:
        module: Calls `become_child` first of all.
        arguments: Further ones.
        environment: Variables that it has where this process has none of that name.

    Raises:
        OSError: the process could not be started.
    """
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module, str(os.getpid()), *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
        env={**(environment or {}), **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


async def end_child(process: asyncio.subprocess.Process, name: str) -> None:
    """Close its standard input, and kill it where that does not end it soon.

    Args:
        process: What `start_child` returned.
        name: Name for people.
    """
    if process.returncode is None:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            # It may be about to start, on a machine that is busy; and it may be killed at any time.
            logger.info("%s did not end in %g s, and is killed", name, _END_TIMEOUT_S)
    await kill_child(process)


async def kill_child(process: asyncio.subprocess.Process) -> None:
    """Kill it if it runs, and wait until it is gone."""
    if process.returncode is None:
        with suppress(ProcessLookupError):  # it ended at this very moment
            process.kill()
    await process.wait()


def become_child(niceness: int) -> None:
    """In the process that was started: tie it to the node that started it.

    Args:
        niceness: How much other processes go before this one.
    """
    _end_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node is told to stop, and stops this process
    os.nice(niceness)


def leave() -> NoReturn:
    """The node is gone: end at once, and tidy up nothing."""
    os._exit(1)


def _end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the node dies; elsewhere than on Linux its pipes tell."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        leave()
