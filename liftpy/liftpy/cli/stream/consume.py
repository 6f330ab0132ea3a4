"""`liftpy consume`: print messages, alone or as a member of a consumer group."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from liftpy.cli.run import JsonFlag, open_lift, print_json, run, stderr, stdout
from liftpy.cli.text import one_line, show_numbers, show_text, text_of
from liftpy.cli.units import parse_duration, parse_offset_or_time
from liftpy_client.consumer.options import ConsumeOptions
from liftpy_client.errors import UsageError
from liftpy_client.group.options import GroupOptions, check_group_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterator

    from liftpy_client.message import Message

__all__ = ["app", "consume"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_PAUSE_EVERY: Final = 50
_COMMIT_INTERVALS_S: Final = (0.01, 86_400.0)
_ON_LOST: Final = ("error", "earliest", "latest")
_STARTS: Final = ("earliest", "latest", "new")
_EXAMPLES: Final = """Examples:

liftpy consume orders --start 1h --subject 'orders.eu.>'

liftpy consume orders refunds --group billing"""

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
    str, typer.Option("--on-lost", help="If the next offset was deleted: error, or continue at earliest or latest.")
]


@app.command(epilog=_EXAMPLES)
def consume(
    ctx: typer.Context,
    streams: Annotated[list[str], typer.Argument(metavar="STREAM", help="Names of streams.", show_default=False)],
    start: Annotated[
        str,
        typer.Option(
            help="earliest, latest, new, an offset, an ISO time, or a time span before now such as 1h. In a group, "
            "where to start without a committed offset: earliest, latest or new."
        ),
    ] = "earliest",
    stop: Annotated[
        str | None, typer.Option(help="latest (the last message committed now), or an offset or time to stop before.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many messages.")] = None,
    partition: Annotated[list[int] | None, typer.Option(help="Only this partition. Repeatable.")] = None,
    subject: Subjects = None,
    group: GroupName = None,
    commit_interval: CommitInterval = None,
    instance_id: InstanceId = None,
    on_lost: OnLost = "error",
    raw: Annotated[bool, typer.Option("--raw", help="Print values only, one per line.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the messages of streams until interrupted.

    --stop and --count end it earlier. With --group, several processes share the partitions, and each continues at the
    group's committed offsets. Offsets of printed messages are committed every few seconds and at the end, also after
    Ctrl-C.
    """
    show = _printer(raw=raw, as_json=as_json, several=len(streams) > 1)

    async def work() -> None:
        if on_lost not in _ON_LOST:
            raise UsageError(f"--on-lost: {on_lost!r} is not {', '.join(_ON_LOST)}")
        options = ConsumeOptions(on_lost=on_lost)  # type: ignore[arg-type]  # it is one of them
        wanted: dict[str, Any] = {"subjects": subject or None, "options": options}
        if group is None:
            if commit_interval is not None or instance_id is not None:
                raise UsageError("--commit-interval and --instance-id are for members of a --group")
            wanted |= {
                "start": parse_offset_or_time(start, _STARTS, "--start"),
                "stop": None if stop is None else parse_offset_or_time(stop, ("latest",), "--stop"),
                "partitions": partition or None,
            }
        else:
            if stop is not None or partition:
                raise UsageError(
                    "--stop and --partition do not go with --group, which shares the partitions out and goes on for "
                    "ever; --count ends it"
                )
            member = _group_options(group, start, commit_interval, instance_id)
            wanted |= {"group": check_group_name(group), "group_options": member}
        with _ended_by_sigterm(is_wanted=group is not None):
            async with open_lift(ctx, _name(group)) as lift, lift.consume(streams, **wanted) as messages:
                await _print(messages, show, count)

    run(work(), as_json=as_json)


async def _print(messages: AsyncIterable[Message], show: Callable[[Message], None], count: int | None) -> None:
    shown = 0
    async for message in messages:
        if shown % _PAUSE_EVERY == 0:
            await asyncio.sleep(0)  # however much is there already: interrupts and heartbeats have a turn
        show(message)
        shown += 1
        if shown == count:
            break


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


def _printer(*, raw: bool, as_json: bool, several: bool) -> Callable[[Message], None]:
    if as_json:
        return _show_json
    return _show_raw if raw else lambda message: _show(message, several=several)


def _show_json(message: Message) -> None:
    shown: dict[str, Any] = {
        "stream": message.stream,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp.isoformat(),
        "timestamp_ns": message.timestamp_ns,
        "subject": message.subject,
        "headers": message.headers,
    }
    for name, data in (("key", message.key), ("value", message.value)):
        suffix, text = text_of(data)
        shown[name + suffix] = text
    print_json(shown)


def _show_raw(message: Message) -> None:
    sys.stdout.buffer.write((message.value or b"") + b"\n")
    sys.stdout.buffer.flush()


def _show(message: Message, *, several: bool) -> None:
    place = f"{message.offset}" if message.partition == 0 else f"{message.partition}:{message.offset}"
    if several:
        place = f"{message.stream} {place}"
    key = "" if message.key is None else f" [cyan]{one_line(message.key)}[/]"
    value = "[dim](tombstone)[/]" if message.value is None else one_line(message.value)
    when = message.timestamp.strftime("%H:%M:%S.%f")
    stdout.print(f"[dim]{place} {when}[/] [green]{show_text(message.subject)}[/]{key} {value}")
