"""Which bucket `liftpy spark` works on: the one that the command line names, or else that of the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy.cli.run import open_lift, run
from liftpy.cli.tier.bucket import Where
from liftpy_client.errors import NodeUnavailableError, UnreachableError, UsageError

if TYPE_CHECKING:
    import typer

__all__ = ["which_bucket"]

_WHICH: Final = "which bucket? Say --bucket s3://bucket/prefix, or set LIFTPY_TIER_URL"


def which_bucket(ctx: typer.Context, given: Where, *, alone: bool = False, as_json: bool) -> Where:
    """What the command line says; where it names no bucket, what the nodes say of theirs.

    Args:
        ctx: of the command.
        given: what the command line says.
        alone: no node writes to the bucket, so nodes that could name theirs are not asked.
        as_json: how errors are told.
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
