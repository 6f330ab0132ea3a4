"""`liftpy table`: the last value of every key of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from liftpy.cli.run import JsonFlag, open_lift, print_json, run, stdout
from liftpy.cli.text import one_line, text_of
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["app", "table"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog="Example: liftpy table prices --key EURUSD")
def table(
    ctx: typer.Context,
    stream: Annotated[str, typer.Argument(help="Name of the stream.", show_default=False)],
    key: Annotated[
        str | None, typer.Option("--key", help="Print only this key. Fails if the stream does not have it.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the last value of every key, one line each."""

    async def work() -> None:
        async with open_lift(ctx) as lift, lift.table(stream) as rows:
            found: Iterable[tuple[bytes, bytes]] = rows.items()
            if key is not None:
                value = rows.get(key.encode(errors="surrogateescape"))
                if value is None:
                    raise LiftError(f"there is no key {key!r:.200} in stream {stream}")
                found = [(key.encode(errors="surrogateescape"), value)]
            for each in found:
                _show(*each, as_json=as_json)

    run(work(), as_json=as_json)


def _show(key: bytes, value: bytes, *, as_json: bool) -> None:
    if as_json:
        named = (("key", text_of(key)), ("value", text_of(value)))
        print_json({name + suffix: text for name, (suffix, text) in named})
    else:
        stdout.print(f"[cyan]{one_line(key)}[/] {one_line(value)}")
