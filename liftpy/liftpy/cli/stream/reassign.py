"""`liftpy stream reassign`: move the replicas of a stream to other nodes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from liftpy.cli.run import JsonFlag, open_admin, print_json, run, stdout, tell_warnings
from liftpy.cli.stream.moves import moved_of, moves_table, wait_moved
from liftpy_client.errors import UsageError

if TYPE_CHECKING:
    from liftpy.cli.stream.moves import Moved
    from liftpy_client.admin.admin import Admin
    from liftpy_client.admin.details import MoveDetails

__all__ = ["reassign"]


def _parse_places(partitions: list[int], places: list[str]) -> dict[int, list[str]] | None:
    if len(partitions) != len(places):
        raise UsageError("--partition and --to belong together: name the nodes of each partition")
    if len(set(partitions)) != len(partitions):
        raise UsageError("--partition: name each partition once")
    wanted = {}
    for partition, text in zip(partitions, places, strict=True):
        nodes = [node.strip() for node in text.split(",")]
        if not all(nodes):
            raise UsageError(f"--to: {text!r} is not a list of nodes such as node-1,node-2,node-3")
        wanted[partition] = nodes
    return wanted or None


def reassign(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the stream.", show_default=False)],
    replicas: Annotated[
        int | None,
        typer.Option(min=1, help="Number of replicas of each partition; liftpy chooses the nodes.", show_default=False),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Move this partition to the nodes of --to. Repeatable.")
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="N1,N2,...", help="New nodes: the preferred leader first, observers last."),
    ] = None,
    observers: Annotated[
        int | None, typer.Option(min=0, help="Number of observer replicas.", show_default=False)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Wait until all replicas have moved.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the moves without starting them.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the moves under way; replicas stay where they were.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Move the replicas of a stream to other nodes while it is in use.

    Say how many copies there shall be, or which nodes shall have them.
    """

    async def work() -> None:
        wanted = _parse_places(partition or [], to or [])
        nothing = wanted is None and replicas is None and observers is None
        if cancel:
            if not nothing or watch or dry_run:
                raise UsageError("--cancel goes alone")
            await _cancel(ctx, name, as_json=as_json)
            return
        if nothing:
            raise UsageError(
                "give the number of replicas with --replicas or --observers, or the nodes with --partition and --to"
            )
        if dry_run and watch:
            raise UsageError("--dry-run moves nothing that one could watch")
        async with open_admin(ctx) as lift:
            moves = await lift.reassign_stream(
                name, replicas=replicas, observers=observers, partitions=wanted, dry_run=dry_run
            )
            if not as_json:
                _tell(name, moves, dry_run=dry_run)
            if watch:
                await _watch(lift, name)
        if as_json:
            print_json({"stream": name, "dry_run": dry_run} | asdict(moves))

    run(work(), as_json=as_json)


def _tell(name: str, moves: MoveDetails, *, dry_run: bool) -> None:
    if moves.moves:
        title = f"{'To be moved' if dry_run else 'Being moved'} in {name}"
        stdout.print(moves_table(title, moves.moves, moves.count, stdout.width, planned=True))
    else:
        stdout.print(f"nothing to move: the replicas of {escape(name)} are where they should be")
    tell_warnings(moves.warnings)


async def _watch(lift: Admin, name: str) -> None:
    async def look() -> Moved:
        return moved_of(await lift.stream_info(name))

    await wait_moved(f"moving {escape(name)}", look)


async def _cancel(ctx: typer.Context, name: str, *, as_json: bool) -> None:
    async with open_admin(ctx) as lift:
        cancelled = await lift.cancel_reassignment(name)
    if as_json:
        print_json({"stream": name, "cancelled": cancelled})
    elif cancelled:
        stdout.print(f"{cancelled} partitions of {escape(name)} stay where they were")
    else:
        stdout.print(f"nothing to cancel: no partition of {escape(name)} is being moved")
