"""What a node publishes: NATS `PUB` frames, taken apart with their byte counts checked."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

_PUB = re.compile(rb"PUB (\S+) (\d+)\r\n")


class Published(NamedTuple):
    """One `PUB`: its subject, and its payload as it is."""

    subject: bytes
    payload: bytes

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.payload)


def published(frames: bytes) -> list[Published]:
    """Every frame; fails when the bytes are anything else than whole and well-formed frames."""
    found = []
    position = 0
    while position < len(frames):
        head = _PUB.match(frames, position)
        assert head is not None, frames[position : position + 80]
        start, size = head.end(), int(head.group(2))
        assert frames[start + size : start + size + 2] == b"\r\n", frames[position : position + 200]
        found.append(Published(head.group(1), frames[start : start + size]))
        position = start + size + 2
    return found
