"""Tables that are renewed once a second."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from liftpy.cli.run import stdout
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rich.console import RenderableType

__all__ = ["watch_tables"]


async def watch_tables(
    look: Callable[[], Awaitable[list[RenderableType]]], stop: asyncio.Event, notes: Callable[[], list[str]] = list
) -> None:
    """Show what there is until told to stop; what keeps it from being new is said below it.

    Args:
        look: Finds out what there is.
        stop: Ends it.
        notes: Further lines to show below.

    Raises:
        LiftError: looking fails the first time.
    """
    tables = await look()
    with Live(Group(*tables), console=stdout, auto_refresh=False) as live:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await stop.wait()
            try:
                tables = await look()
            except LiftError as error:
                said = [str(error)]
            else:
                said = []
            lines = [Text(line, "red") for line in said + notes()]
            live.update(Group(*tables, *lines), refresh=True)
