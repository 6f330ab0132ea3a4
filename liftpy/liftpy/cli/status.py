"""`liftpy status`: the node and its streams, once or live."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live

from liftpy.cli.run import JsonFlag, open_lift, print_json, run, stdout
from liftpy.cli.tables import node_table, streams_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from liftpy_client.admin import Admin, StreamDetails

__all__ = ["Rates", "status", "status_view"]


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


def status_view(node: dict[str, Any], streams: list[StreamDetails], rates: dict[str, float]) -> RenderableType:
    """Both as tables."""
    return Group(node_table(node), streams_table(streams, rates))


def status(
    ctx: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on, once a second.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show the node and its streams."""

    async def work() -> None:
        rates = Rates()
        async with open_lift(ctx) as lift:
            node, streams = await look(lift)
            if as_json:
                while True:
                    print_json({"node": node, "streams": [stream.raw for stream in streams]})
                    if not watch:
                        return
                    await asyncio.sleep(1)
                    node, streams = await look(lift)
            if not watch:
                stdout.print(node_table(node))
                stdout.print(streams_table(streams))
                return
            with Live(status_view(node, streams, rates.update(streams)), console=stdout, auto_refresh=False) as live:
                while True:
                    await asyncio.sleep(1)
                    node, streams = await look(lift)
                    live.update(status_view(node, streams, rates.update(streams)), refresh=True)

    run(work(), as_json=as_json)
