"""`liftpy bench`: how fast a running cluster takes and gives messages, seen from here."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from liftpy.cli.option_values import bytes_of
from liftpy.cli.run import JsonFlag, open_lift, print_json, run, stderr, stdout
from liftpy.cli.tables import Column, make_table
from liftpy.cli.units import show_bytes, show_count, show_duration
from liftpy_client.errors import UsageError
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from liftpy_client.client import Lift

__all__ = ["app", "bench"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_ONE_BY_ONE_MAX: Final = 1_000
_IN_FLIGHT: Final = 1_000
_OVERHEAD_BYTES: Final = 100
_SIZE_MAX: Final = 512 * 1024


class Phase(NamedTuple):
    """One measurement.

    Attributes:
        what: What was done.
        messages: How many messages.
        bytes: Size of their values.
        seconds: How long it took.
        p50_ms: Half of the acks came within this time; None where it was not measured.
        p99_ms: All but one in a hundred.
    """

    what: str
    messages: int
    bytes: int
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds

    def to_plain(self) -> dict[str, Any]:
        """As JSON."""
        return self._asdict() | {"messages_per_s": round(self.rate, 1), "bytes_per_s": round(self.bytes / self.seconds)}


@app.command(epilog="Example: liftpy bench --messages 200000 --size 1KiB --replicas 3")
def bench(
    ctx: typer.Context,
    messages: Annotated[int, typer.Option(min=100, max=10_000_000, help="Messages per measurement.")] = 50_000,
    size: Annotated[str, typer.Option(metavar="SIZE", help="Size of a message's value.")] = "128B",
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions.")] = 1,
    replicas: Annotated[int, typer.Option(min=1, help="Number of replicas of each partition.")] = 1,
    sync: Annotated[str, typer.Option(help="When records are fsynced: always, interval or never.")] = "always",
    as_json: JsonFlag = False,
) -> None:
    """Measure publishing and consuming against a running cluster.

    Creates a stream of its own on bench.>, and deletes it in the end. One process publishes and consumes: several of
    them reach more. It loads the cluster as any publisher does.
    """
    size_bytes = bytes_of("--size", size, as_json=as_json)

    async def work() -> list[Phase]:
        if not 1 <= size_bytes <= _SIZE_MAX:
            raise UsageError(f"--size: {size!r} is not between 1 and {show_bytes(_SIZE_MAX)}")
        async with open_lift(ctx) as lift:
            settings: dict[str, Any] = {"partitions": partitions, "replicas": replicas, "sync": sync, "tier": False}
            async with _stream(lift, settings) as (name, subject):
                return await _measure(lift, name, subject, messages, size_bytes)

    phases = run(work(), as_json=as_json)
    if as_json:
        print_json([phase.to_plain() for phase in phases])
        return
    columns = (
        Column("Measured"),
        Column("Messages", right=True),
        Column("Time", right=True),
        Column("Msgs/s", right=True),
        Column("Bytes/s", right=True),
        Column("Ack p50", right=True, from_width=80),
        Column("Ack p99", right=True, from_width=80),
    )
    title = f"{show_bytes(size_bytes)} per message, partitions: {partitions}, replicas: {replicas}, sync: {sync}"
    stdout.print(make_table(title, columns, map(_row, phases), stdout.width))


def _row(phase: Phase) -> dict[str, str]:
    def shown(ms: float | None) -> str:
        return "-" if ms is None else f"{ms:.1f} ms"

    return {
        "Measured": phase.what,
        "Messages": show_count(phase.messages),
        "Time": show_duration(phase.seconds),
        "Msgs/s": show_count(phase.rate),
        "Bytes/s": show_bytes(phase.bytes / phase.seconds),
        "Ack p50": shown(phase.p50_ms),
        "Ack p99": shown(phase.p99_ms),
    }


@asynccontextmanager
async def _stream(lift: Lift, settings: dict[str, Any]) -> AsyncIterator[tuple[str, str]]:
    """Create a stream for the measurement, and delete it, whatever happens; yield its name and a subject of it."""
    mark = secrets.token_hex(4)
    name, subject = f"bench-{mark}", f"bench.{mark}"
    await lift.create_stream(name, subject=subject, **settings)
    try:
        yield name, subject
    finally:
        try:
            await asyncio.shield(lift.delete_stream(name))
        except LiftError as error:
            stderr.print(f"stream {name} stays: {error}; liftpy stream rm {name}", style="yellow", markup=False)


async def _measure(lift: Lift, name: str, subject: str, messages: int, size: int) -> list[Phase]:
    value = secrets.token_bytes(size)  # nothing compresses it
    few = min(messages, _ONE_BY_ONE_MAX)
    in_flight_bytes = _IN_FLIGHT * (size + _OVERHEAD_BYTES)
    phases = [
        await _one_by_one(lift, subject, value, few),
        await _publish(lift, f"publish, {_IN_FLIGHT:,} in flight", subject, value, messages, envelope=False,
                       in_flight_bytes=in_flight_bytes),
        await _publish(lift, "publish in batches", subject, value, messages),
    ]  # fmt: skip
    stored = sum(phase.messages for phase in phases)
    return [*phases, await _consume(lift, name, stored, size), await _consume_batches(lift, name, stored, size)]


async def _one_by_one(lift: Lift, subject: str, value: bytes, messages: int) -> Phase:
    """Publish each message after the ack of the one before."""
    times = []
    for _ in range(messages):
        begin_s = time.perf_counter()
        await lift.publish(subject, value)
        times.append(time.perf_counter() - begin_s)
    times.sort()
    p50, p99 = (round(1e3 * times[int(part * len(times))], 3) for part in (0.5, 0.99))
    return Phase("publish, one at a time", messages, messages * len(value), sum(times), p50, p99)


async def _publish(lift: Lift, what: str, subject: str, value: bytes, messages: int, **options: Any) -> Phase:
    """Publish until all are acknowledged. Keys spread the messages over partitions."""
    begin_s = time.perf_counter()
    async with lift.publisher(**options) as publisher:
        for number in range(messages):
            await publisher.publish(subject, value, key=b"%d" % (number % 1_000))
    return Phase(what, messages, messages * len(value), time.perf_counter() - begin_s)


async def _consume(lift: Lift, name: str, messages: int, size: int) -> Phase:
    """Read all that was stored, message by message."""
    begin_s, count = time.perf_counter(), 0
    async with lift.consume(name, stop="latest") as consumer:
        async for _ in consumer:
            count += 1
    return Phase("consume", _checked(name, count, messages), count * size, time.perf_counter() - begin_s)


async def _consume_batches(lift: Lift, name: str, messages: int, size: int) -> Phase:
    """Read it as Arrow batches."""
    begin_s, count = time.perf_counter(), 0
    async with lift.consume_batches(name, stop="latest") as consumer:
        async for batch in consumer:
            count += batch.num_rows
    return Phase("consume as Arrow", _checked(name, count, messages), count * size, time.perf_counter() - begin_s)


def _checked(name: str, found: int, stored: int) -> int:
    if found != stored:
        raise LiftError(f"stream {name}: {stored} messages were acknowledged, but {found} were read")
    return found
