"""`liftpy stream get`, `view` and `subjects`: look at what a stream holds."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape

from liftpy.cli.run import JsonFlag, open_lift, print_json, run, stderr, stdout
from liftpy.cli.tables import Column, make_table, show_time, with_rest
from liftpy.cli.units import parse_offset_or_time, show_bytes, show_count
from liftpy_client.errors import UsageError
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from liftpy.cli.stream.finding import SubjectCount
    from liftpy_client.message import Message

__all__ = ["GET_EXAMPLES", "get", "subjects", "view"]

GET_EXAMPLES: Final = """Examples:

liftpy stream get orders 1200

liftpy stream get orders --last-for 'orders.eu.*'"""

Name = Annotated[str, typer.Argument(help="Name of the stream.", show_default=False)]
Start = Annotated[
    str, typer.Option(help="earliest, an offset, an ISO time, or a time span before now such as 5m.", metavar="START")
]


def get(
    ctx: typer.Context,
    name: Name,
    offset: Annotated[int | None, typer.Argument(min=0, help="Offset of the message.", show_default=False)] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Its partition, if the stream has several.")
    ] = None,
    last_for: Annotated[
        str | None, typer.Option("--last-for", metavar="SUBJECT", help="The last message of this subject instead.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print the value only, byte for byte.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print one message: by its offset, or the last one of a subject.

    The subject may have wildcards. Nodes keep no index of subjects: the search reads the stream backwards.
    """

    async def work() -> Message:
        from liftpy.cli.stream.finding import last_message, message_at

        if (offset is None) == (last_for is None):
            raise UsageError("name an offset, or --last-for with a subject")
        if last_for is not None and partition is not None:
            raise UsageError("--partition goes with an offset")
        async with open_lift(ctx) as lift:
            if offset is not None:
                return await message_at(lift, name, offset, partition)
            assert last_for is not None
            found = await last_message(lift, name, last_for)
        if found is None:
            raise LiftError(f"stream {name} has no message on {last_for}")
        return found

    message = run(work(), as_json=as_json)
    from liftpy.cli.stream.printing import Style, json_printer, text_printer

    if raw:
        line = message.value or b""
    elif as_json:
        line = json_printer(message)
    else:
        is_colored = stdout.is_terminal and not stdout.no_color
        line = text_printer(Style(colors=is_colored, headers=True))(message)
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def view(
    ctx: typer.Context,
    name: Name,
    size: Annotated[int, typer.Option("--page", min=1, help="Messages per page.")] = 10,
    start: Start = "earliest",
    subject: Annotated[
        list[str] | None, typer.Option("--subject", help="Only messages on this subject, wildcards included.")
    ] = None,
) -> None:
    """Page through the messages that a stream has now. In a pipe, print all of them."""

    async def work() -> None:
        from liftpy.cli.stream.printing import Style, text_printer
        from liftpy.cli.stream.sources import read_lines

        first: Any = parse_offset_or_time(start, ("earliest",), "--start")
        is_terminal = stdout.is_terminal
        colors = is_terminal and not stdout.no_color
        show = text_printer(Style(colors=colors, shortened=is_terminal, headers=True))
        answers = read_lines(sys.stdin.fileno()) if is_terminal else None
        shown = 0
        async with open_lift(ctx) as lift, lift.consume(name, start=first, stop="latest", subjects=subject) as messages:
            async for message in messages:
                if answers is not None and shown and shown % size == 0:
                    stderr.print("[dim]Enter for the next page, q to leave[/]")
                    if (await anext(answers, b"q")).strip().lower() == b"q":
                        return
                sys.stdout.buffer.write(show(message))
                sys.stdout.buffer.flush()
                shown += 1
        if is_terminal:
            stderr.print(f"[dim]{'no messages' if not shown else 'no more messages'}[/]")

    run(work(), as_json=False)


def subjects(
    ctx: typer.Context,
    name: Name,
    pattern: Annotated[
        str | None, typer.Argument(help="Only subjects that match, wildcards included.", show_default=False)
    ] = None,
    start: Start = "earliest",
    limit: Annotated[int, typer.Option(min=1, help="Number of subjects to show.")] = 1_000,
    names: Annotated[bool, typer.Option("--names", "-n", help="Print names only.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the subjects of a stream, with their counts and the place of their last message.

    Nodes keep no index of subjects: the command reads the stream, from --start to its end.
    """

    async def work() -> dict[str, SubjectCount]:
        from liftpy.cli.stream.finding import count_subjects

        first: Any = parse_offset_or_time(start, ("earliest",), "--start")
        async with open_lift(ctx) as lift:
            return await count_subjects(lift, name, pattern, first)

    found = sorted(run(work(), as_json=as_json).items())
    if as_json:
        print_json([subject if names else {"subject": subject} | count._asdict() for subject, count in found])
    elif names:
        for subject, _ in found:
            stdout.print(subject, markup=False)
    elif not found:
        stdout.print(f"no messages on {pattern}" if pattern else "no messages", markup=False)
    else:
        columns = (
            Column("Subject"),
            Column("Messages", right=True),
            Column("Size", right=True, from_width=70),
            Column("Last", right=True, from_width=50),
            Column("Last message", from_width=90),
        )
        rows = (
            {
                "Subject": escape(subject),
                "Messages": show_count(count.messages),
                "Size": show_bytes(count.bytes),
                "Last": f"{count.partition}:{count.offset}",
                "Last message": show_time(count.timestamp_ns),
            }
            for subject, count in found[:limit]
        )
        stdout.print(with_rest(make_table(f"Subjects of {name}", columns, rows, stdout.width), len(found)))
