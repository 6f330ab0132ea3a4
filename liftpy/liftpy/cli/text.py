"""What strangers wrote, as a terminal may show it."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from rich.markup import escape

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["SHOWN_MAX", "one_line", "printable", "show_numbers", "show_text", "text_of"]

SHOWN_MAX: Final = 200
"""Characters of a key or value that a terminal shows."""


def text_of(data: bytes | None) -> tuple[str, str | None]:
    """("", text) where it is UTF-8, ("_base64", text) where it is not."""
    if data is None:
        return "", None
    try:
        return "", data.decode()
    except UnicodeDecodeError:
        return "_base64", base64.b64encode(data).decode()


def printable(text: str) -> str:
    """Text with nothing in it that a terminal would act on."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def show_text(text: str) -> str:
    """Text as markup: shortened, and with nothing in it that a terminal would act on."""
    return escape(printable(text[:SHOWN_MAX])) + ("…" if len(text) > SHOWN_MAX else "")


def one_line(data: bytes) -> str:
    """Bytes as markup, in the same way."""
    return show_text(text_of(data)[1] or "")


def show_numbers(numbers: Iterable[int]) -> str:
    """`0-3, 5`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
