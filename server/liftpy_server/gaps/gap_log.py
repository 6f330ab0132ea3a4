"""What the log says of gaps: one line for all partitions that have one at about the same time, for the same cause."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from liftpy_server.gaps.partition_gaps import LED_ELSEWHERE

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.gaps.partition_gaps import PartitionGaps

__all__ = ["GapLog"]

logger = logging.getLogger(__name__)

_GATHER_S: Final = 0.05
_SHOWN_MAX: Final = 3


class GapLog:
    """Gathers gaps that begin and end, and logs them.

    Args:
        call_later: Schedules a call, as `loop.call_later` does.
    """

    def __init__(self, call_later: Callable[[float, Callable[[], None]], object]) -> None:
        self._call_later = call_later
        self._begun: dict[str, list[PartitionGaps]] = {}
        self._ended: dict[str, list[tuple[float, PartitionGaps]]] = {}

    def begun(self, gaps: PartitionGaps, cause: str) -> None:
        """A partition has a gap from now on."""
        self._schedule()
        self._begun.setdefault(cause, []).append(gaps)

    def ended(self, gaps: PartitionGaps, cause: str, lasted_s: float) -> None:
        """A partition's gap is over."""
        self._schedule()
        self._ended.setdefault(cause, []).append((lasted_s, gaps))

    def _schedule(self) -> None:
        if not self._begun and not self._ended:
            self._call_later(_GATHER_S, self.flush)

    def flush(self) -> None:
        """Log what was gathered."""
        begun, self._begun = self._begun, {}
        ended, self._ended = self._ended, {}
        for cause, some in begun.items():
            logger.log(_level_of(cause), "%s: messages may be missing from now on: %s", _shown(some), cause)
        for cause, lasted in ended.items():
            where, longest_s = _shown([gaps for _, gaps in lasted]), max(seconds for seconds, _ in lasted)
            text = "%s: gap of %.3f s closed (%s)" if len(lasted) == 1 else "%s: gaps of up to %.3f s closed (%s)"
            logger.log(_level_of(cause), text, where, longest_s, cause)


def _shown(some: list[PartitionGaps]) -> str:
    first, streams = some[0], list(dict.fromkeys(gaps.name for gaps in some))
    if len(some) == 1:
        return f"stream {first.name} partition {first.number}"
    if len(streams) == 1:
        return f"stream {first.name}, {len(some)} partitions"
    more = f" and {len(streams) - _SHOWN_MAX} more" if len(streams) > _SHOWN_MAX else ""
    return f"streams {', '.join(streams[:_SHOWN_MAX])}{more}, {len(some)} partitions"


def _level_of(cause: str) -> int:
    """A failover has a line of its own."""
    return logging.DEBUG if cause == LED_ELSEWHERE else logging.WARNING
