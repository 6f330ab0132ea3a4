"""`liftpy publish`: messages from the command line or the standard input."""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from liftpy.cli.run import JsonFlag, open_lift, print_json, run, stderr, stdout
from liftpy_client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable

    from liftpy_client.client import Lift

__all__ = ["app", "publish", "stdin_lines"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_PROGRESS_FROM = 1_000
_CHUNK_BYTES: Final = 256 * 1024


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


@app.command()
def publish(
    ctx: typer.Context,
    subject: Annotated[str, typer.Argument(help="A literal subject that a stream stores.", show_default=False)],
    value: Annotated[
        str | None, typer.Argument(help="Payload; by default, each line of standard input is a message.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of the record.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="Header as Name:Value. Repeatable.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Publish the payload this many times.")] = 1,
    message_id: Annotated[str | None, typer.Option(help="Id for deduplication.")] = None,
    expected_offset: Annotated[
        int | None, typer.Option(min=0, help="Refuse the message unless it gets this offset.")
    ] = None,
    ack_policy: Annotated[str | None, typer.Option(help="When the ack is sent: leader, or all (committed).")] = None,
    tombstone: Annotated[bool, typer.Option("--tombstone", help="Publish a null value.")] = False,
    stream: Annotated[str | None, typer.Option(help="Stream whose ack counts, if several store the subject.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Publish messages and wait for their acks."""

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
    """Publish the given payloads, or the lines of standard input."""
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


async def stdin_lines() -> AsyncIterator[bytes]:
    """Every line, without its line end; the last one need not have any."""
    rest = b""
    async for chunk in _chunks(sys.stdin.fileno()):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


async def _chunks(descriptor: int) -> AsyncGenerator[bytes, None]:
    """What there is to read, as it comes: a pipe or terminal is waited for, a file never blocks for long."""
    try:
        while True:
            await _readable(descriptor)
            chunk = os.read(descriptor, _CHUNK_BYTES)
            if not chunk:
                return
            yield chunk
    except PermissionError:  # the selector takes no files
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            yield chunk
            await asyncio.sleep(0)


async def _readable(descriptor: int) -> None:
    """Wait until a read would not block."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
