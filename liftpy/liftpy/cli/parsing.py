"""Command lines that can not be parsed, told as all other errors are: as JSON where the command line asks for it."""

from __future__ import annotations

import re
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperGroup

from liftpy.cli.run import fail
from liftpy_client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Commands", "wants_json"]

_REFUSED: Final[Any] = typer.BadParameter.__base__
"""The parser's own UsageError; typer has moved it from one package to another, and has no name for it."""

_META: Final = "liftpy.as_json"
_FLAG: Final = re.compile("--json|-[A-Za-z]*j[A-Za-z]*")


def wants_json(ctx: typer.Context) -> bool:
    """Whether the command line has the flag for JSON; known before its command has been parsed."""
    return bool(ctx.meta.get(_META))


class Commands(TyperGroup):
    """The commands of the root, and all below them."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse what stands before the first command."""
        as_json = _has_flag(args)
        with _told(as_json=as_json):
            ctx = super().make_context(info_name, args, parent, **extra)
        ctx.meta[_META] = as_json
        return ctx

    def invoke(self, ctx: Any) -> Any:
        """Parse the rest, and run it."""
        with _told(as_json=wants_json(ctx)):
            return super().invoke(ctx)


def _has_flag(args: Iterable[str]) -> bool:
    return any(_FLAG.fullmatch(each) for each in takewhile(lambda each: each != "--", args))


@contextmanager
def _told(*, as_json: bool) -> Iterator[None]:
    try:
        yield
    except _REFUSED as error:
        if not as_json:
            raise  # typer draws a box with the usage
        fail(UsageError(error.format_message()), as_json=True)
