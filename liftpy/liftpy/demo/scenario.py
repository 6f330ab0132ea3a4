"""The demonstration: store the flights, kill the node on the way, replay them, and check every one."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import nats

from liftpy.cli.nats_server import NatsServer, shipped_config
from liftpy.demo.flights import load_flights
from liftpy.demo.publish import AckedPublisher
from liftpy_client.client import connect_as
from liftpy_client.errors import NodeUnavailableError
from liftpy_client.nats_options import NatsOptions
from liftpy_envelope.errors import LiftError
from liftpy_envelope.subject import matches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from rich.progress import Progress

    from liftpy.demo.flights import Flight
    from liftpy_client.client import Lift

__all__ = ["CheckFailedError", "DemoReport", "run_demo"]

STREAMS: Final = {"flights": "flights.>", "united": "flights.UA.*.*"}
_READY_TIMEOUT_S: Final = 30.0


class CheckFailedError(LiftError):
    """What was replayed is not what was published."""


@dataclass(slots=True)
class DemoReport:
    """What happened."""

    flights: int = 0
    publish_s: float = 0.0
    restart_s: float = 0.0
    resent: int = 0
    duplicates: int = 0
    streams: list[dict[str, Any]] = field(default_factory=list)


class _NodeProcess:
    """A node in a process of its own, so that it can be killed."""

    def __init__(self, nats_url: str, home: Path) -> None:
        arguments = ["-s", nats_url, "server", "--data-dir", str(home / "node"), "--pull-port", "0"]
        self._command = [sys.executable, "-m", "liftpy", *arguments]
        self._environment = _environment(home)
        self._log = home / "node.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, lift: Lift) -> float:
        """Start it and wait until it answers. Returns how long that took, in seconds."""
        started = time.monotonic()
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=log, stderr=log, env=self._environment
            )
        while time.monotonic() - started < _READY_TIMEOUT_S:
            if self._process.returncode is not None:
                raise LiftError(f"the node ended: {self._log.read_text(errors='replace')[-500:]}")
            try:
                await lift.node_info()
                return time.monotonic() - started
            except NodeUnavailableError:
                await asyncio.sleep(0.05)
        raise LiftError(f"the node did not answer within {_READY_TIMEOUT_S:g} s")

    async def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, if it is running."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()


def _connect(url: str) -> AbstractAsyncContextManager[Lift]:
    """Connect to the nats-server of the demonstration, whatever the environment says of others."""
    return connect_as(NatsOptions(url=url, timeout_s=2.0), name="demo")


def _environment(home: Path) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("NATS_", "LIFTPY_"))}
    return kept | {"XDG_CONFIG_HOME": str(home)}


@asynccontextmanager
async def _cluster() -> AsyncIterator[tuple[str, Path]]:
    """A nats-server and a directory that are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="liftpy-demo-") as directory:
        home = Path(directory)
        server = NatsServer(0, shipped_config(), home / "nats-server.log")
        server.start()
        try:
            yield server.url, home
        finally:
            server.stop()


async def run_demo(progress: Progress) -> DemoReport:
    """Run the demonstration.

    Raises:
        CheckFailedError: a record is missing, there twice, or changed.
        LiftError: it could not be run.
    """
    report = DemoReport()
    task = progress.add_task("reading the flights", total=None)
    flights = await asyncio.get_running_loop().run_in_executor(None, load_flights)
    report.flights = len(flights)
    progress.remove_task(task)
    async with _cluster() as (url, home), _connect(url) as lift:
        node = _NodeProcess(url, home)
        try:
            await node.start(lift)
            for name, subject in STREAMS.items():
                await lift.create_stream(name, subject=subject)
            await _publish(url, lift, node, flights, report, progress)
            for name, subject in STREAMS.items():
                report.streams.append(await _replay(lift, name, subject, flights, progress))
        finally:
            await node.stop()
    return report


async def _publish(
    url: str, lift: Lift, node: _NodeProcess, flights: Sequence[Flight], report: DemoReport, progress: Progress
) -> None:
    task = progress.add_task("publishing with an ordinary nats-py client", total=len(flights))
    half_way = asyncio.Event()

    def on_progress(acked: int) -> None:
        progress.update(task, completed=acked)
        if acked >= len(flights) // 2:
            half_way.set()

    def streams_of(subject: str) -> frozenset[str]:
        return frozenset(name for name, pattern in STREAMS.items() if matches(pattern, subject))

    client = await nats.connect(url, name="flights publisher")
    started = time.monotonic()
    publisher = AckedPublisher(client, flights, streams_of, on_progress)
    publishing = asyncio.ensure_future(publisher.run())
    try:
        waiting = asyncio.ensure_future(half_way.wait())
        await asyncio.wait({publishing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        progress.update(task, description="publishing; the node was killed and is starting again")
        await node.kill()
        report.restart_s = await node.start(lift)
        progress.update(task, description="publishing; the node is back")
        await publishing
    finally:
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        await client.close()
    report.publish_s = time.monotonic() - started
    report.resent, report.duplicates = publisher.resent, publisher.duplicates


async def _replay(lift: Lift, name: str, subject: str, flights: Sequence[Flight], progress: Progress) -> dict[str, Any]:
    """Replay a stream from its beginning and compare every record with its flight."""
    expected = {number for number, flight in enumerate(flights) if matches(subject, flight.subject)}
    task = progress.add_task(f"replaying {name}", total=len(expected))
    started = time.monotonic()
    records = [
        (message.offset, message.subject, message.headers.get("Nats-Msg-Id", ""), message.value)
        async for message in lift.consume(name, start="earliest", stop="latest")
    ]
    elapsed = time.monotonic() - started
    progress.update(task, completed=len(records), description=f"checking {name}")
    for place, (offset, found_subject, number, value) in enumerate(records):
        if offset != place:
            raise CheckFailedError(f"{name}: offset {offset} stands where {place} must")
        if not number.isdigit() or int(number) not in expected:
            raise CheckFailedError(f"{name} offset {offset}: flight {number!r} is there twice, or is none of ours")
        expected.remove(int(number))
        if flights[int(number)] != (found_subject, value):
            raise CheckFailedError(f"{name} offset {offset}: the record is not the flight that was published")
    if expected:
        raise CheckFailedError(f"{name}: {len(expected)} flights are missing, for example {min(expected)}")
    details = await lift.stream_info(name)
    return {
        "name": name,
        "subject": subject,
        "records": len(records),
        "bytes": details.bytes,
        "replay_s": elapsed,
        "gaps": len(details.raw["gaps"]),
    }
