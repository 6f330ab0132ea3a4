"""`liftpy replay-dlq`: publishes dead letters again on the subjects of their messages.

How far the dead letters of a stream were replayed is stored as the committed offsets of a group, `replay-dlq`. With a
filter it is a group of its own, so that what the filter leaves out is not taken for replayed.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from liftpy.cli.run import JsonFlag, open_lift, print_json, run, stdout
from liftpy.cli.text import one_line, text_of
from liftpy_client.errors import UsageError
from liftpy_client.processing.dead_letters import PREFIX, original_headers
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from liftpy_client.client import Lift
    from liftpy_client.message import Message

__all__ = ["app", "replay_dlq"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_GROUP: Final = "replay-dlq"
_STORE_EVERY: Final = 1_000


@app.command(epilog="Example: liftpy replay-dlq dead-orders --dry-run")
def replay_dlq(
    ctx: typer.Context,
    stream: Annotated[str, typer.Argument(help="Stream of the dead letters.", show_default=False)],
    group: Annotated[str | None, typer.Option(help="Replay only the dead letters of this group.")] = None,
    subject: Annotated[
        str | None, typer.Option(help="Publish on this subject; by default on that of each message.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Replay all dead letters, not only those since the last replay.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be published.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Publish dead letters again on the subjects of their messages."""

    async def work() -> None:
        count = 0
        async with open_lift(ctx) as lift:
            replaying = _replay_dead_letters(lift, stream, group=group, subject=subject, again=again, dry_run=dry_run)
            async with aclosing(replaying) as replayed:
                async for each in replayed:
                    count += 1
                    _show(each, as_json=as_json)
        if not as_json:
            what = "would be published" if dry_run else "published"
            stdout.print(f"{count} dead letters {what}")

    run(work(), as_json=as_json)


def _show(replayed: _Replayed, *, as_json: bool) -> None:
    letter, headers = replayed.letter, replayed.letter.headers
    cause = str(headers.get(f"{PREFIX}Cause", ""))
    if not as_json:
        to = "" if replayed.offset is None else f" as {replayed.partition}:{replayed.offset}"
        stdout.print(f"{letter.partition}:{letter.offset} to {replayed.subject}{to}  {one_line(cause.encode())}")
        return
    row: dict[str, Any] = {
        "dead_letter": {"stream": letter.stream, "partition": letter.partition, "offset": letter.offset},
        "subject": replayed.subject,
        "partition": replayed.partition,
        "offset": replayed.offset,
        "cause": cause,
        "group": headers.get(f"{PREFIX}Group"),
    }
    if letter.key is not None:
        suffix, text = text_of(letter.key)
        row["key" + suffix] = text
    print_json(row)


class _Replayed(NamedTuple):
    """A dead letter, and where it is published.

    Attributes:
        letter: The dead letter.
        subject: Subject on which it is published.
        offset: Its new offset; None in a dry run.
        partition: Its new partition; None in a dry run.
    """

    letter: Message
    subject: str
    offset: int | None
    partition: int | None


async def _replay_dead_letters(
    lift: Lift, stream: str, *, group: str | None = None, subject: str | None = None, again: bool, dry_run: bool
) -> AsyncGenerator[_Replayed, None]:
    """Publish the dead letters that the stream has now, in their order, and yield each when it is acknowledged.

    A letter that is replayed twice within the dedupe window is stored once.

    Args:
        lift: The connection.
        stream: Stream of the dead letters.
        group: Replay only the dead letters of this group.
        subject: Publish on this subject; by default on that of each message.
        again: Replay all, rather than only those since the last replay.
        dry_run: Publish and store nothing.

    Raises:
        UsageError: A message of the stream is no dead letter.
        LiftError: A message could not be published. The next replay begins with it.
    """
    name = _GROUP if group is None else f"{_GROUP} {group}"
    done = {} if again else {number: row.offset for number, row in (await lift.committed(name, stream)).items()}
    start = {
        number: max(partition.log_start or 0, done.get(number, 0))
        for number, partition in enumerate((await lift.stream_info(stream)).partitions)
    }
    reached: dict[int, int] = {}
    count = 0
    try:
        async with lift.consume(stream, start=start, stop="latest") as letters:
            async for letter in letters:
                if group is None or letter.headers.get(f"{PREFIX}Group") == group:
                    yield await _replay(lift, letter, subject, dry_run=dry_run)
                reached[letter.partition] = letter.offset + 1
                count += 1
                if not dry_run and count % _STORE_EVERY == 0:
                    await lift.reset_group(name, {stream: reached})
    except BaseException as error:
        if reached and not dry_run:
            try:
                await lift.reset_group(name, {stream: reached})
            except LiftError as failure:
                error.add_note(f"and how far was replayed is not stored in group {name!r}: {failure}")
        raise
    if reached and not dry_run:
        await lift.reset_group(name, {stream: reached})


async def _replay(lift: Lift, letter: Message, subject: str | None, *, dry_run: bool) -> _Replayed:
    to = letter.headers.get(f"{PREFIX}Subject") if subject is None else subject
    if to is None:
        raise UsageError(
            f"stream {letter.stream} partition {letter.partition} offset {letter.offset}: this message is no dead "
            f"letter, because it has no header {PREFIX}Subject; name a subject to publish it all the same"
        )
    if dry_run:
        return _Replayed(letter, to, None, None)
    ack = await lift.publish(
        to,
        letter.value,
        key=letter.key,
        headers=original_headers(letter),
        message_id=f"replay/{letter.stream}/{letter.partition}/{letter.offset}/{letter.timestamp_ns}",
    )
    return _Replayed(letter, to, ack.offset, ack.partition)
