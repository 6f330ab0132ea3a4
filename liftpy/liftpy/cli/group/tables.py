"""Consumer groups as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy.cli.group.lags import total_lag
from liftpy.cli.tables import Column, make_table, show_time
from liftpy.cli.text import show_numbers, show_text
from liftpy.cli.units import show_bytes, show_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from liftpy.cli.group.lags import PartitionLag
    from liftpy.cli.group.overview import GroupSeen
    from liftpy_client.admin.groups import GroupDetails, GroupMember, GroupSummary

__all__ = ["group_table", "groups_table", "lags_table", "members_table", "status_table"]

_SHOWN_MAX: Final = 10
_STATES: Final = {"active": "[green]active[/]", "empty": "[dim]empty[/]"}


def groups_table(groups: Sequence[GroupSummary], width: int = 1_000) -> Table:
    """One line per group.

    Args:
        groups: Groups to show.
        width: Width of the terminal, in characters.
    """
    columns = (
        Column("Group"),
        Column("State"),
        Column("Members", right=True),
        Column("Partitions", right=True, from_width=60),
        Column("Coordinator", from_width=80),
        Column("Size", right=True, from_width=90),
        Column("Generation", right=True, from_width=100),
    )
    rows = (
        {
            "Group": show_text(group.group),
            "State": _STATES.get(group.state, group.state),
            "Members": show_count(group.members),
            "Partitions": show_count(group.partitions),
            "Coordinator": group.coordinator,
            "Size": show_bytes(group.size_bytes),
            "Generation": str(group.generation),
        }
        for group in groups
    )
    return make_table("Consumer groups", columns, rows, width)


def group_table(group: GroupDetails, lags: Sequence[PartitionLag]) -> Table:
    """A group as a whole."""
    table = make_table(f"Group {show_text(group.group)}", (Column("name"), Column("value")), ())
    table.show_header = False
    table.add_row("state", _STATES.get(group.state, group.state))
    table.add_row("coordinator", group.coordinator)
    table.add_row("generation", str(group.generation))
    table.add_row("members", show_count(len(group.members)))
    untold = sum(row.lag is None and not row.is_gone for row in lags)
    rest = f" [yellow]and that of {show_count(untold)} partitions whose leaders do not answer[/]" if untold else ""
    table.add_row("total lag", f"[bold]{show_count(total_lag(lags))}[/]{rest}")
    return table


def members_table(group: GroupDetails, width: int = 1_000) -> Table | None:
    """The members of a group and what they read; None when there are none.

    Args:
        group: Group to show.
        width: Width of the terminal, in characters.
    """
    if not group.members:
        return None
    columns = [Column("Member"), Column("Client", from_width=60), Column("Reads")]
    if any(member.instance_id for member in group.members):
        columns.insert(1, Column("Instance"))
    if any(member.rack for member in group.members):
        columns.append(Column("Rack", from_width=100))
    columns.append(Column("Out after", right=True, from_width=100))
    rows = (
        {
            "Member": show_text(member.member_id),
            "Instance": show_text(member.instance_id) or "-",
            "Client": show_text(member.client) or "-",
            "Reads": _reads(member) or "[dim]nothing[/]",
            "Rack": show_text(member.rack) or "-",
            "Out after": f"{member.session_timeout_ms / 1000:g}s",
        }
        for member in sorted(group.members, key=lambda member: (member.instance_id, member.member_id))
    )
    return make_table("Members", columns, rows, width)


def _reads(member: GroupMember) -> str:
    return "; ".join(f"{stream} {show_numbers(numbers)}" for stream, numbers in sorted(member.assigned.items()))


def lags_table(lags: Sequence[PartitionLag], width: int = 1_000) -> Table | None:
    """Where a group is in its partitions; None when it has none.

    Args:
        lags: Lags by stream and partition.
        width: Width of the terminal, in characters.
    """
    if not lags:
        return None
    columns = [
        Column("Stream"),
        Column("#", right=True),
        Column("Committed", right=True),
        Column("End", right=True, from_width=60),
        Column("Lag", right=True),
        Column("Committed at", from_width=80),
        Column("Member", from_width=110),
    ]
    if any(row.note for row in lags):
        columns.append(Column("Note"))
    return make_table("Partitions", columns, map(_lag_row, lags), width)


def _lag_row(row: PartitionLag) -> dict[str, str]:
    return {
        "Stream": show_text(row.stream),
        "#": str(row.partition),
        "Committed": "-" if row.committed is None else show_count(row.committed),
        "End": "-" if row.end is None else show_count(row.end),
        "Lag": "-" if row.lag is None else show_count(row.lag),
        "Committed at": show_time(row.committed_ns),
        "Member": "-" if row.member is None else show_text(row.member.instance_id or row.member.member_id),
        "Note": f"[yellow]{row.note}[/]",
    }


def status_table(seen: Sequence[GroupSeen], width: int = 1_000) -> Table:
    """The groups that are furthest behind, with their total lag.

    Args:
        seen: All of them.
        width: Width of the terminal, in characters.
    """
    columns = (
        Column("Group"),
        Column("State"),
        Column("Members", right=True, from_width=60),
        Column("Partitions", right=True, from_width=80),
        Column("Lag", right=True),
    )
    ordered = sorted(seen, key=lambda group: (-(group.lag or 0), group.summary.group))
    rows = (
        {
            "Group": show_text(group.summary.group),
            "State": _STATES.get(group.summary.state, group.summary.state),
            "Members": show_count(group.summary.members),
            "Partitions": show_count(group.summary.partitions),
            "Lag": "-" if group.lag is None else show_count(group.lag),
        }
        for group in ordered[:_SHOWN_MAX]
    )
    table = make_table("Consumer groups", columns, rows, width)
    if len(seen) > _SHOWN_MAX:
        rest = sum(group.lag or 0 for group in ordered[_SHOWN_MAX:])
        table.caption = f"and {show_count(len(seen) - _SHOWN_MAX)} more, which lag by {show_count(rest)} in all"
        untold = sum(group.lag is None for group in seen)
        if untold:
            table.caption += f"; {show_count(untold)} were not asked: liftpy group describe tells"
    return table
