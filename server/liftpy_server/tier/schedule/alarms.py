"""How the store behind the bucket is: well, slow, away, full, or refusing us; and who may try it when it is not. Pure.

While it is not well one job at a time tries it, at growing intervals, and everything else waits.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["STORE_CODES", "StoreHealth", "StoreState", "room_s"]

_BACK_OFF_S: Final = 1.0
_BACK_OFF_S_MAX: Final = 60.0
_REPEAT_S: Final = 600.0
_BUSY_S: Final = 60.0  # a store that has refused nothing for so long is well, also where nobody asks for much


class StoreState(Enum):
    """What people are told of the store."""

    OK = "ok"
    SLOW = "slow"
    BUSY = "busy"
    AWAY = "away"
    FULL = "full"
    REFUSED = "refused"


_USABLE: Final = frozenset({StoreState.OK, StoreState.SLOW, StoreState.BUSY})
STORE_CODES: Final = {
    "unavailable": StoreState.AWAY,
    "full": StoreState.FULL,
    "denied": StoreState.REFUSED,
    "unfit": StoreState.REFUSED,
    "foreign": StoreState.REFUSED,
    "version": StoreState.REFUSED,
}
"""Errors of workers that say something of the store as a whole."""


class StoreHealth:
    """How the store is, and who may try it.

    Attributes:
        state: State of the store.
        code: Code of the error that said so; "" while it is well.
        message: Message for people; "" while it is well.
        since_s: Time since when it is as it is, seconds.
        is_proven: Whether it has been found to be usable at least once.
        failures: One after the other.
    """

    def __init__(self, now_s: float) -> None:
        self.state = StoreState.OK
        self.code = ""
        self.message = ""
        self.since_s = now_s
        self.is_proven = False
        self.failures = 0
        self._until_s = now_s
        self._is_tried = False
        self._told_s = now_s
        self._refused_s = now_s

    @property
    def is_usable(self) -> bool:
        """Whether jobs may be started."""
        return self.is_proven and self.state in _USABLE

    def may_try(self, now_s: float) -> bool:
        """Whether someone is to find out how it is; who is told so must say how it went."""
        if self.is_usable or self._is_tried or now_s < self._until_s:
            return False
        self._is_tried = True
        return True

    def try_soon(self, now_s: float) -> None:
        """Something was changed: do not wait any longer."""
        self._until_s = min(self._until_s, now_s)

    def failed(self, code: str, message: str, now_s: float, *, was_tried: bool) -> bool:
        """A job said something bad of the store. Returns whether people are to be told.

        Args:
            code: One of `STORE_CODES`.
            message: Error text.
            now_s: Current time in seconds.
            was_tried: Whether it was the one that was to find out.
        """
        if was_tried:
            self._is_tried = False
        elif not self.is_usable:  # one of those that ran when the first one failed
            return False
        state, is_new = STORE_CODES[code], False
        if state is not self.state or code != self.code:
            is_new = True
            if state is not self.state:
                self.since_s = now_s
        self.state, self.code, self.message = state, code, message
        self.failures += 1
        self._until_s = now_s + min(_BACK_OFF_S * 2.0 ** min(self.failures - 1, 16), _BACK_OFF_S_MAX)
        return self._tells(now_s, is_new=is_new)

    def succeeded(self, now_s: float, *, was_tried: bool) -> bool:
        """A job went well. Returns whether people are to be told that the store is well again."""
        if was_tried:
            self._is_tried = False
        elif not self.is_usable:
            return False
        self.is_proven = True
        self.failures = 0
        if self.state in _USABLE:
            return False
        self._become(StoreState.OK, "", now_s)
        return True

    def asks_for_less(self, message: str, now_s: float) -> bool:
        """It asked for fewer requests, and is well. Returns whether people are to be told."""
        if not self.is_usable:
            return False
        self._refused_s = now_s
        if self.state is StoreState.BUSY:
            return self._tells(now_s, is_new=False)
        self._become(StoreState.BUSY, message, now_s)
        return True

    def takes_all(self, now_s: float) -> None:
        """It takes as many requests as there are to be."""
        if self.state is StoreState.BUSY:
            self._become(StoreState.OK, "", now_s)

    def calms_down(self, now_s: float) -> None:
        """Time passes."""
        if now_s - self._refused_s > _BUSY_S:
            self.takes_all(now_s)

    def waits(self, oldest_s: float, allowed_s: float, now_s: float) -> bool:
        """What waits for the bucket. Returns whether people are to be told, of slowness or of its end.

        Args:
            oldest_s: How long the oldest has been waiting.
            allowed_s: What is slow.
            now_s: Current time in seconds.
        """
        is_slow = oldest_s > allowed_s
        if self.state is StoreState.OK and is_slow:
            text = f"the bucket takes less than comes in: something has been waiting for {oldest_s:.0f} s"
            self._become(StoreState.SLOW, text, now_s)
            return True
        if self.state is StoreState.SLOW and not is_slow:
            self._become(StoreState.OK, "", now_s)
            return True
        return self.state is StoreState.SLOW and self._tells(now_s, is_new=False)

    def _become(self, state: StoreState, message: str, now_s: float) -> None:
        self.state, self.code, self.message = state, "", message
        self.since_s = self._told_s = now_s

    def _tells(self, now_s: float, *, is_new: bool) -> bool:
        """At a change, and then rarely."""
        if not is_new and now_s - self._told_s < _REPEAT_S:
            return False
        self._told_s = now_s
        return True


def room_s(free_bytes: int, reserve_bytes: int, grown_bytes: int, passed_s: float) -> float | None:
    """How long a disk lasts; None while it does not fill.

    Args:
        free_bytes: Free bytes of the disk now.
        reserve_bytes: Bytes of the disk that are never used.
        grown_bytes: What was used up in `passed_s`.
        passed_s: Time since when, seconds.
    """
    if passed_s <= 0 or grown_bytes <= 0:
        return None
    return max(0, free_bytes - reserve_bytes) / (grown_bytes / passed_s)
