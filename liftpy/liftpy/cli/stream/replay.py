"""`liftpy replay-dlq`: dead letters go back to where their messages came from."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any

import typer

from liftpy.cli.run import JsonFlag, open_lift, print_json, run, stdout
from liftpy.cli.text import one_line, text_of
from liftpy_client.processing.dead_letters import PREFIX
from liftpy_client.processing.replay import Replayed, replay_dead_letters

__all__ = ["app", "replay_dlq"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


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
            replaying = replay_dead_letters(lift, stream, group=group, subject=subject, again=again, dry_run=dry_run)
            async with aclosing(replaying) as replayed:
                async for each in replayed:
                    count += 1
                    _show(each, as_json=as_json)
        if not as_json:
            what = "would be published" if dry_run else "published"
            stdout.print(f"{count} dead letters {what}")

    run(work(), as_json=as_json)


def _show(replayed: Replayed, *, as_json: bool) -> None:
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
