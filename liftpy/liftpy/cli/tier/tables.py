"""How the bucket is, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.markup import escape

from liftpy.cli.tables import Column, make_table, show_time
from liftpy.cli.units import show_bytes, show_count, show_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from liftpy_bucket.manifest.pins.pin import Pin
    from liftpy_client.admin.tier import TieredPartition, TierStatus

__all__ = ["count_of", "has_alarm", "partitions_table", "pins_table", "status_table"]

_STATES: Final = {
    "off": "[dim]off[/]",
    "ok": "[green]ok[/]",
    "slow": "[yellow]slow[/]: it takes less than what comes in",
    "busy": "[yellow]busy[/]: it asks for fewer requests",
    "away": "[bold red]away[/]: it does not answer",
    "full": "[bold red]full[/]",
    "refused": "[bold red]refused[/]",
}


def count_of(count: int, what: str) -> str:
    """`1 object`, `1,200 objects`."""
    return f"{show_count(count)} {what}{'' if count == 1 else 's'}"


def has_alarm(status: TierStatus) -> bool:
    """Whether there is something to look into."""
    return status.state not in {"off", "ok"} or bool(status.trouble_count) or bool(status.unreachable)


def status_table(status: TierStatus) -> Table:
    """The bucket as a whole."""
    table = make_table(f"Bucket {escape(status.url or '')}", (Column("name"), Column("value")), ())
    table.show_header = False
    table.add_row("state", _STATES.get(status.state, status.state))
    if status.message:
        table.add_row("why", f"[red]{escape(status.message)}[/]")
    if status.since is not None:
        table.add_row("since", f"{status.since:%Y-%m-%d %H:%M:%S} UTC")
    if status.room_s is not None:
        table.add_row("disks full in", f"[bold red]{show_duration(status.room_s)}[/] at the present rate")
    table.add_row("partitions", show_count(status.partition_count))
    if status.trouble_count:
        table.add_row("in trouble", f"[bold red]{show_count(status.trouble_count)}[/]")
    waits = "nothing"
    if status.untiered_bytes:
        waits = f"about {show_bytes(status.untiered_bytes)}, for up to {show_duration(status.untiered_age_s)}"
    table.add_row("not yet in it", waits)
    counted = (("requests", status.requests), ("of readers", status.read_requests), ("failed jobs", status.failures))
    for name, numbers in counted:
        shown = ", ".join(f"{show_count(count)} {kind}" for kind, count in sorted(numbers.items()) if count)
        if shown:
            table.add_row(name, escape(shown))
    if status.unreachable:
        table.add_row("silent", f"[red]{escape(', '.join(status.unreachable))}[/] did not answer")
    return table


def partitions_table(status: TierStatus, width: int = 1_000) -> Table | None:
    """One line per partition; None where there is none.

    Args:
        status: Status of the bucket.
        width: Width of the terminal, in characters.
    """
    if not status.partitions:
        return None
    columns = [
        Column("Partition"),
        Column("Leader", from_width=90),
        Column("From", right=True),
        Column("On disk from", right=True, from_width=70),
        Column("In bucket to", right=True),
        Column("Newest", right=True),
        Column("Waits", right=True, from_width=60),
        Column("For", right=True, from_width=100),
        Column("Stored", right=True, from_width=100),
    ]
    if any(each.trouble for each in status.partitions):
        columns.append(Column("Trouble"))
    table = make_table("Partitions", columns, map(_row, status.partitions), width)
    left = status.partition_count - len(status.partitions)
    if left > 0:
        table.caption = f"and {show_count(left)} more, of which less waits: --limit"
    return table


def _row(each: TieredPartition) -> dict[str, str]:
    stopped = " [bold red](stopped)[/]" if each.stopped else ""
    return {
        "Partition": f"{escape(each.stream)}/{each.partition}",
        "Leader": escape(each.leader),
        "From": show_count(each.start),
        "On disk from": show_count(each.local_start),
        "In bucket to": show_count(each.tiered_end),
        "Newest": show_count(each.high_watermark),
        "Waits": show_bytes(each.untiered_bytes) if each.untiered_bytes else "-",
        "For": show_duration(each.untiered_age_s) if each.untiered_bytes else "-",
        "Stored": show_bytes(each.stored_bytes),
        "Trouble": f"[red]{escape(each.trouble)}[/]{stopped}" if each.trouble else "",
    }


def pins_table(pins: Sequence[tuple[str, Pin]], width: int = 1_000) -> Table:
    """One line per pin.

    Args:
        pins: Pins with the partition of each.
        width: Width of the terminal, in characters.
    """
    columns = (
        Column("Partition"),
        Column("Name"),
        Column("Kind"),
        Column("Holds"),
        Column("Until", from_width=80),
    )
    rows = (
        {
            "Partition": escape(label),
            "Name": escape(pin.name),
            "Kind": "fork" if pin.target else pin.kind,
            "Holds": _held(pin),
            "Until": "dropped" if pin.expires_ns is None else show_time(pin.expires_ns),
        }
        for label, pin in pins
    )
    return make_table("What is held", columns, rows, width)


def _held(pin: Pin) -> str:
    if pin.kind == "version":
        return f"the objects of version {pin.version}"
    if pin.until is None:
        return f"everything from offset {pin.start} on"
    return f"offsets {pin.start} to {pin.until}"
