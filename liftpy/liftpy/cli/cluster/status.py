"""`liftpy status`: the nodes and the streams, once or live."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from rich.text import Text

from liftpy.cli.cluster.tables import attention_tables, node_table, nodes_table
from liftpy.cli.group.overview import GroupsLook
from liftpy.cli.group.tables import status_table
from liftpy.cli.live import watch_tables
from liftpy.cli.run import JsonFlag, open_admin, print_json, run, stdout
from liftpy.cli.stream.tables import quarantine_table, streams_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from liftpy.cli.group.overview import GroupsSeen
    from liftpy_client.admin.admin import Admin
    from liftpy_client.admin.details import ClusterDetails, StreamDetails
    from liftpy_client.admin.recovery import QuarantineDetails

__all__ = ["app", "show_live", "status"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_GROUPS_WAIT_S: Final = 5.0
_GROUPS_WAIT_LIVE_S: Final = 0.5


class _Rates:
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


class _Seen(NamedTuple):
    """What there is to show: the cluster, the node that answered, the streams, the consumer groups, the quarantine."""

    cluster: ClusterDetails
    node: dict[str, Any]
    streams: list[StreamDetails]
    groups: GroupsSeen
    quarantine: QuarantineDetails

    def tables(self, rates: dict[str, float] | None = None) -> list[RenderableType]:
        """For people; a node that is alone is told of at length."""
        width = stdout.width
        nodes = node_table(self.node) if len(self.cluster.nodes) <= 1 else nodes_table(self.cluster, width)
        groups: list[RenderableType] = [status_table(self.groups.groups, width)] if self.groups.groups else []
        if self.groups.error is not None:
            groups.append(Text(self.groups.error, "red"))
        quarantine = quarantine_table(self.quarantine, width)
        aside = [] if quarantine is None else [quarantine]
        streams = streams_table(self.streams, rates, width)
        return [nodes, streams, *groups, *attention_tables(self.cluster, width), *aside]

    def to_plain(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "cluster": self.cluster.raw,
            "node": self.node,
            "streams": [stream.raw for stream in self.streams],
            "groups": [group.to_plain() for group in self.groups.groups],
            "groups_error": self.groups.error,
            "quarantine": self.quarantine.raw,
        }


async def _look(lift: Admin, groups: GroupsLook, wait_s: float = _GROUPS_WAIT_S) -> _Seen:
    cluster, node, quarantine = await asyncio.gather(lift.cluster_info(), lift.node_info(), lift.quarantine())
    streams = [stream async for stream in lift.streams()]
    return _Seen(cluster, node, streams, await groups.look(streams, wait_s), quarantine)


async def show_live(lift: Admin, stop: asyncio.Event, notes: Callable[[], list[str]] = list) -> None:
    """All as tables, once a second; what keeps them from being new is said below them.

    Args:
        lift: Whom to ask.
        stop: Ends it.
        notes: Further lines to show below.

    Raises:
        LiftError: no node answers the first time.
    """
    rates = _Rates()
    async with GroupsLook(lift) as groups:

        async def look() -> list[RenderableType]:
            seen = await _look(lift, groups, _GROUPS_WAIT_LIVE_S)
            return seen.tables(rates.update(seen.streams))

        await watch_tables(look, stop, notes)


@app.command()
def status(
    ctx: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh once a second.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show nodes, streams, consumer groups and alarms."""

    async def work() -> None:
        async with open_admin(ctx) as lift:
            if watch and not as_json:
                await show_live(lift, asyncio.Event())  # until interrupted
                return
            async with GroupsLook(lift) as groups:
                while True:
                    seen = await _look(lift, groups)
                    if as_json:
                        print_json(seen.to_plain())
                    else:
                        stdout.print(*seen.tables(), sep="\n")
                    if not watch:
                        return
                    await asyncio.sleep(1)

    run(work(), as_json=as_json)
