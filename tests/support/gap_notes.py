"""Who keeps gaps in tests: it counts, and tells what nobody has recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from liftpy_server.gaps.partition_gaps import PartitionGaps

__all__ = ["GapNotes"]


class GapNotes:
    """A `GapKeeper`.

    Attributes:
        asked: (partition, delay) of every call.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[int, float]] = []
        self._count = 0

    def new_id(self) -> str:
        self._count += 1
        return f"g{self._count}"

    def changed(self, gaps: PartitionGaps, delay_s: float) -> None:
        self.asked.append((gaps.number, delay_s))

    def begun(self, gaps: PartitionGaps, cause: str) -> None:
        pass

    def ended(self, gaps: PartitionGaps, cause: str, lasted_s: float) -> None:
        pass
