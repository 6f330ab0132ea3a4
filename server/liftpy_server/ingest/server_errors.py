"""`-ERR` lines of a NATS server: which end the connection, and which only refuse a subscription.

nats-py closes the connection on most of them, and writes all of them in lower case, so that subjects can not be told
apart; the server itself goes on after those that refuse a subscription:

    -ERR 'Permissions Violation for Subscription to "a.>"'
    -ERR 'Permissions Violation for Subscription to "a.>" using queue "q"'
    -ERR 'Permissions Violation for Subscription to "a.>" (sid "7")'          after its configuration changed
    -ERR 'maximum subscriptions exceeded'
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_server.ingest.binding import Binding

__all__ = ["refused_bindings", "split_errors"]

_DENIED: Final = "permissions violation for subscription to"
_TOO_MANY: Final = "maximum subscriptions exceeded"


def split_errors(control: bytes) -> tuple[bytes, list[str]]:
    """Take the `-ERR` lines out of lines that are no messages.

    Returns:
        The other lines, and the texts of the errors.
    """
    others, errors = [], []
    for line in control.split(b"\r\n"):
        if line.startswith(b"-ERR"):
            errors.append(line[4:].decode(errors="replace").strip(" '"))
        else:
            others.append(line)
    return b"\r\n".join(others), errors


def refused_bindings(text: str, bindings: Iterable[Binding]) -> list[Binding] | None:
    """The subscriptions that an error refuses; None when it is about something else.

    Args:
        text: of the error.
        bindings: those that were asked for and not refused yet, in the order in which the server heard of them.
    """
    lowered = text.lower()
    if _TOO_MANY in lowered:
        return list(bindings)[-1:]  # the server takes them in order, so it is the newest that are too many
    if _DENIED not in lowered:
        return None
    has_group = " using queue " in lowered
    return [
        binding
        for binding in bindings
        if json.dumps(binding.subject, ensure_ascii=False) in text and bool(binding.group) == has_group
    ]
