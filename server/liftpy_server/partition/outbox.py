"""Where acks go on their way out: gathered during a pass over a chunk, written at its end in one piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Outbox"]


class Outbox:
    """Gathers NATS frames.

    Args:
        write: Takes the frames of one pass; returns False when there is no connection to write them to.
    """

    def __init__(self, write: Callable[[bytes], bool]) -> None:
        self._write = write
        self._frames: list[bytes] = []
        self.lost_bytes = 0

    def add(self, frames: bytes) -> None:
        """Put frames behind the others."""
        if frames:
            self._frames.append(frames)

    def flush(self) -> None:
        """Write what was gathered. Acks that can not be sent are not kept: publishers that want them ask again."""
        if not self._frames:
            return
        data = self._frames[0] if len(self._frames) == 1 else b"".join(self._frames)
        self._frames.clear()
        if not self._write(data):
            self.lost_bytes += len(data)
