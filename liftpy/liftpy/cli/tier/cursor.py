"""`liftpy tier cursor ...`: named positions in the bucket, from which on nothing is taken away."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from liftpy.cli.run import JsonFlag, print_json, stdout
from liftpy.cli.tier.bucket import ANYWHERE, OpenBucket, PartitionOption, Where, at_bucket, with_bucket
from liftpy.cli.tier.tables import pins_table

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Named pins that keep all records from an offset on in the bucket.",
)

Stream = Annotated[str, typer.Argument(help="Name of the stream, or its uuid.", show_default=False)]
Name = Annotated[str, typer.Argument(help="Name of the cursor.", show_default=False)]


@app.command("ls", hidden=True)
@app.command("list")
@at_bucket
def list_pins(
    stream: Annotated[
        str | None, typer.Argument(help="Name of the stream, or its uuid; by default, all.", show_default=False)
    ] = None,
    partition: PartitionOption = None,
    where: Where = ANYWHERE,
    as_json: JsonFlag = False,
) -> None:
    """List cursors and other pins: those of long reads and forks."""

    def work(opened: OpenBucket) -> None:
        from liftpy.cli.tier.upkeep import pins_of

        places = opened.places(stream, partition)
        pins = [(place.label, pin) for place in places for pin in pins_of(opened, place)]
        if as_json:
            print_json([{"partition": label} | _plain(pin) for label, pin in pins])
        elif pins:
            stdout.print(pins_table(pins, stdout.width))
        else:
            stdout.print("nothing is held: retention alone decides what stays")

    with_bucket(where, work, as_json=as_json)


def _plain(pin: Any) -> dict[str, Any]:
    return {name: getattr(pin, name) for name in ("name", "kind", "start", "until", "version", "target", "expires_ns")}


@app.command("set")
@at_bucket
def set_position(
    stream: Stream,
    name: Name,
    offset: Annotated[int, typer.Argument(min=0, help="First offset to keep.", show_default=False)],
    partition: PartitionOption = None,
    where: Where = ANYWHERE,
    as_json: JsonFlag = False,
) -> None:
    """Create or move a cursor. Records before it may be removed, later ones are kept."""

    def work(opened: OpenBucket) -> None:
        from liftpy.cli.tier.upkeep import cursor_place, set_cursor

        place = cursor_place(opened, stream, partition)
        pin = set_cursor(opened, place, name, offset)
        if as_json:
            print_json({"partition": place.label} | _plain(pin))
        else:
            stdout.print(f"cursor {escape(name)} holds {escape(place.label)} from offset {pin.start} on")

    with_bucket(where, work, as_json=as_json)


@app.command("drop")
@at_bucket
def drop(
    stream: Stream,
    name: Name,
    partition: PartitionOption = None,
    where: Where = ANYWHERE,
    as_json: JsonFlag = False,
) -> None:
    """Delete a cursor. Its records may be removed then."""

    def work(opened: OpenBucket) -> None:
        from liftpy.cli.tier.upkeep import cursor_place, drop_cursor

        place = cursor_place(opened, stream, partition)
        drop_cursor(opened, place, name)
        if as_json:
            print_json({"partition": place.label, "dropped": name})
        else:
            stdout.print(f"cursor {escape(name)} of {escape(place.label)} is dropped")

    with_bucket(where, work, as_json=as_json)
