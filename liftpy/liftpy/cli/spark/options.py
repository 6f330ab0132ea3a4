"""What commands of `liftpy spark` have in common: options, and how they end."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape

from liftpy.cli.option_values import bytes_of, seconds_of
from liftpy.cli.run import open_lift, print_json, run, stdout
from liftpy.cli.tier.bucket import Where
from liftpy_client.errors import NodeUnavailableError, UnreachableError, UsageError
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from liftpy.cli.tier.bucket import OpenBucket

__all__ = [
    "Conf",
    "DryRun",
    "Master",
    "SomeStream",
    "Stream",
    "TaskBytes",
    "bytes_of",
    "conf_of",
    "needs_spark",
    "seconds_of",
    "tell",
    "which_bucket",
]

Stream = Annotated[str, typer.Argument(help="Name of the stream, or its uuid.", show_default=False)]
SomeStream = Annotated[
    str | None, typer.Argument(help="Name of the stream, or its uuid; by default, all.", show_default=False)
]
Master = Annotated[
    str,
    typer.Option(help="Where tasks run: local[4], spark://host:port, yarn, ...", envvar="LIFTPY_SPARK_MASTER"),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="Spark setting. Repeatable.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]
TaskBytes = Annotated[str, typer.Option("--task-bytes", help="Approximate size of a task's input.")]
_WHICH: Final = "which bucket? Say --bucket s3://bucket/prefix, or set LIFTPY_TIER_URL"


@contextmanager
def needs_spark() -> Iterator[None]:
    """Say what is missing where Spark is not installed.

    Raises:
        LiftError: it is not.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("liftpy"):
            raise  # it is not a package that is missing
        raise LiftError(f"this needs more packages: pip install 'liftpy[spark]' ({error.name})") from None


def conf_of(given: Sequence[str] | None) -> dict[str, str]:
    """Settings of Spark.

    Raises:
        UsageError: one has no value.
    """
    found = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise UsageError(f"--conf {each!r:.100}: say NAME=VALUE")
        found[name] = value
    return found


def tell(
    bucket: OpenBucket,
    plain: dict[str, Any],
    text: str,
    *,
    dry_run: bool,
    as_json: bool,
    say: Callable[[dict[str, Any]], None] = print_json,
) -> None:
    """Say what was done, or would be.

    Args:
        bucket: Bucket of the stream.
        plain: What it says as JSON, besides the bucket and whether it was done.
        text: The same for people.
        dry_run: Nothing was done.
        as_json: Whether to print JSON, for programs.
        say: Called with what they are told.
    """
    if as_json:
        say({"bucket": bucket.shown, "dry_run": dry_run} | plain)
    else:
        stdout.print(escape(text) + ("; nothing was done (--dry-run)" if dry_run else ""))


def which_bucket(ctx: typer.Context, given: Where, *, alone: bool = False, as_json: bool) -> Where:
    """What the command line says; where it names no bucket, what the nodes say of theirs.

    Args:
        ctx: Context of the command.
        given: What the command line says.
        alone: No node writes to the bucket, so nodes that could name theirs are not asked.
        as_json: How errors are told.
    """
    return given if given.url or alone else run(_ask_nodes(ctx, given), as_json=as_json)


async def _ask_nodes(ctx: typer.Context, given: Where) -> Where:
    try:
        async with open_lift(ctx) as lift:
            told = await lift.tier_status(limit=0)
    except (UnreachableError, NodeUnavailableError) as error:
        raise UsageError(f"{_WHICH}; the nodes could not be asked for theirs: {error}") from None
    if told.url is None:
        raise UsageError(f"{_WHICH}; the nodes have none")
    return Where(told.url, given.endpoint or told.endpoint, given.region or told.region)
