"""For how long nothing was heard of the others. Time in which this node itself did not listen counts for nobody."""

from __future__ import annotations

from typing import Final

__all__ = ["Silence"]

_STALL_S: Final = 0.5


class Silence:
    """Written by one thread, read by any.

    Args:
        now: monotonic seconds, as everywhere here.
    """

    def __init__(self, now: float) -> None:
        self._since = self._listened = now
        self._heard: dict[str, float] = {}

    def listened(self, now: float) -> None:
        """This node looks at its connections now. If it did not for long, it was stopped itself, or its disk stood."""
        gap = now - self._listened
        if gap > _STALL_S:
            self._since += gap
            self._heard = {node_id: at + gap for node_id, at in self._heard.items()}
        self._listened = now

    def heard(self, node_id: str, now: float) -> None:
        """Something came from a node."""
        self._heard[node_id] = max(now, self._heard.get(node_id, now))

    def silent_s(self, node_id: str) -> float:
        """Seconds of listening without a word of this node, at least since the start."""
        return max(self._listened - self._heard.get(node_id, self._since), 0.0)
