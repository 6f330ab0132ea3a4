"""`liftpy consume`: print messages, alone or as a member of a consumer group."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import sys
from contextlib import aclosing, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from liftpy.cli.run import JsonFlag, open_lift, run, stderr, stdout
from liftpy.cli.stream.printing import (
    Style,
    dead_letter_json_printer,
    json_printer,
    raw_printer,
    template_printer,
    text_printer,
)
from liftpy.cli.stream.replicas import end_of
from liftpy.cli.text import show_numbers, show_text
from liftpy.cli.units import parse_duration, parse_offset_or_time
from liftpy_client.consumer.options import ConsumeOptions
from liftpy_client.errors import UsageError
from liftpy_client.group.options import GroupOptions, check_group_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from liftpy.cli.stream.printing import Printer
    from liftpy_client.client import Lift
    from liftpy_client.consumer.consumer import Consumer
    from liftpy_client.group.consumer import GroupConsumer
    from liftpy_client.message import Message

__all__ = ["app", "consume"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_LINES_AT_ONCE: Final = 100
_COMMIT_INTERVALS_S: Final = (0.01, 86_400.0)
_ON_LOST: Final = ("error", "earliest", "latest", "new")
_STARTS: Final = ("earliest", "latest", "new")
_EXAMPLES: Final = """Examples:

liftpy consume orders --start -1h --subject 'orders.eu.>'

liftpy consume orders --last 10 --format '{offset} {subject} {key} {value}'

liftpy consume orders refunds --group billing

liftpy consume dead-orders --dead-letter --stop latest"""

GroupName = Annotated[
    str | None, typer.Option("--group", help="Join this consumer group, which shares partitions and commits offsets.")
]
CommitInterval = Annotated[
    str | None,
    typer.Option("--commit-interval", metavar="SPAN", help="Interval between automatic offset commits. [default: 5s]"),
]
InstanceId = Annotated[
    str | None, typer.Option("--instance-id", help="Id of a static member: a restart within 10s moves no partitions.")
]
Subjects = Annotated[
    list[str] | None, typer.Option("--subject", help="Only messages on this subject, wildcards included. Repeatable.")
]
OnLost = Annotated[
    str,
    typer.Option("--on-lost", help="If the next offset was deleted: error, or continue at earliest, latest or new."),
]
Last = Annotated[
    int | None,
    typer.Option("--last", min=1, help="Start with the last this many offsets of each partition.", show_default=False),
]
Idle = Annotated[
    str | None,
    typer.Option(
        "--idle", metavar="SPAN", help="Stop after this time without a message, such as 5s.", show_default=False
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Print this for each message: text with {stream}, {partition}, {offset}, {time}, {timestamp_ns}, "
        "{subject}, {headers}, {key} or {value}.",
        show_default=False,
    ),
]
Headers = Annotated[
    bool | None,
    typer.Option("--headers/--no-headers", help="Print headers in text; by default on a terminal.", show_default=False),
]

DeadLetter = Annotated[
    bool, typer.Option("--dead-letter", help="The messages are dead letters: print their origin and cause.")
]


@app.command(epilog=_EXAMPLES)
def consume(
    ctx: typer.Context,
    streams: Annotated[list[str], typer.Argument(metavar="STREAM", help="Names of streams.", show_default=False)],
    start: Annotated[
        str,
        typer.Option(
            help="earliest, latest (the last message), new, an offset, an ISO time, or a time span before now such as "
            "-5m. In a group, where to start without a committed offset: earliest, latest or new. [default: earliest]",
            show_default=False,
        ),
    ] = "",
    last: Last = None,
    stop: Annotated[
        str | None, typer.Option(help="latest (the last message committed now), or an offset or time to stop before.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many messages.")] = None,
    idle: Idle = None,
    partition: Annotated[list[int] | None, typer.Option(help="Only this partition. Repeatable.")] = None,
    subject: Subjects = None,
    group: GroupName = None,
    commit_interval: CommitInterval = None,
    instance_id: InstanceId = None,
    on_lost: OnLost = "error",
    raw: Annotated[bool, typer.Option("--raw", help="Print values only, one per line.")] = False,
    template: Format = None,
    headers: Headers = None,
    dead_letter: DeadLetter = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the messages of streams until interrupted.

    --stop, --count and --idle end it earlier. With --group, several processes share the partitions, and each continues
    at the group's committed offsets. Offsets of printed messages are committed every few seconds and at the end, also
    after Ctrl-C. On a terminal, long keys and values are cut; in a pipe or file they are whole. Times are in UTC.
    """

    async def work() -> None:
        style = Style(several=len(streams) > 1, dead_letters=dead_letter)
        show = _printer(style, raw=raw, as_json=as_json, template=template, headers=headers)
        idle_s = None if idle is None else _span("--idle", idle)
        if on_lost not in _ON_LOST:
            raise UsageError(f"--on-lost: {on_lost!r} is not {', '.join(_ON_LOST)}")
        options = ConsumeOptions(on_lost=on_lost)  # type: ignore[arg-type]  # it is one of them
        wanted: dict[str, Any] = {"subjects": subject or None, "options": options}
        if last is not None and (start or group is not None or len(streams) > 1):
            raise UsageError("--last chooses the start in one stream: leave out --start, --group and other streams")
        if group is None:
            if commit_interval is not None or instance_id is not None:
                raise UsageError("--commit-interval and --instance-id are for members of a --group")
            wanted |= {
                "start": parse_offset_or_time(start or "earliest", _STARTS, "--start"),
                "stop": None if stop is None else parse_offset_or_time(stop, ("latest",), "--stop"),
                "partitions": partition or None,
            }
        else:
            if stop is not None or partition:
                raise UsageError(
                    "--stop and --partition do not go with --group, which shares the partitions out and goes on for "
                    "ever; --count ends it"
                )
            member = _group_options(group, start or "earliest", commit_interval, instance_id)
            wanted |= {"group": check_group_name(group), "group_options": member}
        with _ended_by_sigterm(is_wanted=group is not None):
            async with open_lift(ctx, _name(group)) as lift:
                if last is not None:
                    wanted["start"] = await _last(lift, streams[0], last)
                async with lift.consume(streams, **wanted) as messages:
                    await _print(messages, show, count, idle_s)

    run(work(), as_json=as_json)


