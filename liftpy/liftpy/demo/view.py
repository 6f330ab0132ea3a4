"""The demonstration while it runs: a picture that moves on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from liftpy.cli.units import show_count

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rich.console import Console, RenderableType

    from liftpy.demo.watch import Copy, Seen

__all__ = ["DemoView", "LiveView", "PlainView"]

_FRAMES_PER_S: Final = 8
_LINE_EVERY: Final = 0.25  # of the whole, without a terminal
_BAR_CELLS: Final = 16
_RATE_OVER_S: Final = 0.5


class DemoView:
    """What the demonstration tells of itself. This one remembers it, and shows nothing.

    Attributes:
        events: What happened, with the seconds since the beginning.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.events: tuple[tuple[float, str], ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    def event(self, text: str) -> None:
        """Something happened, in rich's markup."""
        self.events = (*self.events, (time.monotonic() - self._began, text))

    def work(self, title: str, total: int | None = None) -> None:
        """Something begins.

        Args:
            title: Title of the work.
            total: How many there are of it, where that is known.
        """

    def done(self, count: int) -> None:
        """So many of the total are done."""

    def process(self, node_id: str, state: str) -> None:
        """The process of a node is in a new state."""

    def seen(self, streams: dict[str, Seen]) -> None:
        """The streams, as they are now; empty while no node answers."""


class PlainView(DemoView):
    """Lines, for logs.

    Args:
        console: Where they go.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._title = ""
        self._total = 0
        self._next = 0.0

    def event(self, text: str) -> None:
        """One line."""
        super().event(text)
        at_s, _ = self.events[-1]
        self._console.print(f"{at_s:6.1f} s  {text}")

    def work(self, title: str, total: int | None = None) -> None:
        """One line, and further ones on the way."""
        self._title, self._total, self._next = title, total or 0, _LINE_EVERY
        self.event(title)

    def done(self, count: int) -> None:
        """A line for each quarter."""
        if self._total and count < self._total and count >= self._next * self._total:
            self._next = count / self._total // _LINE_EVERY * _LINE_EVERY + _LINE_EVERY
            self.event(f"{self._title}: {show_count(count)} of {show_count(self._total)}")


class LiveView(DemoView):
    """A picture of the nodes, the progress, and what happened.

    Args:
        console: A terminal.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        columns = (
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            TextColumn("[cyan]{task.fields[rate]:>10}[/]"),
        )
        self._progress = Progress(*columns, console=console, expand=True)
        self._task = self._progress.add_task("starting", total=None, rate="")
        self._rate_from = (time.monotonic(), 0)
        self._processes: dict[str, str] = {}
        self._streams: dict[str, Seen] = {}
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=_FRAMES_PER_S)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The last picture stays."""
        self._progress.update(self._task, visible=False)
        self._live.stop()

    def work(self, title: str, total: int | None = None) -> None:
        """The bar begins anew."""
        self._progress.reset(self._task, total=total, description=title, rate="")
        self._rate_from = (time.monotonic(), 0)

    def done(self, count: int) -> None:
        """Move the bar."""
        since, before = self._rate_from
        now = time.monotonic()
        if now - since >= _RATE_OVER_S:
            self._progress.update(self._task, rate=f"{show_count((count - before) / (now - since))}/s")
            self._rate_from = (now, count)
        self._progress.update(self._task, completed=count)

    def process(self, node_id: str, state: str) -> None:
        """Show it in its row."""
        self._processes = self._processes | {node_id: state}

    def seen(self, streams: dict[str, Seen]) -> None:
        """Show them from now on."""
        self._streams = streams

    def _draw(self) -> RenderableType:
        """Runs in a thread of its own: what it reads is replaced as a whole, never changed."""
        lines = [Text.from_markup(f"[dim]{at_s:6.1f} s[/]  {text}") for at_s, text in self.events]
        return Group(self._nodes(), *lines, Padding(self._progress, (0, 1)))

    def _nodes(self) -> Table:
        streams = self._streams
        table = Table(box=box.ROUNDED, expand=True)
        for name in ("Node", "Process", *streams):
            table.add_column(name, ratio=1 if name in streams else None, no_wrap=True)
        longest = max((copy.log_end or 0 for seen in streams.values() for copy in seen.copies.values()), default=0)
        for node_id, state in self._processes.items():
            cells = [_cell(streams[name].copies.get(node_id), longest) for name in streams]
            table.add_row(escape(node_id), state, *cells)
        return table


def _cell(copy: Copy | None, longest: int) -> str:
    """A copy of a stream: how long it is, and what it is for."""
    if copy is None:
        return "[dim]-[/]"
    colour = {"leader": "bold green", "in sync": "green", "behind": "red"}[copy.role]
    role = f"[{colour}]{copy.role}[/]"
    if copy.log_end is None:
        return f"[dim]{'─' * _BAR_CELLS}[/] {'?':>9}  {role}"
    filled = round(_BAR_CELLS * copy.log_end / longest) if longest else 0
    bar = f"[{colour}]{'━' * filled}[/][dim]{'─' * (_BAR_CELLS - filled)}[/]"
    lag = f" [yellow]lag {show_count(copy.lag)}[/]" if copy.lag else ""
    return f"{bar} {show_count(copy.log_end):>9}  {role}{lag}"
