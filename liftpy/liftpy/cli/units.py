"""Sizes, times and counts as people write and read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from liftpy_client.errors import UsageError

__all__ = ["parse_bytes", "parse_duration", "parse_offset_or_time", "show_bytes", "show_count", "show_duration"]

_SIZES: Final = {"": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9}
_SIZES_2: Final = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "t": 10**12, "tb": 10**12}
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0, "y": 31_536_000.0}
_SPAN_BACK: Final = re.compile(r"^-(?=[0-9.]+[a-z])")
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhdwy])")


def parse_bytes(text: str) -> int:
    """`10GiB`, `512k`, `1000`.

    Raises:
        UsageError: it is no size.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    factor = (_SIZES | _SIZES_2).get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(f"{text!r} is not a size such as 512MiB or 10GB")
    return int(match[1]) * factor if match[1].isdigit() else int(float(match[1]) * factor)


def parse_duration(text: str) -> float:
    """`7d`, `1h30m`, `250ms`, `90` (seconds).

    Raises:
        UsageError: it is no time span.
    """
    text = text.strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    if not text or _DURATION_PART.sub("", text):
        raise UsageError(f"{text!r} is not a time span such as 90s, 1h30m or 7d")
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))


def parse_offset_or_time(text: str, words: tuple[str, ...], what: str) -> int | str | datetime:
    """A word out of `words`, an offset, an ISO time, or a time span that counts back from now: `5m` or `-5m`.

    Raises:
        UsageError: it is none of these.
    """
    if text in words:
        return text
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        try:
            return datetime.now(UTC) - timedelta(seconds=parse_duration(_SPAN_BACK.sub("", text)))
        except OverflowError:
            return datetime.fromtimestamp(0, UTC)  # so long ago that it means the beginning
        except UsageError:
            choices = ", ".join(words)
            raise UsageError(
                f"{what}: {text!r} is not {choices}, an offset, a time such as 2026-01-31T12:00Z, or a span such as 1h"
            ) from None
    return when if when.tzinfo else when.astimezone()


def show_bytes(count: float) -> str:
    """`1.4 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def show_count(count: float) -> str:
    """`1,234,567`."""
    return f"{count:,.0f}"


def show_duration(seconds: float) -> str:
    """`3d4h`, `12m30s`, `1.25s`."""
    if seconds < 60:
        return f"{seconds:.2f}s"
    parts = []
    for unit in ("y", "d", "h", "m", "s"):
        number, seconds = divmod(seconds, _SECONDS[unit])
        if number:
            parts.append(f"{number:.0f}{unit}")
    return "".join(parts[:2])
