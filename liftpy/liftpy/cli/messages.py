"""`liftpy publish` and `liftpy consume`."""

from __future__ import annotations

import base64
import sys
from itertools import islice, repeat
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from liftpy.cli.run import JsonFlag, open_lift, print_json, run, stderr, stdout
from liftpy.cli.stdin import stdin_lines
from liftpy.cli.units import parse_offset_or_time
from liftpy_client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from liftpy_client.client import Lift
    from liftpy_client.message import Message

__all__ = ["consume", "publish"]

_PROGRESS_FROM = 1_000
_SHOWN_MAX = 200


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=stderr, transient=True)


def _headers(lines: list[str]) -> dict[str, str] | None:
    headers = {}
    for line in lines:
        name, separator, value = line.partition(":")
        if not separator or not name.strip():
            raise UsageError(f"header {line!r} is not of the form Name:Value")
        headers[name.strip()] = value.strip()
    return headers or None


def publish(
    ctx: typer.Context,
    subject: Annotated[str, typer.Argument(help="A literal subject that a stream stores.", show_default=False)],
    value: Annotated[
        str | None, typer.Argument(help="The payload; without it every line of the standard input is one.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of the record.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="A header, Name:Value. Repeatable.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Publish it so many times.")] = 1,
    message_id: Annotated[str | None, typer.Option(help="Id for deduplication.")] = None,
    expected_offset: Annotated[int | None, typer.Option(min=0, help="Refuse it unless it gets this offset.")] = None,
    ack_policy: Annotated[str | None, typer.Option(help="When it counts as stored: leader or all.")] = None,
    tombstone: Annotated[bool, typer.Option("--tombstone", help="Publish a null value.")] = False,
    stream: Annotated[str | None, typer.Option(help="The stream whose ack counts.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Publish messages, and wait until they are stored."""

    async def work() -> None:
        headers = _headers(header or [])
        key_bytes = None if key is None else key.encode()
        if tombstone and value is not None:
            raise UsageError("--tombstone publishes a null value; leave out the payload")
        if count > 1 and value is None and not tombstone:
            raise UsageError("--count repeats one message: name its payload")
        single = count == 1 and (value is not None or tombstone)
        if not single and (message_id is not None or expected_offset is not None):
            raise UsageError("--message-id and --expected-offset are for a single message")
        async with open_lift(ctx) as lift:
            if single:
                ack = await lift.publish(
                    subject,
                    None if tombstone else (value or "").encode(),
                    key=key_bytes,
                    headers=headers,
                    message_id=message_id,
                    expected_offset=expected_offset,
                    ack_policy=ack_policy,
                    stream=stream,
                )
                shown = {name: getattr(ack, name) for name in ("stream", "partition", "offset", "duplicate")}
            else:
                fixed = None if value is None else value.encode()
                payloads = repeat(fixed, count) if tombstone or value is not None else None
                shown = await _publish_many(
                    lift, subject, payloads, count, key=key_bytes, headers=headers, ack_policy=ack_policy, stream=stream
                )
        if as_json:
            print_json(shown)
        else:
            stdout.print(", ".join(f"{name} {item}" for name, item in shown.items() if item is not False))

    run(work(), as_json=as_json)


async def _each(payloads: Iterable[bytes | None]) -> AsyncIterator[bytes | None]:
    for payload in payloads:
        yield payload


async def _publish_many(
    lift: Lift,
    subject: str,
    payloads: Iterable[bytes | None] | None,
    count: int,
    *,
    key: bytes | None,
    headers: dict[str, str] | None,
    ack_policy: str | None,
    stream: str | None,
) -> dict[str, Any]:
    """Publish the payloads given, or the lines of the standard input."""
    published = 0
    last = None
    with _progress() as progress:
        task = progress.add_task("publishing", total=None if payloads is None else count)
        async with lift.publisher(stream=stream, ack_policy=ack_policy) as publisher:
            async for payload in stdin_lines() if payloads is None else _each(payloads):
                last = await publisher.publish(subject, payload, key=key, headers=headers)
                published += 1
                if published % _PROGRESS_FROM == 0:
                    progress.update(task, completed=published)
    if last is None:
        return {"published": 0}
    ack = await last
    return {"published": published, "stream": ack.stream, "partition": ack.partition, "last_offset": ack.offset}


def consume(
    ctx: typer.Context,
    stream: Annotated[str, typer.Argument(help="Name of the stream.", show_default=False)],
    start: Annotated[
        str, typer.Option(help="earliest, latest, new, an offset, an ISO time, or a span back from now such as 1h.")
    ] = "earliest",
    stop: Annotated[
        str | None, typer.Option(help="latest (what is there now), or an offset or time to stop before.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many messages.")] = None,
    partition: Annotated[list[int] | None, typer.Option(help="Only this partition. Repeatable.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print values only, a line each.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the messages of a stream; goes on until interrupted unless told where to stop."""

    async def work() -> None:
        first = parse_offset_or_time(start, ("earliest", "latest", "new"), "--start")
        last = None if stop is None else parse_offset_or_time(stop, ("latest",), "--stop")
        left = count
        async with open_lift(ctx) as lift:
            consumer = lift.consume(stream, start=first, stop=last, partitions=partition)  # type: ignore[arg-type]
            async with consumer:
                async for message in consumer:
                    _show(message, raw=raw, as_json=as_json)
                    if left is not None:
                        left -= 1
                        if not left:
                            break

    run(work(), as_json=as_json)


def _text(data: bytes | None) -> tuple[str, str | None]:
    """("value", text) where it is UTF-8, ("value_base64", text) where it is not."""
    if data is None:
        return "", None
    try:
        return "", data.decode()
    except UnicodeDecodeError:
        return "_base64", base64.b64encode(data).decode()


def _show(message: Message, *, raw: bool, as_json: bool) -> None:
    if as_json:
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
            suffix, text = _text(data)
            shown[name + suffix] = text
        print_json(shown)
    elif raw:
        sys.stdout.buffer.write((message.value or b"") + b"\n")
        sys.stdout.buffer.flush()
    else:
        place = f"{message.offset}" if message.partition == 0 else f"{message.partition}:{message.offset}"
        key = "" if message.key is None else f" [cyan]{_one_line(message.key)}[/]"
        value = "[dim](tombstone)[/]" if message.value is None else _one_line(message.value)
        when = message.timestamp.strftime("%H:%M:%S.%f")
        stdout.print(f"[dim]{place} {when}[/] [green]{_one_line(message.subject.encode())}[/]{key} {value}")


def _one_line(data: bytes) -> str:
    """Bytes of a stranger for a terminal: shortened, and with nothing in them that it would act on."""
    text = _text(data)[1] or ""
    letters = (letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    return escape("".join(islice(letters, _SHOWN_MAX))) + ("…" if len(text) > _SHOWN_MAX else "")
