"""Tables in the manner of the nats CLI: columns that fit the terminal, and times as they are shown.

In a pipe or file a table is tab-separated text with all columns, a line for each row, and lines of `#` for what stands
around it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from rich import box
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from liftpy.cli.run import stdout
from liftpy.cli.units import show_count, show_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Column", "make_table", "show_clock_offset", "show_time", "with_rest"]


class Column(NamedTuple):
    """One column.

    Attributes:
        name: Head of the column.
        right: Whether it holds numbers.
        from_width: The narrowest terminal, in characters, that shows it.
    """

    name: str
    right: bool = False
    from_width: int = 0


class _Table(Table):
    """A table that says which columns it leaves out, and is tab-separated where nobody looks at it."""

    hidden: tuple[str, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if console.is_terminal:
            yield from super().__rich_console__(console, options)
            if self.hidden:
                yield Text(f"not shown: {', '.join(self.hidden)}; use a wider terminal, or --json", "dim")
            return
        if self.title:
            yield Segment(f"# {_plain(console, self.title)}\n")
        if self.show_header:
            yield Segment("\t".join(_plain(console, column.header) for column in self.columns) + "\n")
        for row in zip(*(column.cells for column in self.columns), strict=True):
            yield Segment("\t".join(_plain(console, cell) for cell in row) + "\n")
        if self.caption:
            for line in _lines(console, self.caption):
                yield Segment(f"# {line}\n")


def _lines(console: Console, shown: object) -> list[str]:
    return (console.render_str(shown) if isinstance(shown, str) else Text(str(shown))).plain.splitlines()


def _plain(console: Console, shown: object) -> str:
    return " ".join(" ".join(_lines(console, shown)).split("\t"))


def make_table(title: str, columns: Iterable[Column], rows: Iterable[dict[str, str]], width: int = 1_000) -> Table:
    """Make a table of what fits. Outside of a terminal all columns fit.

    Args:
        title: Stands above.
        columns: Columns, of which those are shown for which there is room; names in the first one are never broken.
        rows: Cells, as markup, by the name of the column.
        width: Width of the terminal.
    """
    table = _Table(title=title, box=box.ROUNDED, title_style="bold")
    wanted = list(columns)
    shown = [column for column in wanted if column.from_width <= width or not stdout.is_terminal]
    table.hidden = tuple(column.name for column in wanted if column not in shown)
    for number, column in enumerate(shown):
        justify: Literal["right", "left"] = "right" if column.right else "left"
        table.add_column(column.name, justify=justify, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(row[column.name] for column in shown))
    return table


def show_time(ns: int | None, *, to_ms: bool = False) -> str:
    """A time, to the second or the millisecond, or a dash."""
    if not ns:
        return "-"
    rest = f".{ns // 1_000_000 % 1_000:03d}" if to_ms else ""
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S") + rest


def show_clock_offset(ahead_s: float) -> str:
    """How far a clock is ahead or behind, with the preposition that follows."""
    return f"{show_duration(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'}"


def with_rest(table: Table, count: int) -> Table:
    """The table, with a caption that says how many of `count` rows it leaves out."""
    if count > table.row_count:
        table.caption = f"and {show_count(count - table.row_count)} more"
    return table
