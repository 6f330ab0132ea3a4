"""One JSON object per line: what a node and the processes it started say to each other over pipes."""

from __future__ import annotations

import json
from typing import Any, Final

__all__ = ["LINE_BYTES_MAX", "read_line", "to_line"]

LINE_BYTES_MAX: Final = 64 * 1024 * 1024  # a plan of a log with some hundred thousand segments


def to_line(message: dict[str, Any]) -> bytes:
    """A message as it crosses the pipe."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def read_line(line: bytes) -> dict[str, Any]:
    """The message of a line.

    Raises:
        ValueError: it is none.
    """
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"not a message: {line[:80]!r}")  # noqa: TRY004 - of whatever type, it is a bad line
    return message
