"""What attacks on a cluster come from, and are measured by: its processes, lines of its logs, how long acks take."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from support.bad_days import Published
    from support.cluster_kit import ClusterKit

LOG_LINES_MAX = 10
ACK_P99_S = 0.5
ACKS_MIN = 100  # that are measured


@asynccontextmanager
async def attacked(kit: ClusterKit, published: Published, but: str = "") -> AsyncIterator[None]:
    """Somebody attacks in here: every node stays up and logs a few lines, and a publisher's acks come soon.

    Args:
        kit: the cluster.
        published: what the publisher publishes, one message after the other, until nobody attacks any more.
        but: a node that is started anew in here, and so logs more.
    """
    before = _pids(kit, but)
    share = max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))  # of a machine that is busy with something else
    took: list[float] = []
    is_over = asyncio.Event()

    async def publish() -> None:
        while not is_over.is_set() or len(took) < ACKS_MIN:
            took.append(await seconds(published.more(1)))

    async with few_lines(kit, but):
        publishing = asyncio.create_task(publish())
        try:
            yield
        finally:
            is_over.set()
            await publishing
    p99 = summed_up("acks of a publisher under attack", took)
    assert _pids(kit, but) == before, "a node ended"
    assert p99 < ACK_P99_S * share, f"p99 {p99:.2f} s, where {share / 2:.1f} processes want a core without any attack"


def _pids(kit: ClusterKit, but: str) -> dict[str, int]:
    return {name: kit.nodes[name].process.pid for name in kit.running if name != but}


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
    """A process that runs a program, which prints a line when it begins. An attacker has a machine of its own: nice."""
    command = ("nice", "-n", "19", sys.executable, "-c", program, *args)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
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
