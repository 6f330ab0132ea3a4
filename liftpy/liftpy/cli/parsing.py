"""Parsing of command lines: errors as JSON where the command line asks for it, and plain values without validators.

typer validates values with pydantic, whose import takes longer than the rest of a command. Text needs none of it.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from liftpy.cli.run import fail
from liftpy_client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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
            raise  # typer shows the usage, too
        fail(UsageError(error.format_message()), as_json=True)


class _Values:
    """The values of one parameter: those that have their type already stay as they are; typer validates the others."""

    def __init__(self, parameter: Any, validate: Callable[[Any], Any]) -> None:
        self._parameter = parameter
        self._validate = validate

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value as the command gets it."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        kind = param.type_descriptor.annotation
        if type(value) is kind and (kind is not str or value.isascii()):
            return value
        return self._validate(self._parameter).coerce(value, param=param, ctx=ctx)


def _keep_plain_values(kind: Any) -> None:
    """Let parameters of a class take plain values as they are, where this typer validates with pydantic."""
    validate = getattr(kind, "get_runtime_param", None)
    if validate is not None:
        kind.get_runtime_param = lambda parameter: _Values(parameter, validate)


_keep_plain_values(TyperArgument)
_keep_plain_values(TyperOption)
