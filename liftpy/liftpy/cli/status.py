"""`liftpy status`: the node and its streams, once or live."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from liftpy.cli.run import JsonFlag, open_lift, print_json, run, stdout
from liftpy.cli.tables import node_table, streams_table
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from liftpy_client.admin import Admin, StreamDetails

__all__ = ["Rates", "show_live", "status"]


class Rates:
    """Messages per second of each stream, between one look and the next."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._at = 0.0

    def update(self, streams: list[StreamDetails]) -> dict[str, float]:
        """Rates since the last call."""
        now = time.monotonic()
        counts = {stream.name: stream.raw["counters"]["messages"] for stream in streams if "counters" in stream.raw}
        elapsed = now - self._at
        rates = {
            name: max(0, count - self._before[name]) / elapsed for name, count in counts.items() if name in self._before
        }
        self._before, self._at = counts, now
        return rates


async def look(lift: Admin) -> tuple[dict[str, Any], list[StreamDetails]]:
    """The node and its streams."""
    return await lift.node_info(), [stream async for stream in lift.streams()]


async def show_live(lift: Admin, stop: asyncio.Event) -> None:
    """Both as tables, once a second; what keeps them from being new is said below them.

    Raises:
        LiftError: the node does not answer the first time.
    """
    rates = Rates()
    node, streams = await look(lift)
    tables = Group(node_table(node), streams_table(streams, rates.update(streams)))
    with Live(tables, console=stdout, auto_refresh=False) as live:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await stop.wait()
            try:
                node, streams = await look(lift)
            except LiftError as error:
                live.update(Group(tables, Text(f"{error}", "red")), refresh=True)
            else:
                tables = Group(node_table(node), streams_table(streams, rates.update(streams)))
                live.update(tables, refresh=True)


def status(
    ctx: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on, once a second.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show the node and its streams."""

    async def work() -> None:
        async with open_lift(ctx) as lift:
            node, streams = await look(lift)
            if as_json:
                while True:
                    print_json({"node": node, "streams": [stream.raw for stream in streams]})
                    if not watch:
                        return
                    await asyncio.sleep(1)
                    node, streams = await look(lift)
            if watch:
                await show_live(lift, asyncio.Event())
            else:
                stdout.print(node_table(node))
                stdout.print(streams_table(streams))

    run(work(), as_json=as_json)
