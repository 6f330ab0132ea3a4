"""Tables in the manner of the nats CLI: columns that fit the terminal, and times as they are shown."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from rich import box
from rich.table import Table

from liftpy.cli.units import show_count, show_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Column", "make_table", "show_clock_offset", "show_time", "with_rest"]


class Column(NamedTuple):
    """One column.

    Attributes:
        name: its head.
        right: it holds numbers.
        from_width: the narrowest terminal, in characters, that shows it.
    """

    name: str
    right: bool = False
    from_width: int = 0


def make_table(title: str, columns: Iterable[Column], rows: Iterable[dict[str, str]], width: int = 1_000) -> Table:
    """A table of what fits.

    Args:
        title: stands above.
        columns: of which those are shown for which there is room.
        rows: cells, as markup, by the name of the column.
        width: of the terminal.
    """
    table = Table(title=title, box=box.ROUNDED, title_style="bold")
    shown = [column for column in columns if column.from_width <= width]
    for column in shown:
        table.add_column(column.name, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(row[column.name] for column in shown))
    return table


def show_time(ns: int | None) -> str:
    """A time, or a dash."""
    if not ns:
        return "-"
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def show_clock_offset(ahead_s: float) -> str:
    """How far a clock is ahead or behind, with the preposition that follows."""
    return f"{show_duration(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'}"


def with_rest(table: Table, count: int) -> Table:
    """The table, with a caption that says how many of `count` rows it leaves out."""
    if count > table.row_count:
        table.caption = f"and {show_count(count - table.row_count)} more"
    return table
