"""`liftpy restore`: bring a cluster back from its bucket."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape

from liftpy.cli.run import JsonFlag, open_lift, print_json, run, stdout, tell_warnings
from liftpy.cli.tables import Column, make_table, show_time
from liftpy.cli.tier.bucket import BucketUrl, check_url
from liftpy.cli.tier.progress import show_progress
from liftpy.cli.tier.tables import count_of
from liftpy.cli.units import show_bytes, show_count, show_duration
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from liftpy_client.admin.restoring import RestoredStream, RestorePlan, StreamHistory
    from liftpy_client.client import Lift

__all__ = ["app", "plan_table", "recovery_point", "restore", "restore_all"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_LEADERS_WITHIN_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.5
_AMISS_EXIT: Final = 1
_USABLE: Final = frozenset({"ok", "slow", "busy"})
_ENDS_SHOWN_MAX = 4


@app.command()
def restore(
    ctx: typer.Context,
    bucket: BucketUrl = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be restored, and change nothing.")
    ] = False,
    replicas_max: Annotated[
        int | None,
        typer.Option(
            min=1, max=7, help="Limit of replicas per partition, for a cluster with fewer nodes.", show_default=False
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Restore all streams of a bucket to a new, empty cluster.

    Settings, records and committed offsets are restored.

    The nodes have been started with the bucket (--tier-url); naming it here as well makes sure that it is the one that
    is meant. What had not reached the bucket is lost; consumers that had read it are told. May be repeated. Ends with 1
    when something did not come back.
    """
    if restore_all(ctx, bucket, dry_run=dry_run, replicas_max=replicas_max, as_json=as_json):
        raise typer.Exit(_AMISS_EXIT)


def restore_all(
    ctx: typer.Context,
    bucket: str | None,
    *,
    dry_run: bool,
    replicas_max: int | None,
    as_json: bool,
    say: Callable[[dict[str, Any]], None] = print_json,
) -> bool:
    """What `liftpy restore` does; gives whether something is amiss.

    Args:
        ctx: Context of the command.
        bucket: The one that is meant.
        dry_run: Nothing is changed.
        replicas_max: Number of copies at most.
        as_json: Whether to print JSON, for programs.
        say: Called with what they are told.
    """

    async def work() -> bool:
        check_url(bucket)
        async with open_lift(ctx) as lift:
            await _check_bucket(lift, bucket)
            with show_progress("looking at partitions") as move:
                plan = await lift.restore_plan(progress=move)
            if not plan.streams:
                raise LiftError(
                    "the bucket has nothing to restore: there is no stream in its catalog; is the prefix right?"
                )
            if dry_run or not plan.missing:
                amiss = [] if dry_run else await _bucket_amiss(lift)
                _tell_plan(plan, amiss, dry_run=dry_run, say=say if as_json else None)
                return bool(amiss) or any(not part.is_readable for part in plan.partitions)
            if not as_json:
                _show(plan)
            started = time.monotonic()
            with show_progress("restoring partitions") as move:
                outcomes = await lift.restore(plan, replicas_max=replicas_max, progress=move)
            amiss = await _wait_whole(lift, plan, outcomes)
        _tell_outcome(plan, outcomes, amiss, time.monotonic() - started, say if as_json else None)
        return bool(amiss) or any(each.problem for each in outcomes)

    return run(work(), as_json=as_json)


async def _check_bucket(lift: Lift, url: str | None) -> None:
    """The nodes read the bucket that they were started with; whoever names another one is mistaken."""
    if url is None:
        return
    found = await lift.tier_status(limit=0)
    if found.url is None:
        raise LiftError(f"this cluster has no bucket: start its nodes with --tier-url {url}, and try again")
    if found.url.rstrip("/") != url.rstrip("/"):
        raise LiftError(
            f"this cluster has the bucket {found.url}, not {url}: start its nodes with --tier-url {url}, or leave "
            "--bucket out to restore what its own bucket holds"
        )


async def _wait_whole(lift: Lift, plan: RestorePlan, outcomes: list[RestoredStream]) -> list[str]:
    """What is amiss once every partition has had the time to get a leader; streams with a problem are told already."""
    named = {each.name for each in outcomes if each.problem}
    deadline = time.monotonic() + _LEADERS_WITHIN_S
    while True:
        found = await lift.verify_restore(plan, within_s=0)
        amiss = [text for text in found if not any(text.startswith(f"stream {name} ") for name in named)]
        amiss += await _bucket_amiss(lift)
        if not amiss or time.monotonic() > deadline:
            return amiss
        await asyncio.sleep(_LOOK_EVERY_S)


async def _bucket_amiss(lift: Lift) -> list[str]:
    """Whether nodes use the bucket: while they do not, streams are back, and nothing of their history can be read."""
    found = await lift.tier_status(limit=0)
    return [] if found.state in _USABLE else [f"the bucket is {found.state}: {found.message}"]


