"""What a bucket holds of a cluster that is gone, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from liftpy.cli.tables import Column, make_table, show_time
from liftpy.cli.units import show_bytes, show_count, show_duration

if TYPE_CHECKING:
    from datetime import datetime

    from rich.table import Table

    from liftpy_client.admin.restoring import RestorePlan, StreamHistory

__all__ = ["plan_table", "recovery_point"]

_ENDS_SHOWN_MAX = 4


def plan_table(plan: RestorePlan, width: int = 1_000) -> Table:
    """One line per stream.

    Args:
        plan: what there is.
        width: of the terminal, in characters.
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
