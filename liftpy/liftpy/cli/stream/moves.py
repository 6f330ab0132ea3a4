"""Replicas that are being moved: as a table, and as a bar while a command waits for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from liftpy.cli.run import stderr
from liftpy.cli.stream.replicas import replica_state, role_of
from liftpy.cli.tables import Column, make_table, with_rest
from liftpy.cli.units import show_count

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rich.table import Table

    from liftpy_client.admin.details import ReassignmentDetails, StreamDetails

__all__ = ["Moved", "moved_of", "moves_table", "wait_moved"]

_LOOK_EVERY_S: Final = 0.5
_SHOWN_MAX: Final = 10
_BAR_CELLS: Final = 10


class Moved:
    """How far replicas have moved.

    Args:
        done: How much is done, in whatever unit.
        total: How much there is, in the same unit.
        text: Text to show beside the bar.
        is_over: Nothing is left to do.
    """

    def __init__(self, done: float, total: float, text: str, *, is_over: bool) -> None:
        self.done = done
        self.total = total
        self.text = text
        self.is_over = is_over


def moved_of(stream: StreamDetails) -> Moved:
    """How far the partitions of a stream are, whose replicas are moved; measured in messages to copy. Pure."""
    copied = wanted = left = 0
    for part in stream.partitions:
        left += part.target is not None
        for node in part.target or ():
            if role_of(part, node) == "joining" and part.log_end is not None:
                state = replica_state(part, node)
                wanted += part.log_end
                copied += min(0 if state is None else state.log_end or 0, part.log_end)
    text = f"{left} of {len(stream.partitions)} partitions on the way"
    if wanted:
        text += f", {show_count(wanted - copied)} messages to copy"
    return Moved(copied, wanted, text, is_over=not left)


async def wait_moved(title: str, look: Callable[[], Awaitable[Moved]]) -> None:
    """Show a bar on the standard error until everything has moved. Interrupting it stops the waiting alone."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[text]}"), console=stderr) as progress:
        task = progress.add_task(title, total=None, text="")
        while True:
            moved = await look()
            if moved.is_over:
                progress.update(task, total=1, completed=1, text="done")
                return
            progress.update(task, total=moved.total or None, completed=moved.done, text=moved.text)
            await asyncio.sleep(_LOOK_EVERY_S)


def moves_table(
    title: str, moves: Sequence[ReassignmentDetails], count: int, width: int = 1_000, *, planned: bool = False
) -> Table:
    """What replicas go where.

    Args:
        title: Stands above.
        moves: The first of them.
        count: How many there are.
        width: Width of the terminal, in characters.
        planned: Nothing of it has begun.
    """
    columns = [Column("Partition"), Column("Replicas then", from_width=80), Column("Added"), Column("Removed")]
    if not planned:
        columns.append(Column("Done", from_width=60))
    return with_rest(make_table(title, columns, map(_move_row, moves[:_SHOWN_MAX]), width), count)


def _move_row(move: ReassignmentDetails) -> dict[str, str]:
    filled = round(move.progress * _BAR_CELLS)
    observed = (f"{node} (observer)" if node in move.target_observers else node for node in move.target)
    return {
        "Partition": f"{move.stream}/{move.partition}",
        "Replicas then": ", ".join(observed),
        "Added": ", ".join(replica.node for replica in move.adding) or "-",
        "Removed": ", ".join(move.removing) or "-",
        "Done": f"[cyan]{'━' * filled}[/][dim]{'─' * (_BAR_CELLS - filled)}[/]{move.progress:5.0%}",
    }