def _plain(plan: RestorePlan) -> dict[str, Any]:
    point = plan.recovery_point
    return {
        "cluster_id": plan.cluster_id,
        "own_cluster_id": plan.own_cluster_id,
        "recovery_point": None if point is None else point.isoformat(),
        "records": plan.records,
        "stored_bytes": plan.stored_bytes,
        "problems": plan.problems,
        "streams": [asdict(stream) for stream in plan.streams],
    }


def _show(plan: RestorePlan) -> None:
    stdout.print(plan_table(plan, stdout.width))
    if plan.missing:
        stdout.print(recovery_point(plan, datetime.now(UTC)))
    tell_warnings(plan.problems)


def _tell_plan(
    plan: RestorePlan, amiss: list[str], *, dry_run: bool, say: Callable[[dict[str, Any]], None] | None
) -> None:
    if say is not None:
        say({"dry_run": dry_run} | _plain(plan) | {"restored": [], "amiss": amiss})
        return
    _show(plan)
    if not plan.missing:
        stdout.print("nothing to restore: all streams of the bucket are here")
        _tell_amiss(amiss)
    else:
        stdout.print(f"{count_of(len(plan.missing), 'stream')} would be restored; nothing was changed (--dry-run)")


def _tell_amiss(amiss: list[str]) -> None:
    for text in amiss:
        stdout.print(f"[red]amiss:[/] {escape(text)}")


def _tell_outcome(
    plan: RestorePlan,
    outcomes: list[RestoredStream],
    amiss: list[str],
    elapsed_s: float,
    say: Callable[[dict[str, Any]], None] | None,
) -> None:
    if say is not None:
        rows = [asdict(each) for each in outcomes]
        say({"dry_run": False} | _plain(plan) | {"restored": rows, "amiss": amiss, "elapsed_s": elapsed_s})
        return
    for each in outcomes:
        if each.problem:
            stdout.print(f"[bold red]not restored:[/] stream {escape(each.name)}: {escape(each.problem)}")
    _tell_amiss(amiss)
    back = sum(each.restored for each in outcomes)
    of = f"{show_count(back)} of {count_of(len(outcomes), 'stream')} back after {elapsed_s:.1f} s"
    if not amiss and back == len(outcomes):
        stdout.print(f"[bold green]{of}[/], every partition has a leader, and all that the bucket holds can be read")
    else:
        stdout.print(f"[bold red]{of}[/]; put right what is said above, and do the same again")


def plan_table(plan: RestorePlan, width: int = 1_000) -> Table:
    """One line per stream.

    Args:
        plan: What there is.
        width: Width of the terminal, in characters.
    """
    columns = (
        Column("Stream"),
        Column("Partitions", right=True, from_width=70),
        Column("Ends at", right=True),
        Column("Records", right=True),
        Column("Stored", right=True, from_width=80),
        Column("Newest record (UTC)", from_width=90),
        Column("State"),
    )
    table = make_table(f"Bucket of cluster {plan.cluster_id[:8]}", columns, map(_row, plan.streams), width)
    table.caption = (
        f"{show_count(len(plan.streams))} streams, {show_count(len(plan.partitions))} partitions, "
        f"{show_count(plan.records)} records, {show_bytes(plan.stored_bytes)}"
    )
    return table


def _row(stream: StreamHistory) -> dict[str, str]:
    ends = [show_count(each.end) for each in stream.partitions[:_ENDS_SHOWN_MAX]]
    more = " ..." if len(stream.partitions) > _ENDS_SHOWN_MAX else ""
    stored = sum(each.stored_bytes for each in stream.partitions)
    state = "[dim]here[/]" if stream.is_here else "[cyan]to come back[/]"
    if not all(each.is_readable for each in stream.partitions):
        state = "[bold red]damaged[/]"
    elif any(each.problem for each in stream.partitions):
        state = "[yellow]in part[/]"
    return {
        "Stream": escape(stream.name),
        "Partitions": show_count(len(stream.partitions)),
        "Ends at": " ".join(ends) + more,
        "Records": show_count(stream.records),
        "Stored": show_bytes(stored) if stored or not stream.records else "[dim]shared[/]",
        "Newest record (UTC)": show_time(max((each.newest_ns for each in stream.partitions), default=0)),
        "State": state,
    }


def recovery_point(plan: RestorePlan, now: datetime) -> str:
    """The moment to which the cluster is thrown back, in words."""
    point = plan.recovery_point
    if point is None:
        return "The bucket has no records."
    ago = show_duration(max(0.0, (now - point).total_seconds()))
    return f"Recovery point: [bold]{point:%Y-%m-%d %H:%M:%S} UTC[/], {ago} ago. What came later is lost."
