"""Up to when a copy of a partition is known to be whole. Pure.

A node asks the NATS server a question every second. When it is answered, everything that was published before the
question has come, and is in the log below the end that the log has then. So a pair (time of the question, end of the
log) says: whoever has the log up to that end lacks nothing that was published before that time, but for what is
written down as a gap. The leader notes such pairs, and tells them its followers; the one that leads next begins its
gap at the newest pair that it has copied whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Whole", "WholeHistory"]

_PAIRS_MAX: Final = 16  # a follower that is further behind is known to be whole up to an earlier moment


class Whole(NamedTuple):
    """Everything that was published before `at_s`, by this node's clock of elapsed time, is in the log below `end`."""

    at_s: float
    end: int


class WholeHistory:
    """The newest pair whose end is committed and on disk, and those that are to come."""

    def __init__(self, pairs: Iterable[Whole] = ()) -> None:
        self._pairs = sorted(pairs)

    def note(self, at_s: float, end: int, sure_end: int) -> None:
        """There is a newer pair; nothing below `sure_end` is ever cut off."""
        pairs = self._pairs
        if pairs and at_s < pairs[-1].at_s:
            return  # it was told late, and says nothing new
        self.cut(end)
        if pairs and pairs[-1].end == end:
            pairs.pop()
        pairs.append(Whole(at_s, end))
        reached = sum(pair.end <= sure_end for pair in pairs)
        del pairs[: max(0, reached - 1)]
        if len(pairs) > _PAIRS_MAX:
            del pairs[1]

    def cut(self, end: int) -> None:
        """What the log had from `end` on is gone: what comes instead may be something else."""
        self._pairs[:] = [pair for pair in self._pairs if pair.end <= end]

    def newest(self, log_end: int) -> Whole | None:
        """The newest pair whose end a log has reached; None when there is none."""
        return max((pair for pair in self._pairs if pair.end <= log_end), default=None)
