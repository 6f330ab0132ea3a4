"""Leader epochs of one partition: which epoch began at which offset.

A cache of what the batch headers say. Epochs and their first offsets both only grow.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["EpochHistory"]


class EpochHistory:
    """An ordered list of (epoch, first offset of the epoch)."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries:
            self.begin(epoch, start)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, first offset), oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        """The newest epoch that has a record; -1 when there is none."""
        return self._epochs[-1] if self._epochs else -1

    def begin(self, epoch: int, offset: int) -> None:
        """Record that the batch at `offset` has `epoch`; no-op when it is the latest epoch already."""
        if self._epochs and epoch == self._epochs[-1]:
            return
        assert epoch > self.latest, f"epoch {epoch} after {self.latest}"
        assert not self._starts or offset >= self._starts[-1], f"epoch {epoch} begins at {offset}, before its elder"
        if self._starts and self._starts[-1] == offset:  # the elder epoch turned out to hold no record
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(offset)

    def end_offset(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Where the largest epoch not above `epoch` ends.

        Returns:
            (that epoch, the offset after its last record); (-1, the first known offset) when `epoch` is older than
            everything here.
        """
        position = bisect_right(self._epochs, epoch)
        if position == 0:
            return -1, self._starts[0] if self._starts else log_end
        end = self._starts[position] if position < len(self._starts) else log_end
        return self._epochs[position - 1], end

    def truncate(self, log_end: int) -> None:
        """Forget epochs that begin at or after `log_end`."""
        while self._starts and self._starts[-1] >= log_end:
            self._starts.pop()
            self._epochs.pop()

    def advance(self, log_start: int) -> None:
        """Forget where epochs below `log_start` began, but not the epoch that `log_start` itself is in."""
        while len(self._starts) > 1 and self._starts[1] <= log_start:
            self._starts.pop(0)
            self._epochs.pop(0)
        if self._starts and self._starts[0] < log_start:
            self._starts[0] = log_start