def _span(option: str, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
    if seconds <= 0:
        raise UsageError(f"{option}: {text!r} is not a time span above 0")
    return seconds


async def _last(lift: Lift, stream: str, count: int) -> dict[int, int]:
    """Where the last `count` offsets of each partition begin."""
    details = await lift.stream_info(stream)
    starts = {}
    for part in details.partitions:
        starts[part.partition] = max(part.log_start or 0, end_of(stream, part) - count)
    return starts


async def _print(
    messages: Consumer | GroupConsumer[Message], show: Printer, count: int | None, idle_s: float | None
) -> None:
    from liftpy_client.group.consumer import GroupConsumer

    left = sys.maxsize if count is None else count
    if isinstance(messages, GroupConsumer):
        arrivals, limit_s = _of_member(messages, idle_s), None
    else:
        arrivals, limit_s = _arrivals(messages), idle_s
    try:
        async with asyncio.timeout(limit_s) as limit, aclosing(arrivals):
            loop = asyncio.get_running_loop()
            async for arrived in arrivals:
                lines = [show(message) for message in arrived[:left]]
                sys.stdout.buffer.write(b"".join(lines))
                sys.stdout.buffer.flush()
                left -= len(lines)
                if left == 0:
                    await _commit(messages, arrived[-1])
                    return
                if limit_s is not None:
                    limit.reschedule(loop.time() + limit_s)
    except TimeoutError:
        if not limit.expired():
            raise


async def _commit(messages: Consumer | GroupConsumer[Message], last: Message) -> None:
    """A member commits what it has printed last: nothing is asked for after it."""
    from liftpy_client.group.consumer import GroupConsumer

    if isinstance(messages, GroupConsumer):
        await messages.commit({(last.stream, last.partition): last.offset + 1})


async def _of_member(messages: GroupConsumer[Message], idle_s: float | None) -> AsyncGenerator[list[Message], None]:
    """What arrives, one by one, as each counts when the next is asked for. A rebalance is no idle time."""
    while True:
        generation = messages.generation
        message = await messages.next(idle_s)
        if message is not None:
            yield [message]
            await asyncio.sleep(0)  # however much is there already: interrupts and heartbeats have a turn
        elif 0 < generation == messages.generation:
            return


async def _arrivals(messages: Consumer) -> AsyncGenerator[list[Message], None]:
    """What arrives, some messages at once."""
    async with aclosing(messages.parts()) as fetched:
        async for parts in fetched:
            for part in parts:
                found = iter(part)
                while some := list(islice(found, _LINES_AT_ONCE)):
                    yield some
                    await asyncio.sleep(0)


def _name(group: str | None) -> str:
    """How others see this process; of a member they want to know where to find it."""
    return "liftpy cli" if group is None else f"liftpy cli, pid {os.getpid()} on {platform.node()[:36]}"


def _group_options(group: str, start: str, commit_interval: str | None, instance_id: str | None) -> GroupOptions:
    if start not in _STARTS:
        raise UsageError(
            f"--start: {start!r} is not earliest, latest or new: a group goes on from what it has committed; to move "
            "it elsewhere there is liftpy group reset"
        )
    settings: dict[str, Any] = {"start": start, "instance_id": instance_id}
    if commit_interval is not None:
        interval_s = settings["commit_interval_s"] = parse_duration(commit_interval)
        least_s, most_s = _COMMIT_INTERVALS_S
        if not least_s <= interval_s <= most_s:
            raise UsageError(f"--commit-interval: {commit_interval!r} is not between 10ms and 1d")
    if stderr.is_terminal:
        settings |= {
            "on_assigned": _teller(group, "reads"),
            "on_revoked": _teller(group, "lets go of"),
            "on_lost_partitions": _teller(group, "was away for too long, and has lost"),
        }
    return GroupOptions(**settings)


def _teller(group: str, verb: str) -> Callable[[list[tuple[str, int]]], None]:
    """Tells of partitions that come and go; otherwise nobody knows why nothing is printed."""

    def tell(partitions: list[tuple[str, int]]) -> None:
        numbers: dict[str, list[int]] = {}
        for stream, number in partitions:
            numbers.setdefault(stream, []).append(number)
        places = "; ".join(f"{stream} {show_numbers(found)}" for stream, found in sorted(numbers.items()))
        if places:
            stderr.print(f"[dim]group {show_text(group)}: this member {verb} {places}[/]")

    return tell


@contextmanager
def _ended_by_sigterm(*, is_wanted: bool) -> Iterator[None]:
    """Have SIGTERM end the task as Ctrl-C does, so that a member commits and leaves."""
    task = asyncio.current_task()
    if not is_wanted or task is None:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _printer(style: Style, *, raw: bool, as_json: bool, template: str | None, headers: bool | None) -> Printer:
    if raw + as_json + (template is not None) > 1:
        raise UsageError("--raw, --json and --format exclude each other")
    if style.dead_letters and (raw or template is not None):
        raise UsageError("--dead-letter is for text and --json: leave out --raw and --format")
    if as_json:
        return dead_letter_json_printer if style.dead_letters else json_printer
    if raw:
        return raw_printer
    is_terminal = stdout.is_terminal
    if template is not None:
        return template_printer(template, safe=is_terminal)
    colors = is_terminal and not stdout.no_color
    shown_headers = is_terminal if headers is None else headers
    return text_printer(style._replace(colors=colors, shortened=is_terminal, headers=shown_headers))
