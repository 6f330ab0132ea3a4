"""What a leader knows of its followers: how far each is on disk, and since when it has not been caught up.

A follower's lag is a time: now, minus the latest moment at which the leader's log was no longer than what the
follower has on disk by now. Comparing with the leader's end at the moment of a fetch would call every follower
lagging under steady load, since the leader is always a little further; comparing with its end at the fetch before
would not survive a disk that syncs slower than the follower fetches.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

__all__ = ["EndSamples", "FollowerProgress"]

_SAMPLES_MAX: Final = 16


@dataclass(slots=True, kw_only=True)
class FollowerProgress:
    """One follower, in one incarnation.

    Attributes:
        incarnation: the one whose fetches count.
        durable_end: the offset after its last record on disk, as it said last; None before it said anything.
        caught_up_s: the latest moment of which it is known that it had caught up with the leader.
    """

    incarnation: int | None
    durable_end: int | None = None
    caught_up_s: float = float("-inf")


class EndSamples:
    """When the leader's log had which end; a few samples over the time that a follower may lag.

    Args:
        lag_max_s: the longest lag that matters.
    """

    def __init__(self, lag_max_s: float) -> None:
        self._spacing_s = lag_max_s / _SAMPLES_MAX
        self._samples: deque[tuple[float, int]] = deque(maxlen=2 * _SAMPLES_MAX)

    def add(self, now_s: float, end: int) -> None:
        """The log ends at `end` now."""
        if not self._samples or now_s - self._samples[-1][0] >= self._spacing_s:
            self._samples.append((now_s, end))

    def latest_within(self, durable_end: int) -> float:
        """The latest sampled moment at which the log ended at `durable_end` or before; -inf for none."""
        return next((moment for moment, end in reversed(self._samples) if end <= durable_end), float("-inf"))

    def shift(self, by_s: float) -> None:
        """The leader itself stood still for so long; that is nobody's lag."""
        self._samples = deque(((moment + by_s, end) for moment, end in self._samples), maxlen=self._samples.maxlen)
