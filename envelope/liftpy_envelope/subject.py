"""NATS subjects: validation, matching and overlap, by the rules of nats-server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import SubjectInvalidError
from liftpy_envelope.limits import SUBJECT_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "RESERVED_PATTERNS",
    "SUBJECT_PATTERNS_MAX",
    "check_literal",
    "check_pattern",
    "check_patterns",
    "covers",
    "is_literal",
    "matches",
    "overlaps",
    "reserved_overlap",
]

RESERVED_PATTERNS: Final = ("_INBOX.>", "LIFT.>", "$>")
"""Subjects that belong to NATS and to liftpy itself; `$>` stands for all whose first token begins with `$`."""

SUBJECT_PATTERNS_MAX: Final = 64

_FORBIDDEN: Final = re.compile(r"[\s\x00]")


def check_pattern(subject: object) -> str:
    """`subject`, when a subscription to it is allowed (`*` and `>` included).

    Raises:
        SubjectInvalidError: it is not; the message says why.
    """
    return _check(subject, wildcards=True)


def check_patterns(patterns: Iterable[object]) -> tuple[str, ...]:
    """The patterns of a subject filter, when they are such.

    Raises:
        SubjectInvalidError: one is not a subject that can be subscribed to, or there are more than
            `SUBJECT_PATTERNS_MAX`.
    """
    checked = tuple(check_pattern(pattern) for pattern in patterns)
    if len(checked) > SUBJECT_PATTERNS_MAX:
        raise SubjectInvalidError(f"a filter has up to {SUBJECT_PATTERNS_MAX} subjects, not {len(checked)}")
    return checked


def check_literal(subject: object) -> str:
    """`subject`, when a message can be published on it (no wildcards).

    Raises:
        SubjectInvalidError: it can not; the message says why.
    """
    return _check(subject, wildcards=False)


def _check(subject: object, *, wildcards: bool) -> str:
    if not isinstance(subject, str) or not subject:
        raise SubjectInvalidError(f"a subject is a non-empty string, not {subject!r:.80}")
    try:
        size = len(subject.encode())
    except UnicodeEncodeError:
        raise SubjectInvalidError(f"subject {subject!r:.80} holds half of a surrogate pair, which is no text") from None
    if size > SUBJECT_BYTES_MAX:
        raise SubjectInvalidError(f"a subject of {size} bytes is over the limit of {SUBJECT_BYTES_MAX}")
    if _FORBIDDEN.search(subject):
        raise SubjectInvalidError(f"subject {subject!r:.80} contains white space")
    tokens = subject.split(".")
    for position, token in enumerate(tokens):
        if not token:
            raise SubjectInvalidError(f"subject {subject!r:.80} has an empty token")
        if token == ">" and position != len(tokens) - 1:
            raise SubjectInvalidError(f"subject {subject!r:.80}: '>' stands only at the end")
        if token in {"*", ">"} and not wildcards:
            raise SubjectInvalidError(f"subject {subject!r:.80} is a wildcard; a message needs a literal subject")
    return subject


def is_literal(subject: str) -> bool:
    """Whether a valid subject names one subject only."""
    return not any(token in {"*", ">"} for token in subject.split("."))


def matches(pattern: str, subject: str) -> bool:
    """Whether a subscription to `pattern` receives a message on the literal `subject`."""
    wanted, given = pattern.split("."), subject.split(".")
    for position, token in enumerate(wanted):
        if token == ">":
            return len(given) > position
        if position >= len(given) or token not in {"*", given[position]}:
            return False
    return len(wanted) == len(given)


def overlaps(left: str, right: str) -> bool:
    """Whether some literal subject matches both patterns."""
    one, other = left.split("."), right.split(".")
    for position in range(max(len(one), len(other))):
        a = one[position] if position < len(one) else None
        b = other[position] if position < len(other) else None
        if a is None or b is None:
            return False
        if ">" in {a, b}:
            return True
        if a != b and "*" not in {a, b}:
            return False
    return True


def covers(wide: str, narrow: str) -> bool:
    """Whether every literal subject that matches `narrow` matches `wide`."""
    outer, inner = wide.split("."), narrow.split(".")
    for position, token in enumerate(outer):
        if token == ">":
            return len(inner) > position
        if position >= len(inner) or inner[position] == ">" or token not in {"*", inner[position]}:
            return False
    return len(outer) == len(inner)


def reserved_overlap(subject: str) -> str | None:
    """The reserved pattern that a stream's subject overlaps, if any."""
    named, dollar = RESERVED_PATTERNS[:2], RESERVED_PATTERNS[2]
    first = subject.split(".", 1)[0]
    found = next((pattern for pattern in named if overlaps(pattern, subject)), None)
    return dollar if found is None and (first in {"*", ">"} or first.startswith("$")) else found
