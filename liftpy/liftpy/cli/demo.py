"""`liftpy demo`."""

from __future__ import annotations

from dataclasses import asdict

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from liftpy.cli.run import JsonFlag, print_json, run, stderr, stdout
from liftpy.cli.units import show_bytes, show_count
from liftpy.demo.scenario import DemoReport, run_demo

__all__ = ["demo"]


def demo(as_json: JsonFlag = False) -> None:
    """Store the flights of New York 2013, kill the node on the way, replay them and check every one."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )

    async def work() -> DemoReport:
        with Progress(*columns, console=stderr) as progress:
            return await run_demo(progress)

    report = run(work(), as_json=as_json)
    if as_json:
        print_json(asdict(report))
    else:
        stdout.print(_table(report))


def _table(report: DemoReport) -> Table:
    table = Table(
        title="Every record was there, once, and as it was published", box=box.ROUNDED, title_style="bold green"
    )
    for name in ("Stream", "Subject", "Records", "On disk", "Replayed", "Gaps"):
        table.add_column(name, justify="left" if name in {"Stream", "Subject"} else "right")
    for stream in report.streams:
        rate = f"{show_count(stream['records'] / stream['replay_s'])}/s"
        size = show_bytes(stream["bytes"])
        table.add_row(stream["name"], stream["subject"], show_count(stream["records"]), size, rate, str(stream["gaps"]))
    rate = show_count(report.flights / report.publish_s)
    seconds, restart = f"{report.publish_s:.1f}", f"{report.restart_s:.1f}"
    resent, known = show_count(report.resent), show_count(report.duplicates)
    table.caption = (
        f"{show_count(report.flights)} flights published and acknowledged (fsync before ack) in {seconds} s, "
        f"{rate}/s with one nats-py client.\n"
        f"The node was killed half-way and answered again after {restart} s; "
        f"{resent} messages without an ack were sent again, {known} of them were known.\n"
        "The gap is the time of the kill, as recorded by the stream."
    )
    return table
