"""How the console's pages show numbers, times, payloads and courses: the filters of its templates. Pure."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy.cli.text import printable
from liftpy.cli.units import show_bytes, show_count, show_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from liftpy.cli.console.watcher import Course

__all__ = ["FILTERS", "Payload", "payload", "points", "spans"]

_JSON_BYTES_MAX: Final = 256 * 1024
_TEXT_CHARACTERS_MAX: Final = 64 * 1024
_HEX_BYTES_MAX: Final = 4 * 1024
_HEX_ROW: Final = 16
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"\s]+')
_BRIEF_MAX: Final = 160
_WIDTH: Final = 300
_HEIGHT: Final = 40


class Payload(NamedTuple):
    """A key or a value as a page shows it.

    Attributes:
        kind: `json`, `text`, `hex`, `empty` or `none`.
        text: What to show.
        is_cut: There is more than is shown.
    """

    kind: str
    text: str
    is_cut: bool = False


def payload(data: bytes | None) -> Payload:
    """Show bytes as JSON if they are, as text if they are UTF-8, as hex digits if not."""
    if data is None:
        return Payload("none", "")
    if not data:
        return Payload("empty", "")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return Payload("hex", _hex_rows(data[:_HEX_BYTES_MAX]), len(data) > _HEX_BYTES_MAX)
    if len(data) <= _JSON_BYTES_MAX and text.lstrip()[:1] in {"{", "["}:
        try:
            json.loads(text)
            return Payload("json", *_indented(text))
        except (ValueError, RecursionError):
            pass
    shown = "\n".join(map(printable, text[:_TEXT_CHARACTERS_MAX].split("\n")))
    return Payload("text", shown, len(text) > _TEXT_CHARACTERS_MAX)


def _indented(text: str) -> tuple[str, bool]:
    """JSON on lines, each number and string as it was published; and whether there is more than is shown."""
    pieces: list[str] = []
    depth, size, before = 0, 0, ""
    for found in _JSON_TOKEN.finditer(text):
        token = found[0]
        depth -= token in {"]", "}"}
        is_first = before in {"[", "{"}
        if before == "," or is_first != (token in {"]", "}"}):
            pieces.append("\n" + "  " * depth)
        depth += token in {"[", "{"}
        pieces.append(": " if token == ":" else _printable_json(token))
        size += len(pieces[-1]) + 2 * depth + 1
        if size > _JSON_BYTES_MAX:
            return "".join(pieces), True
        before = token
    return "".join(pieces), False


def _printable_json(token: str) -> str:
    if token.isprintable():
        return token
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in token)


def _hex_rows(data: bytes) -> str:
    rows = []
    for begin in range(0, len(data), _HEX_ROW):
        row = data[begin : begin + _HEX_ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{begin:06x}  {row.hex(' '):<{3 * _HEX_ROW}} {letters}")
    return "\n".join(rows)


def brief(data: bytes | None) -> str:
    """Show bytes on one line, shortened."""
    if data is None:
        return ""
    try:
        text = data[: 4 * _BRIEF_MAX].decode(errors="strict" if len(data) <= 4 * _BRIEF_MAX else "ignore")
    except UnicodeDecodeError:
        text = "0x" + data[: _BRIEF_MAX // 2].hex()
    shown = printable(text[:_BRIEF_MAX])
    return shown + ("…" if len(text) > _BRIEF_MAX or len(data) > 4 * _BRIEF_MAX else "")


def time_of(ns: int | None) -> str:
    """Show a time since the epoch in ns, in UTC, to the millisecond."""
    if ns is None:
        return ""
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def count(number: float | None) -> str:
    """Show a count, or a dash where nobody tells it."""
    return "-" if number is None else show_count(number)


def size(number: float | None) -> str:
    """Show a size in bytes, or a dash where nobody tells it."""
    return "-" if number is None else show_bytes(number)


def rate(number: float | None) -> str:
    """Show a rate per second, or a dash where it is not known yet."""
    if number is None:
        return "-"
    return f"{number:,.1f}/s" if 0 < number < 10 else f"{number:,.0f}/s"


def duration(seconds: float | None) -> str:
    """Show a time span, or a dash where nobody tells it."""
    return "-" if seconds is None else show_duration(seconds)


def share(part: float | None) -> str:
    """Show a share in percent, or a dash where it is not known yet."""
    return "-" if part is None else f"{100 * part:.0f} %"


def dollars(amount: float) -> str:
    """Show an amount of money, the smaller the more exactly."""
    return f"${amount:,.2f}" if amount >= 1 or not amount else f"${amount:.6f}"


def points(course: Course) -> str:
    """The points of a polyline in a field of 300 by 40 for the course of a number; the newest at the right."""
    values = list(course.points)
    if len(values) < 2:
        return ""
    first_s, last_s = values[0][0], values[-1][0]
    top = max(value for _, value in values) or 1.0
    return " ".join(
        f"{_WIDTH * (at_s - first_s) / (last_s - first_s or 1):.1f},{_HEIGHT - (_HEIGHT - 2) * value / top:.1f}"
        for at_s, value in values
    )


class Span(NamedTuple):
    """A gap on a time line of 1,000 units: where it begins, how wide it is, and the gap."""

    x: float
    width: float
    gap: dict[str, Any]


def spans(gaps: Iterable[dict[str, Any]], now_ns: int) -> Sequence[Span]:
    """Where gaps are on a time line that begins with the first of them and ends now."""
    shown = list(gaps)
    if not shown:
        return []
    first = min(gap["since_ns"] for gap in shown)
    first -= (now_ns - first) // 20
    whole = max(1, now_ns - first)
    found = []
    for gap in shown:
        until = min(now_ns, now_ns if gap["until_ns"] is None else gap["until_ns"])
        x = 1_000 * (gap["since_ns"] - first) / whole
        found.append(Span(max(0.0, x), max(3.0, 1_000 * (until - gap["since_ns"]) / whole), gap))
    return found


FILTERS: Final = {
    "brief": brief,
    "count": count,
    "dollars": dollars,
    "duration": duration,
    "payload": payload,
    "points": points,
    "rate": rate,
    "share": share,
    "size": size,
    "time": time_of,
}
