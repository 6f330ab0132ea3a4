"""`liftpy stream recover`: decide who leads where no replica can prove that it has all that was acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape

from liftpy.cli.run import Force, JsonFlag, confirm, open_admin, print_json, run, stdout, tell_warnings
from liftpy.cli.tables import Column, make_table, show_time
from liftpy.cli.units import show_count
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from rich.table import Table

    from liftpy_client.admin.recovery import LogDetails, PartitionRecovery, RecoveryDetails

__all__ = ["recover"]

_SHOWN_MAX: Final = 10
_LOGS: Final = {"ok": "[green]ok[/]", "unproven": "[yellow]unproven[/]", "empty": "[yellow]empty[/]"}


def recover(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the stream.", show_default=False)],
    partition: Annotated[
        int | None, typer.Option(min=0, help="Only this partition; by default all that need it.", show_default=False)
    ] = None,
    leader: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="Who leads; by default the node whose log reaches the furthest."),
    ] = None,
    give_up: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE", help="A node that never returns, with what it has. Repeatable."),
    ] = None,
    accept_data_loss: Annotated[
        bool, typer.Option("--accept-data-loss", help="Go on although acknowledged records are lost by it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what each replica has and who would lead, and change nothing.")
    ] = False,
    force: Force = False,
    as_json: JsonFlag = False,
) -> None:
    """Let a stream go on that has no leader, as no replica can prove that it has all that was acknowledged.

    The replica whose log reaches the furthest leads. The others follow it; a log with committed records that the
    leader lacks goes to its node's quarantine whole. Look first: --dry-run.
    """

    async def decide(*, is_dry: bool, versions: dict[int, int] | None = None) -> RecoveryDetails:
        async with open_admin(ctx) as lift:
            return await lift.recover_stream(
                name,
                partition=partition,
                leader=leader,
                give_up=give_up or (),
                accept_data_loss=accept_data_loss,
                dry_run=is_dry,
                versions=versions,
            )

    seen = run(decide(is_dry=True), as_json=as_json)
    if not dry_run:
        run(_check(name, seen, accept_data_loss=accept_data_loss), as_json=as_json)
    if not as_json:
        _show(name, seen)
    if dry_run or not seen.partitions:
        if as_json:
            print_json({"stream": name, "dry_run": dry_run} | seen.raw)
        return
    confirm(f"Let {_leaders(seen)} lead {seen.count} partitions of {name}?", force=force)
    versions = {each.partition: each.version for each in seen.partitions}
    done = run(decide(is_dry=False, versions=versions), as_json=as_json)
    if as_json:
        print_json({"stream": name, "dry_run": False} | done.raw)
        return
    stdout.print(f"{done.recovered} partitions of {escape(name)} have a leader again: {_leaders(done)}")
    tell_warnings(done.warnings)


async def _check(name: str, seen: RecoveryDetails, *, accept_data_loss: bool) -> None:
    """Say before the question what would be refused after it.

    Raises:
        LiftError: that is so.
    """
    for each in seen.partitions:
        if each.refusal is not None:
            raise LiftError(f"{name}/{each.partition}: {each.refusal}")
        if each.loss is not None and not accept_data_loss:
            raise LiftError(f"{name}/{each.partition}: {each.loss}. Where you accept that: --accept-data-loss")


def _leaders(seen: RecoveryDetails) -> str:
    return ", ".join(sorted({each.chosen for each in seen.partitions if each.chosen is not None}))


def _show(name: str, seen: RecoveryDetails) -> None:
    if not seen.partitions:
        stdout.print(f"nothing to recover: every partition of {escape(name)} has a leader with all that was committed")
        return
    for each in seen.partitions[:_SHOWN_MAX]:
        stdout.print(_table(name, each, stdout.width))
        stdout.print(_what_comes(name, each))
    if seen.count > _SHOWN_MAX:
        stdout.print(f"and {show_count(seen.count - _SHOWN_MAX)} partitions more; --json shows them")


def _table(name: str, recovery: PartitionRecovery, width: int) -> Table:
    columns = (
        Column("Node"),
        Column("Is"),
        Column("In sync last", from_width=80),
        Column("Log"),
        Column("Start", right=True, from_width=80),
        Column("End", right=True),
        Column("Epoch", right=True, from_width=70),
        Column("Committed", right=True, from_width=70),
        Column("Newest record (UTC)", from_width=110),
    )
    led = "no leader" if recovery.leader is None else f"led by {recovery.leader}"
    table = make_table(f"{name}/{recovery.partition}: {led}", columns, map(_row, recovery.logs), width)
    lines = [f"{each.node}: {escape(each.why)}" for each in recovery.logs if each.why]
    table.caption = "\n".join(lines) or None
    return table


def _row(log: LogDetails) -> dict[str, str]:
    state = "[green]up[/]" if log.up else "[red]down[/]"
    return {
        "Node": log.node,
        "Is": f"{state}, observer" if log.observer else state,
        "In sync last": "yes" if log.in_last_isr else "-",
        "Log": _LOGS.get(log.state, f"[red]{log.state}[/]"),
        "Start": _number(log.log_start),
        "End": _number(log.log_end),
        "Epoch": "-" if log.last_epoch in {None, -1} else str(log.last_epoch),
        "Committed": _number(log.high_watermark),
        "Newest record (UTC)": show_time(log.last_timestamp_ns),
    }


def _number(value: int | None) -> str:
    return "-" if value is None else show_count(value)


def _what_comes(name: str, recovery: PartitionRecovery) -> str:
    where = f"{escape(name)}/{recovery.partition}"
    known = f"{where}: records below {show_count(recovery.known_end)} are known to have been committed\n"
    if not recovery.known_end:
        known = ""
    known += _in_bucket(where, recovery)
    if recovery.refusal is not None:
        return f"{known}[red]{where}:[/] {escape(recovery.refusal)} (--give-up)"
    would = f"{known}{where}: {recovery.chosen} would lead, and go on at offset {show_count(recovery.chosen_end or 0)}"
    if recovery.loss is None:
        return f"{would}; no committed record is known to be lost"
    lost = f"; at least {show_count(recovery.lost)} committed records would be lost" if recovery.lost else ""
    return f"{would}{lost}\n[red]{escape(recovery.loss)}[/]"


def _in_bucket(where: str, recovery: PartitionRecovery) -> str:
    bucket = recovery.bucket
    if bucket is None:
        return ""
    problem = f"[yellow]{where}:[/] {escape(bucket.problem)}\n" if bucket.problem else ""
    if bucket.end is None:
        return problem
    if not bucket.newest_ns:
        return f"{where}: the bucket has nothing of it\n{problem}"
    newest = show_time(bucket.newest_ns)
    return f"{where}: the bucket has the records below {show_count(bucket.end)}, the newest of {newest} UTC\n{problem}"
