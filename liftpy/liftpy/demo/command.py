"""`liftpy demo`."""

from __future__ import annotations

import shutil
import sysconfig
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from liftpy.cli.dev.layout import NODES_MAX
from liftpy.cli.run import JsonFlag, print_json, run, stderr, stdout
from liftpy.cli.units import show_bytes, show_count
from liftpy.demo.delays import windows_of
from liftpy.demo.pipeline import PROGRAMS, Pipeline
from liftpy.demo.scenario import DemoReport, run_demo
from liftpy.demo.view import LiveView, PlainView
from liftpy_client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

__all__ = ["app", "demo"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_CARRIERS_SHOWN: Final = 6
_COLUMNS: Final = ("Stream", "Subject", "Records", "On disk")


@app.command()
def demo(
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, max=NODES_MAX, help="Number of nodes, and of replicas of each message.")
    ] = 3,
    s3: Annotated[
        bool, typer.Option("--s3", help="Also run an S3 server (SeaweedFS); the replay reads its bucket.")
    ] = False,
    pipeline: Annotated[
        Path | None,
        typer.Option(
            help="Run this Spark pipeline afterwards (examples/flights_pipeline). Needs --s3 and Java 17.",
            show_default=False,
        ),
    ] = None,
    picture: Annotated[Path, typer.Option(help="PNG file that the pipeline writes.")] = Path("flights.png"),
    as_json: JsonFlag = False,
) -> None:
    """Store a year of flights, kill the leader, check every record.

    Runs a nats-server and nodes of its own in a temporary directory, which takes some 160 MB of disk for each node.
    With --s3 the streams leave the disks for a bucket as they are published, and come back from there. With --pipeline
    Spark then adds up delays, once as a stream and once from history, and both are compared.
    """

    async def work() -> DemoReport:
        with LiveView(stderr) if stderr.is_terminal else PlainView(stderr) as view:
            return await run_demo(view, nodes, s3=s3, pipeline=_pipeline(pipeline, picture, s3=s3))

    report = run(work(), as_json=as_json)
    if as_json:
        print_json(asdict(report))
    else:
        stdout.print(_summary(report))


def _pipeline(directory: Path | None, picture: Path, *, s3: bool) -> Pipeline | None:
    """What to run.

    Raises:
        UsageError: it is not there, or there is no bucket for it.
    """
    if directory is None:
        return None
    missing = [name for name in PROGRAMS if not (directory / name).is_file()]
    if missing:
        raise UsageError(f"--pipeline {directory}: there is no {' and no '.join(missing)}")
    if not s3:
        raise UsageError("--pipeline needs --s3: its results are written by way of the bucket")
    return Pipeline(directory, picture)


def _summary(report: DemoReport) -> RenderableType:
    parts: list[RenderableType] = ["", _streams(report), "", _ways(report), "", _story(report)]
    if report.pipeline:
        parts += ["", *_delays(report.pipeline)]
    return Group(*parts, "", _what_next())


def _delays(pipeline: dict[str, Any]) -> Iterator[RenderableType]:
    """What the pipeline on Spark made of the flights."""
    if "skipped" in pipeline:
        yield f"The pipeline on Spark was left out: {escape(pipeline['skipped'])}."
        return
    streaming, batch = pipeline["streaming"], pipeline["batch"]
    table = Table(title="Spark: how long carriers let people wait", box=box.ROUNDED, title_style="bold green")
    for name in ("Carrier", "Flights", "Cancelled", "15 min late", "Mean delay"):
        table.add_column(name, justify="left" if name == "Carrier" else "right")
    for each in batch["carriers"][:_CARRIERS_SHOWN]:
        left = max(1, each["flights"] - each["cancelled"])  # of none that left, the sums are 0
        shares = (f"{each['late'] / left:.1%}", f"{each['delay_sum_min'] / left:.1f} min")
        table.add_row(each["name"], show_count(each["flights"]), show_count(each["cancelled"]), *shares)
    yield table
    yield ""
    rows = " and ".join(f"{show_count(count)} windows by {name}" for name, count in windows_of(batch).items())
    yield (
        f"A streaming job read all of it in {streaming['took_s']:.1f} s: {rows}, once each in a compacted stream "
        f"and in Delta tables.\nA batch job computed them from history in {batch['took_s']:.1f} s: "
        f"[bold green]all agree to the row[/]. The day in a picture: {escape(pipeline['picture'])}"
    )


