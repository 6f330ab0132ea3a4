r"""`-ERR` lines of a NATS server: which subscription they refuse. The server goes on after these.

    -ERR 'Permissions Violation for Subscription to "a.>"'
    -ERR 'Permissions Violation for Subscription to "a.>" using queue "q"'
    -ERR 'Permissions Violation for Subscription to "a.>" (sid "7")'          after its configuration changed
    -ERR 'maximum subscriptions exceeded'
    -ERR 'Invalid Subject'

Subjects are written with Go's `%q`: what can not be printed is escaped, and which characters these are depends on the
version of Unicode that the server was built with. So the text is read, not the subject written.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from liftpy_server.ingest.binding import Binding

__all__ = ["refused_bindings", "unquote_go"]

_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_DENIED: Final = re.compile(
    rf"permissions violation for subscription to (?P<subject>{_QUOTED})"
    rf"(?: using queue (?P<group>{_QUOTED}))?(?: \(sid (?P<number>{_QUOTED})\))?",
    re.IGNORECASE | re.DOTALL,
)
_ESCAPE: Final = re.compile(rb'\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|([abfnrtv"\\]))')
_SHORT: Final = dict(zip(b'abfnrtv"\\', b'\a\b\f\n\r\t\v"\\', strict=True))
_TOO_MANY: Final = "maximum subscriptions exceeded"
_ABOUT_ONE: Final = ("permissions violation for subscription", "invalid subject")


def unquote_go(text: str) -> bytes | None:
    """What a text in quotes stood for before Go's `%q` wrote it; None when it wrote no such thing."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return None
    try:
        return _ESCAPE.sub(_unescape, text[1:-1].encode())
    except ValueError:  # no code point
        return None


def _unescape(found: re.Match[bytes]) -> bytes:
    byte, short, long, letter = found.groups()
    if letter is not None:
        return bytes([_SHORT[letter[0]]])
    return bytes([int(byte, 16)]) if byte is not None else chr(int(short or long, 16)).encode()


def refused_bindings(text: str, asked: Mapping[int, Binding], unconfirmed: Sequence[Binding]) -> list[Binding] | None:
    """The subscriptions that an error refuses; None when it is about something else.

    When it refuses one and can not be understood, nothing that is not confirmed yet can be relied upon.

    Args:
        text: Text of the error.
        asked: Those that were asked for and not refused yet, by number, in the order in which the server heard of them.
        unconfirmed: Those of them that the server has not confirmed yet.
    """
    lowered = text.lower()
    if _TOO_MANY in lowered:
        return list(asked.values())[-1:]  # the server takes them in order, so it is the newest that are too many
    if not any(words in lowered for words in _ABOUT_ONE):
        return None
    return _named(text, asked) or list(unconfirmed) or list(asked.values())


def _named(text: str, asked: Mapping[int, Binding]) -> list[Binding]:
    found = _DENIED.search(text)
    if found is None:
        return []
    subject = unquote_go(found["subject"])
    group = unquote_go(found["group"] or '""')
    number = unquote_go(found["number"] or '""')
    return [
        binding
        for sid, binding in asked.items()
        if (binding.subject.encode(), (binding.group or "").encode()) == (subject, group)
        and (not number or number == b"%d" % sid)
    ]
