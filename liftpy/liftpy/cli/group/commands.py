"""`liftpy group ...`: list, look at, move and delete consumer groups."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from liftpy.cli.group.lags import lags_of, streams_of, total_lag
from liftpy.cli.group.reset import RESET_EXAMPLES, reset
from liftpy.cli.group.streams import find_streams
from liftpy.cli.group.tables import group_table, groups_table, lags_table, members_table
from liftpy.cli.live import watch_tables
from liftpy.cli.run import Force, JsonFlag, confirm, open_admin, print_json, run, stdout
from liftpy.cli.text import show_text
from liftpy_client.group.options import check_group_name

if TYPE_CHECKING:
    from rich.console import RenderableType

    from liftpy.cli.group.lags import PartitionLag
    from liftpy_client.admin.admin import Admin
    from liftpy_client.admin.groups import GroupDetails

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="List, inspect, reset and delete consumer groups.")
app.command("reset", epilog=RESET_EXAMPLES)(reset)

Name = Annotated[str, typer.Argument(help="Name of the group.", show_default=False)]

_NO_GROUPS: Final = "No consumer groups yet: liftpy consume STREAM --group NAME"


class _Described(NamedTuple):
    """A group, with its lag in each partition."""

    group: GroupDetails
    lags: list[PartitionLag]

    def tables(self) -> list[RenderableType]:
        width = stdout.width
        parts = (members_table(self.group, width), lags_table(self.lags, width))
        return [group_table(self.group, self.lags), *(table for table in parts if table is not None)]

    def to_plain(self) -> dict[str, Any]:
        names = ("group", "state", "coordinator", "generation")
        return {name: getattr(self.group, name) for name in names} | {
            "members": [asdict(member) for member in self.group.members],
            "partitions": [row.to_plain() for row in self.lags],
            "lag": total_lag(self.lags),
        }


async def _describe(lift: Admin, name: str) -> _Described:
    group = await lift.group(name)
    return _Described(group, lags_of(group, await find_streams(lift, streams_of(group))))


@app.command("ls", hidden=True)
@app.command("list", epilog="Example: liftpy group list --json")
def list_(
    ctx: typer.Context,
    names: Annotated[bool, typer.Option("--names", "-n", help="Print names only.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the consumer groups. To see their lag, use liftpy status."""

    async def work() -> None:
        async with open_admin(ctx) as lift:
            groups = await lift.groups()
        if as_json:
            print_json([group.group if names else asdict(group) for group in groups])
        elif names:
            for group in groups:
                stdout.print(show_text(group.group))
        else:
            stdout.print(groups_table(groups, stdout.width) if groups else _NO_GROUPS)

    run(work(), as_json=as_json)


@app.command("info", hidden=True)
@app.command("describe", epilog="Example: liftpy group describe billing --watch")
def describe(
    ctx: typer.Context,
    name: Name,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh once a second.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show a group: members, assignments, committed offsets and lag.

    Lag counts the committed records that the group has not read. Without a committed offset, it counts all records.
    """

    async def work() -> None:
        check_group_name(name)
        async with open_admin(ctx) as lift:

            async def look() -> list[RenderableType]:
                return (await _describe(lift, name)).tables()

            if watch and not as_json:
                await watch_tables(look, asyncio.Event())  # until interrupted
                return
            while True:
                if as_json:
                    print_json((await _describe(lift, name)).to_plain())
                else:
                    stdout.print(*await look(), sep="\n")
                if not watch:
                    return
                await asyncio.sleep(1)

    run(work(), as_json=as_json)


@app.command("delete", epilog="Example: liftpy group delete billing --yes")
def delete(ctx: typer.Context, name: Name, force: Force = False, as_json: JsonFlag = False) -> None:
    """Delete a group and its committed offsets. It must have no members."""

    async def find() -> None:
        check_group_name(name)
        if not force:
            async with open_admin(ctx) as lift:
                await lift.group(name)

    async def work() -> None:
        async with open_admin(ctx) as lift:
            await lift.delete_group(name)
        if as_json:
            print_json({"deleted": name})
        else:
            stdout.print(f"group {show_text(name)} is deleted")

    run(find(), as_json=as_json)
    confirm(f"Delete group {name} and all it has committed?", force=force)
    run(work(), as_json=as_json)