def _streams(report: DemoReport) -> Table:
    table = Table(
        title="Every record was there, once, and as it was published", box=box.ROUNDED, title_style="bold green"
    )
    columns = ("Stream", "Records", "On disk", "In bucket", "Read there") if report.bucket else _COLUMNS
    for name in (*columns, "Replayed", "Gaps"):
        table.add_column(name, justify="left" if name in {"Stream", "Subject"} else "right")
    for stream in report.streams:
        rate = f"{show_count(stream['records'] / stream['replay_s'])}/s"
        size = show_bytes(stream["bytes"]) + (f" x {report.nodes}" if report.nodes > 1 else "")
        cells = {"Stream": stream["name"], "Subject": stream["subject"], "On disk": size}
        cells["Records"] = show_count(stream["records"])
        if report.bucket:
            cells["In bucket"] = show_bytes(stream["stored_bytes"])
            cells["Read there"] = show_count(stream["from_bucket"])
        table.add_row(*(cells[name] for name in columns), rate, str(stream["gaps"]))
    return table


def _ways(report: DemoReport) -> Table:
    """By which way each message came to be stored once."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right")
    table.add_column()
    table.add_row(show_count(report.first_sending), "flights were acknowledged when they were sent first")
    table.add_row(show_count(report.stored_again), "had got lost with the killed node, were sent again and stored")
    table.add_row(show_count(report.duplicates), "were sent again too, were there already, and were not stored twice")
    if report.late:
        table.add_row(
            show_count(report.late), "of those sent again stand behind later ones: nobody had waited for them"
        )
    for count, what in ((report.lost, "lost"), (report.doubled, "doubled")):
        table.add_row(f"[bold {'red' if count else 'green'}]{show_count(count)}[/]", f"[bold]{what}[/]")
    return table


def _story(report: DemoReport) -> str:
    rate = show_count(report.flights / report.publish_s)
    majority = report.nodes // 2 + 1
    where = f" on every node in sync, at least {majority} of {report.nodes}" if report.nodes > 1 else ""
    published = f"{show_count(report.flights)} flights published and acknowledged in {report.publish_s:.1f} s"
    lines = [f"{published}, {rate}/s with one nats-py client; an ack means fsynced{where}."]
    if report.nodes > 1:
        killed = f"{report.killed}, the leader, was killed after {show_count(report.killed_after)} of them"
        next_ack = f"The next ack came [bold]{report.next_ack_s:.2f} s[/] later, from {report.leader_after}"
        back = f"Started again, {report.killed} was up after {report.restart_s:.1f} s"
        lines += [f"{killed}. {next_ack}.", f"{back}, and had all it missed after {report.in_sync_s:.1f} s."]
    else:
        back = f"The node was killed half-way and answered again after {report.restart_s:.1f} s"
        lines.append(f"{back}; the next ack came {report.next_ack_s:.2f} s after the kill.")
    if report.bucket:
        lines.append(
            f"{report.tiered_s:.1f} s after the last ack the bucket had everything, with "
            f"{show_count(report.bucket_requests)} requests, and the disks had let go of it."
        )
    lines.append(
        "The gap is the time from the kill on in which nobody listened: there, messages without an ack may be missing."
    )
    return "\n".join(lines)


def _what_next() -> str:
    liftpy = _command()
    commands = {
        f"{liftpy} dev --nodes 3": "a cluster like this one, at nats://127.0.0.1:4222",
        f"{liftpy} stream add orders --subject 'orders.>' --replicas 3": "in a second terminal",
        f"{liftpy} status --watch": "then kill one of the nodes, and see",
    }
    width = max(map(len, commands))
    lines = [f"  {command:<{width}}  [dim]# {what}[/]" for command, what in commands.items()]
    return "\n".join(["[bold]Try next[/]", *lines])


def _command() -> str:
    """How this command is to be called from here: a virtual environment need not be on the path."""
    here = Path(sysconfig.get_path("scripts")) / "liftpy"
    if shutil.which("liftpy") or not here.is_relative_to(Path.cwd()):
        return "liftpy"
    return str(here.relative_to(Path.cwd()))
