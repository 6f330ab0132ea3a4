"""`liftpy events`: what happened to the cluster, one line for each event."""

from __future__ import annotations

import json
import sys
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import typer

from liftpy.cli.run import JsonFlag, open_lift, run, stderr, stdout
from liftpy.cli.tables import show_time
from liftpy.cli.text import printable
from liftpy.cli.units import parse_duration
from liftpy_client.errors import AdminError, UsageError
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.events import COMMON_FIELDS, EVENTS_STREAM, KINDS
from liftpy_envelope.stream_config import INTERNAL_PREFIX

if TYPE_CHECKING:
    from liftpy_client.client import Lift

__all__ = ["app", "event_line", "events"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_FOREVER: Final = "all"
_EXAMPLES: Final = """Examples:

liftpy events --since 1h

liftpy events --follow --kind leader.changed --kind gap

liftpy events --since all --stream orders --json"""


class _Wanted(NamedTuple):
    kinds: tuple[str, ...]
    streams: tuple[str, ...]
    nodes: tuple[str, ...]
    has_internal: bool

    def matches(self, event: dict[str, Any]) -> bool:
        kind, stream = event.get("kind", ""), event.get("stream")
        return (
            (not self.kinds or any(kind == each or kind.startswith(f"{each}.") for each in self.kinds))
            and (not self.streams or stream in self.streams)
            and (not self.nodes or event.get("node") in self.nodes)
            and (self.has_internal or stream in self.streams or not (stream or "").startswith(INTERNAL_PREFIX))
        )


@app.command(epilog=_EXAMPLES)
def events(
    ctx: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with events as they happen.")] = False,
    since: Annotated[
        str, typer.Option("--since", metavar="SPAN", help="Begin this long ago, such as 1h; all: with the first one.")
    ] = "1d",
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", help="Only this kind, such as leader.changed, or gap for all of gaps. Repeatable."),
    ] = None,
    stream: Annotated[list[str] | None, typer.Option("--stream", help="Only about this stream. Repeatable.")] = None,
    node: Annotated[
        list[str] | None, typer.Option("--node", help="Only about, or told by, this node. Repeatable.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also those of internal streams.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print what happened to the cluster.

    Events are of streams, leaders, replicas, nodes, gaps, damage, uploads, disks and refusals. Times are in UTC. With
    --json, each line is an event as it is stored.
    """

    async def work() -> None:
        wanted = _Wanted(_kinds(kind or []), tuple(stream or ()), tuple(node or ()), everything)
        start = _start(since)
        async with open_lift(ctx) as lift:
            if not await _are_there(lift):
                stderr.print(f"[yellow]note:[/] there is no stream {EVENTS_STREAM}: nothing has happened to a stream "
                             "yet, or events are turned off in the settings of the nodes")  # fmt: skip
                return
            await _print(lift, wanted, start, follow=follow, as_json=as_json)

    run(work(), as_json=as_json)


def _kinds(given: list[str]) -> tuple[str, ...]:
    known = [*KINDS, *sorted({kind.partition(".")[0] for kind in KINDS})]
    for kind in given:
        if kind not in known:
            near = get_close_matches(kind, known, 1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(KINDS)}"
            raise UsageError(f"--kind: {kind!r} is no kind of event; {advice}")
    return tuple(given)


def _start(since: str) -> Literal["earliest"] | datetime:
    if since == _FOREVER:
        return "earliest"
    try:
        seconds = parse_duration(since.removeprefix("-"))
        return datetime.now(UTC) - timedelta(seconds=seconds)
    except OverflowError:
        return "earliest"
    except UsageError as error:
        raise UsageError(f"--since: {error}, or all") from None


async def _are_there(lift: Lift) -> bool:
    try:
        await lift.stream_info(EVENTS_STREAM)
    except AdminError as error:
        if error.code != ErrorCode.UNKNOWN_STREAM:
            raise
        return False
    return True


async def _print(
    lift: Lift, wanted: _Wanted, start: Literal["earliest"] | datetime, *, follow: bool, as_json: bool
) -> None:
    show = _json_line if as_json else event_line
    async with (
        lift.consume(EVENTS_STREAM, start=start, stop=None if follow else "latest") as messages,
        aclosing(messages.parts()) as fetched,
    ):
        async for parts in fetched:
            lines = []
            for part in parts:
                for message in part:
                    event = json.loads(message.value or b"{}")
                    if wanted.matches(event):
                        lines.append(show(event))
            sys.stdout.write("".join(f"{line}\n" for line in lines))
            sys.stdout.flush()


def _json_line(event: dict[str, Any]) -> str:
    return json.dumps(event)


def event_line(event: dict[str, Any]) -> str:
    """An event as a line of text: time, kind, what it is about, its own fields, and the cause."""
    colors = stdout.is_terminal and not stdout.no_color
    dim, green, end = ("\x1b[2m", "\x1b[32m", "\x1b[0m") if colors else ("", "", "")
    place = event.get("stream", "")
    if "partition" in event:
        place += f"/{event['partition']}"
    node = event.get("node")
    if node is not None:
        place += f" on {node}" if place else node
    own = {name: value for name, value in event.items() if name not in COMMON_FIELDS}
    details = " ".join(f"{name}={_text(name, value)}" for name, value in own.items())
    details += f" ({event['cause']})" if event.get("cause") else ""
    kind = printable(event.get("kind", "?"))
    rest = f": {printable(details.strip())}" if details else ""
    when = show_time(event.get("time_ns"), to_ms=True)
    return f"{dim}{when}{end} {green}{kind:<16}{end} {printable(place)}{rest}"


def _text(name: str, value: object) -> str:
    if name.endswith("_ns") and isinstance(value, int):
        return show_time(value, to_ms=True).replace(" ", "T")
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_change(change)}" for key, change in value.items())
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _change(change: object) -> str:
    return " -> ".join(map(str, change)) if isinstance(change, list) else str(change)
