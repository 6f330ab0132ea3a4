"""Messages as `liftpy consume` prints them: text, JSON lines, values alone, or a template of one's own.

A printer makes one line of bytes of a message. It is called for every message, so it uses no markup.
"""

from __future__ import annotations

import json
from string import Formatter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy.cli.text import SHOWN_MAX, printable, text_of
from liftpy_client.errors import UsageError
from liftpy_client.processing.dead_letters import PREFIX as DEAD_LETTER_PREFIX
from liftpy_client.processing.dead_letters import origin_of
from liftpy_envelope.headers import parse_header_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_client.message import Message
    from liftpy_client.processing.dead_letters import Origin

    Printer = Callable[[Message], bytes]

__all__ = ["Style", "dead_letter_json_printer", "json_printer", "raw_printer", "template_printer", "text_printer"]

_KEY_HEADER: Final = "Lift-Key"
_ESCAPES: Final = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\\\": "\\"}


class Style(NamedTuple):
    """How text is printed.

    Attributes:
        colors: Use colors.
        shortened: Print at most the first 200 characters of a key or value, as for a terminal.
        headers: Print headers.
        several: Name the stream of each message, because several are consumed.
        dead_letters: Print where the message of each dead letter comes from, and why it is one.
    """

    colors: bool = False
    shortened: bool = False
    headers: bool = False
    several: bool = False
    dead_letters: bool = False


def _header_lines(message: Message) -> list[tuple[str, str]]:
    return [] if message.header_block is None else parse_header_lines(message.header_block)


def json_printer(message: Message) -> bytes:
    """Print a message as one JSON object. A header with several values has a list of them."""
    return json.dumps(_shown(message)).encode() + b"\n"


def dead_letter_json_printer(message: Message) -> bytes:
    """Print a dead letter as one JSON object, with what it says of its message in `dead_letter`, or null there."""
    origin = origin_of(message)
    shown = _shown(message) | {"dead_letter": None if origin is None else origin._asdict()}
    if origin is not None:
        shown["headers"] = {
            name: values for name, values in shown["headers"].items() if not name.startswith(DEAD_LETTER_PREFIX)
        }
    return json.dumps(shown).encode() + b"\n"


def _shown(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "stream": message.stream,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp.isoformat(),
        "timestamp_ns": message.timestamp_ns,
        "subject": message.subject,
        "headers": message.headers.all_values(),
    }
    for name, data in (("key", message.key), ("value", message.value)):
        suffix, text = text_of(data)
        shown[name + suffix] = text
    return shown


def raw_printer(message: Message) -> bytes:
    """Print the value as it is."""
    return (message.value or b"") + b"\n"


def text_printer(style: Style) -> Printer:
    """Return what prints a message as one line of text: place, time, subject, headers, key and value."""
    dim, green, cyan, end = ("\x1b[2m", "\x1b[32m", "\x1b[36m", "\x1b[0m") if style.colors else ("", "", "", "")
    clock = _Clock()

    def show(data: bytes) -> str:
        text = text_of(data)[1] or ""
        if style.shortened and len(text) > SHOWN_MAX:
            return printable(text[:SHOWN_MAX]) + "…"
        return printable(text)

    def line(message: Message) -> bytes:
        place = f"{message.offset}" if message.partition == 0 else f"{message.partition}:{message.offset}"
        if style.several:
            place = f"{message.stream} {place}"
        text = f"{dim}{place} {clock.show(message.timestamp_ns)}{end} {green}{printable(message.subject)}{end}"
        origin = origin_of(message) if style.dead_letters else None
        if style.dead_letters:
            text += f" {dim}{'(no dead letter)' if origin is None else printable(_told(origin))}{end}"
        if style.headers:
            shown = [f"{printable(name)}: {printable(value)}" for name, value in _header_lines(message)
                     if name != _KEY_HEADER
                     and not (origin is not None and name.startswith(DEAD_LETTER_PREFIX))]  # fmt: skip
            if shown:
                text += f" {dim}{{{'; '.join(shown)}}}{end}"
        if message.key is not None:
            text += f" {cyan}{show(message.key)}{end}"
        value = f"{dim}(tombstone){end}" if message.value is None else show(message.value)
        return f"{text} {value}\n".encode(errors="replace")

    return line


def _told(origin: Origin) -> str:
    times = "1 attempt" if origin.attempts == 1 else f"{origin.attempts} attempts"
    place = f"{origin.stream} {origin.partition}:{origin.offset} {origin.subject}"
    return f"[{place}, {times} by {origin.group}: {origin.cause}]"


class _Clock:
    """Times as text, in UTC, to the microsecond. Remembers the second, which most messages share."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def show(self, ns: int) -> str:
        """Return `2026-01-31 12:00:00.123456`."""
        second, rest = divmod(ns, 1_000_000_000)
        if second != self._second:
            from datetime import UTC, datetime

            self._second = second
            self._text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S")
        return f"{self._text}.{rest // 1_000:06d}"


def _headers_text(message: Message) -> bytes:
    return "; ".join(f"{name}: {value}" for name, value in _header_lines(message)).encode()


_FIELDS: Final[dict[str, Callable[[Message], bytes]]] = {
    "stream": lambda message: message.stream.encode(),
    "partition": lambda message: b"%d" % message.partition,
    "offset": lambda message: b"%d" % message.offset,
    "time": lambda message: message.timestamp.isoformat().encode(),
    "timestamp_ns": lambda message: b"%d" % message.timestamp_ns,
    "subject": lambda message: message.subject.encode(errors="replace"),
    "headers": _headers_text,
    "key": lambda message: message.key or b"",
    "value": lambda message: message.value or b"",
}


def template_printer(template: str, *, safe: bool) -> Printer:
    r"""Return what prints a message as a template says, such as `{offset} {subject} {key} {value}`, and a line feed.

    Args:
        template: Text with names of fields in braces; `\n`, `\t`, `\0` and `\\` have their usual meaning.
        safe: Escape what a terminal would act on.

    Raises:
        UsageError: the template is malformed or names an unknown field.
    """
    parts: list[bytes | Callable[[Message], bytes]] = []
    try:
        pieces = list(Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"--format: {template!r}: {error}; write a brace as two") from None
    for text, field, spec, conversion in pieces:
        if text:
            parts.append(_unescaped(text).encode(errors="surrogateescape"))
        if field is None:
            continue
        if field in _FIELDS and (spec or conversion):
            raise UsageError(f"--format: a field has no width and no conversion; write {{{field}}}")
        if field not in _FIELDS:
            raise UsageError(f"--format: there is no field {{{field}}}; there are {', '.join(_FIELDS)}")
        parts.append(_safe(_FIELDS[field]) if safe else _FIELDS[field])

    def line(message: Message) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in parts) + b"\n"

    return line


def _safe(field: Callable[[Message], bytes]) -> Callable[[Message], bytes]:
    return lambda message: printable(text_of(field(message))[1] or "").encode(errors="replace")


def _unescaped(text: str) -> str:
    found, rest = "", text
    while rest:
        meant = _ESCAPES.get(rest[:2])
        found += rest[0] if meant is None else meant
        rest = rest[1 if meant is None else 2 :]
    return found
