"""What attacks on a cluster come from, and are measured by: lines of its logs, and how long acks take."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from support.cluster_kit import ClusterKit

LOG_LINES_MAX = 10


@asynccontextmanager
async def few_lines(kit: ClusterKit, but: str = "") -> AsyncIterator[None]:
    """Whatever happens in here, no node, but for one, logs more than a few lines about it."""
    before = {name: len(node.log().splitlines()) for name, node in kit.nodes.items()}
    yield
    for name, node in kit.nodes.items():
        lines = node.log().splitlines()[before[name] :]
        assert len(lines) <= LOG_LINES_MAX or name == but, f"{name}:\n" + "\n".join(lines)


@asynccontextmanager
async def attacker(program: str, *args: str) -> AsyncIterator[None]:
    """A process that runs a program, which prints a line when it begins."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, *args, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield
    finally:
        process.kill()
        await process.wait()


async def seconds(done: Awaitable[object]) -> float:
    """How long something takes."""
    began = time.monotonic()
    await done
    return time.monotonic() - began


def summed_up(what: str, took: list[float]) -> float:
    """Print how long something took, so many times. The p99 in seconds."""
    took = sorted(took)
    p99 = took[int(len(took) * 0.99)]
    print(
        f"{what}: {len(took)} times, median {1e3 * took[len(took) // 2]:.0f} ms, p99 {1e3 * p99:.0f} ms, "
        f"longest {1e3 * took[-1]:.0f} ms"
    )
    return p99
