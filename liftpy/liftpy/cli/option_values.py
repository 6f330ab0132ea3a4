"""Sizes and time spans that options say: a mistake in one ends the command, with its name, before anything begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from liftpy.cli.run import fail
from liftpy.cli.units import parse_bytes, parse_duration
from liftpy_client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["bytes_of", "seconds_of"]

T = TypeVar("T")


def bytes_of(option: str, text: str, *, as_json: bool) -> int:
    """The size that an option says; a mistake ends the command.

    Args:
        option: Option, as it is written.
        text: What it says.
        as_json: How errors are told.
    """
    return _parsed(parse_bytes, option, text, as_json=as_json)


def seconds_of(option: str, text: str, *, as_json: bool) -> float:
    """The time span that an option says, in seconds; otherwise as `bytes_of`."""
    return _parsed(parse_duration, option, text, as_json=as_json)


def _parsed(parse: Callable[[str], T], option: str, text: str, *, as_json: bool) -> T:
    try:
        return parse(text)
    except UsageError as error:
        fail(UsageError(f"{option}: {error}"), as_json=as_json)
