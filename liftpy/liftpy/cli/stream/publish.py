"""`liftpy publish`: messages from the command line, the standard input or a file."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from liftpy.cli.run import JsonFlag, open_lift, print_json, run, stderr, stdout
from liftpy.cli.stream.sources import Draft, json_messages, read_lines, text_messages
from liftpy_client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from liftpy.cli.stream.sources import Headers
    from liftpy_client.client import Lift
    from liftpy_envelope.ack import Ack

__all__ = ["app", "publish"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_PROGRESS_FROM = 1_000
_IN_FLIGHT_MAX: Final = 1_000
_IN_FLIGHT_BYTES_MAX: Final = 16 * 1024 * 1024
_TOMBSTONE: Final = "Lift-Tombstone"
_EXAMPLES: Final = """Examples:

liftpy publish orders.new 'two pizzas' --key 42

liftpy publish orders.new -K : < lines-of-key-colon-value

liftpy consume orders --json --stop latest | liftpy publish copy.orders --from-json -"""


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=stderr, transient=True)


def _headers(lines: list[str]) -> Headers | None:
    """Headers as they were given; one that is given several times has a list."""
    headers: Headers = {}
    for line in lines:
        name, separator, value = line.partition(":")
        name = name.strip()
        if not separator or not name:
            raise UsageError(f"header {line!r} is not of the form Name:Value")
        before = headers.get(name)
        headers[name] = (
            value.strip() if before is None else [*([before] if isinstance(before, str) else before), value.strip()]
        )
    return headers or None


Separator = Annotated[
    str | None,
    typer.Option("-K", "--key-separator", metavar="TEXT", help="Each line of standard input is key, TEXT, value."),
]
Header = Annotated[
    list[str] | None, typer.Option("--header", "-H", help="Header as Name:Value. Repeatable, also one name.")
]
FromJson = Annotated[
    str | None,
    typer.Option(
        "--from-json",
        metavar="FILE",
        help="Publish JSON lines with subject, key, value and headers, as consume --json prints them; - for standard "
        "input.",
    ),
]
Batch = Annotated[
    bool,
    typer.Option(
        "--batch",
        help="Send many messages at once, in binary envelopes: much faster, but other subscribers of the subject "
        "receive envelopes instead of the messages.",
    ),
]


@app.command(epilog=_EXAMPLES)
def publish(
    ctx: typer.Context,
    subject: Annotated[
        str | None, typer.Argument(help="A literal subject that a stream stores. Needed without --from-json.")
    ] = None,
    value: Annotated[
        str | None, typer.Argument(help="Payload; by default, each line of standard input is a message.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of the record.")] = None,
    separator: Separator = None,
    header: Header = None,
    count: Annotated[int, typer.Option(min=1, help="Publish the payload this many times.")] = 1,
    from_json: FromJson = None,
    message_id: Annotated[str | None, typer.Option(help="Id for deduplication.")] = None,
    expected_offset: Annotated[
        int | None, typer.Option(min=0, help="Refuse the message unless it gets this offset.")
    ] = None,
    ack_policy: Annotated[str | None, typer.Option(help="When the ack is sent: leader, or all (committed).")] = None,
    tombstone: Annotated[bool, typer.Option("--tombstone", help="Publish a null value.")] = False,
    stream: Annotated[str | None, typer.Option(help="Stream whose ack counts, if several store the subject.")] = None,
    batch: Batch = False,
    as_json: JsonFlag = False,
) -> None:
    """Publish messages and wait for their acks.

    Each message is a plain NATS message, as any subscriber of the subject expects it, unless --batch asks for binary
    envelopes. Only what headers cannot hold is wrapped all the same: a key that is not printable ASCII, a tombstone
    without a key, and messages to a stream with acks = envelope.
    """

    async def work() -> None:
        headers = _headers(header or [])
        is_given = tombstone or value is not None
        single = count == 1 and is_given
        is_one = message_id is not None or expected_offset is not None
        is_fixed = is_given or key is not None or from_json is not None
        _check(
            ("a subject is missing", subject is None and from_json is None),
            ("--tombstone publishes a null value; leave out the payload", tombstone and value is not None),
            ("--count repeats one message: name its payload", count > 1 and not is_given),
            ("--message-id and --expected-offset are for a single message", is_one and not single),
            ("-K is for lines of standard input: leave out payload, --key, --from-json", bool(separator) and is_fixed),
            ("-K: the separator is empty", separator == ""),
            (
                "--from-json says payload, key and headers: leave them out here",
                from_json is not None and (is_given or key is not None or headers is not None),
            ),
            ("--batch is for many messages", batch and single),
        )
        given = Draft(
            subject or "", None if value is None else value.encode(), None if key is None else key.encode(), headers
        )
        wanted: dict[str, Any] = {"ack_policy": ack_policy, "stream": stream}
        async with open_lift(ctx) as lift:
            if single:
                wanted |= {"message_id": message_id, "expected_offset": expected_offset}
                ack = await _publish_one(lift, given, **wanted)
                shown = {name: getattr(ack, name) for name in ("stream", "partition", "offset", "duplicate")}
            else:
                send = _publish_batches if batch else _publish_each
                with ExitStack() as files:
                    drafts = _repeat(given, count) if is_given else _drafts(given, separator, from_json, files)
                    shown = await send(lift, drafts, count if is_given else None, **wanted)
        if as_json:
            print_json(shown)
        else:
            stdout.print(", ".join(f"{name} {item}" for name, item in shown.items() if item is not False))

    run(work(), as_json=as_json)


def _drafts(given: Draft, separator: str | None, from_json: str | None, files: ExitStack) -> AsyncIterator[Draft]:
    """What a file or the standard input says; the rest is as given."""
    if from_json is not None:
        return json_messages(read_lines(_open(from_json, files)), given.subject or None)
    between = None if separator is None else separator.encode(errors="surrogateescape")
    return text_messages(read_lines(_stdin()), given.subject, given.key, between, given.headers)


def _check(*mistakes: tuple[str, bool]) -> None:
    for text, is_made in mistakes:
        if is_made:
            raise UsageError(text)


def _stdin() -> int:
    if sys.stdin is None:  # Python has none where descriptor 0 is closed
        raise UsageError("the standard input is closed; name a payload")
    return sys.stdin.fileno()


def _open(path: str, files: ExitStack) -> int:
    if path == "-":
        return _stdin()
    descriptor = os.open(Path(path).expanduser(), os.O_RDONLY)
    files.callback(os.close, descriptor)
    return descriptor


async def _repeat(draft: Draft, count: int) -> AsyncIterator[Draft]:
    for _ in range(count):
        yield draft


async def _publish_one(lift: Lift, draft: Draft, **wanted: Any) -> Ack:
    """Publish a message plainly; a tombstone says so in a header, where it has a key."""
    value, headers = draft.value, draft.headers
    if value is None and draft.key is not None and _is_header_safe(draft.key):
        value, headers = b"", (headers or {}) | {_TOMBSTONE: "true"}
    return await lift.publish(draft.subject, value, key=draft.key, headers=headers, **wanted)


def _is_header_safe(key: bytes) -> bool:
    return key.isascii() and key.decode().isprintable() and key.strip() == key and bool(key)


async def _publish_each(lift: Lift, drafts: AsyncIterator[Draft], total: int | None, **wanted: Any) -> dict[str, Any]:
    """Publish message by message, many in flight. They leave in order; one that is sent again may come later."""
    window = _Window()
    known: set[str] = set()
    with _progress() as progress:
        task = progress.add_task("publishing", total=total)
        try:
            async for draft in drafts:
                work = _publish_one(lift, draft, **wanted)
                await window.add(work, len(draft.value or b""))
                if draft.subject not in known:
                    known.add(draft.subject)
                    await window.drain()  # the way to the subject is known from then on, and nothing overtakes
                if window.acked % _PROGRESS_FROM == 0:
                    progress.update(task, completed=window.acked)
            await window.drain()
        except UsageError as error:
            if not window.has_failed:  # it is the input that is wrong: what came before it is published
                await window.drain()
                error.add_note(f"{window.acked} messages before it were acknowledged")
            raise
        finally:
            await window.cancel()
    return _shown(window.acked, window.last)


class _Window:
    """Messages in flight, up to a number and a size; the first failure is raised by the next call."""

    def __init__(self) -> None:
        self.acked = 0
        self.last: Ack | None = None
        self._bytes = 0
        self._tasks: set[asyncio.Task[Ack]] = set()
        self._failure: BaseException | None = None
        self._moved = asyncio.Event()

    @property
    def has_failed(self) -> bool:
        """Whether a message was not published."""
        return self._failure is not None

    async def add(self, work: Any, size: int) -> None:
        """Start to publish a message; waits while too much is in flight."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        self._bytes += size
        task.add_done_callback(lambda done: self._end(done, size))
        while len(self._tasks) >= _IN_FLIGHT_MAX or self._bytes >= _IN_FLIGHT_BYTES_MAX:
            await self._wait()
        self._check()

    async def drain(self) -> None:
        """Wait until all are acknowledged."""
        while self._tasks:
            await self._wait()
        self._check()

    async def cancel(self) -> None:
        """Publish no more of what is in flight."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait(self) -> None:
        self._check()
        self._moved.clear()
        await self._moved.wait()

    def _check(self) -> None:
        if self._failure is not None:
            if self.acked:
                self._failure.add_note(f"{self.acked} messages were acknowledged before")
            raise self._failure

    def _end(self, task: asyncio.Task[Ack], size: int) -> None:
        self._tasks.discard(task)
        self._bytes -= size
        self._moved.set()
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._failure = self._failure or error
        else:
            self.acked += 1
            self.last = task.result()


async def _publish_batches(
    lift: Lift, drafts: AsyncIterator[Draft], total: int | None, **wanted: Any
) -> dict[str, Any]:
    """Publish in batches: the publisher of the library, with its envelopes."""
    published = 0
    last = None
    with _progress() as progress:
        task = progress.add_task("publishing", total=total)
        async with lift.publisher(**wanted) as publisher:
            async for subject, value, key, headers in drafts:
                last = await publisher.publish(subject, value, key=key, headers=headers)
                published += 1
                if published % _PROGRESS_FROM == 0:
                    progress.update(task, completed=published)
    return _shown(published, None if last is None else await last)


def _shown(published: int, ack: Ack | None) -> dict[str, Any]:
    if ack is None:
        return {"published": published}
    return {"published": published, "stream": ack.stream, "partition": ack.partition, "last_offset": ack.offset}
