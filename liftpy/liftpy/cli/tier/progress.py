"""Bars for work on the bucket: on a terminal only, and never where the result is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from liftpy.cli.run import stderr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["show_progress"]


@contextmanager
def show_progress(title: str, *, in_bytes: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar as long as this lasts; gives what moves it: (done, of how many).

    Args:
        title: Stands in front.
        in_bytes: Whether it is bytes that are counted.
    """
    if not stderr.is_terminal:
        yield lambda _done, _total: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=stderr, transient=True) as progress:
        task = progress.add_task(escape(title), total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
