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
        incarnation: The one whose fetches count.
        durable_end: The offset after its last record on disk, as it said last; None before it said anything.
        caught_up_s: The latest moment of which it is known that it had caught up with the leader.
        is_waiting: Whether a fetch of it waited here at the last tick, by a session that was heard lately.
    """

    incarnation: int | None
    durable_end: int | None = None
    caught_up_s: float = float("-inf")
    is_waiting: bool = False


class EndSamples:
    """When the leader's log had which end; a few samples over the time that a follower may lag.

    Args:
        lag_max_s: The longest lag that matters.
        end: Where the log ends.
    """

    def __init__(self, lag_max_s: float, end: int) -> None:
        self._spacing_s = lag_max_s / _SAMPLES_MAX
        self._samples: deque[tuple[float, int]] = deque(maxlen=2 * _SAMPLES_MAX)
        self._sampled_s = float("-inf")
        self._end = end

    def add(self, now_s: float, end: int) -> None:
        """The log ends at `end` from now on. Until now it ended where it did at the last call, however long ago."""
        if now_s - self._sampled_s >= self._spacing_s:
            self._samples.append((now_s, self._end))
            self._sampled_s = now_s
        self._end = end

    def latest_within(self, durable_end: int) -> float:
        """The latest sampled moment at which the log ended at `durable_end` or before; -inf for none."""
        return next((moment for moment, end in reversed(self._samples) if end <= durable_end), float("-inf"))

    def shift(self, by_s: float, now_s: float) -> None:
        """The leader itself stood still for so long; that is nobody's lag."""
        shifted = ((min(now_s, moment + by_s), end) for moment, end in self._samples)
        self._samples = deque(shifted, maxlen=self._samples.maxlen)
        self._sampled_s = min(now_s, self._sampled_s + by_s)
