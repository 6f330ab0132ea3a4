"""When what has no ack yet is sent again: a lane for each partition of a stream, without I/O; time comes in as `now_s`.

A leader that dies takes with it what nobody answered, and its successor does not say that it is there. So a lane is

    flowing   everything leaves when it comes. What was overtaken (an ack came for something that left later) counts as
              lost and is sent again, and so is what is older than its patience
    stalled   no ack came for a while, or somebody refused, or nobody listened. What is new is held back, and one item,
              the oldest, is sent again and again: the probe. Its ack ends the stall, and then what was lost and what
              was held back follow in their order

A leader that is only slow thus gets a handful of probes, and not everything twice; and what is published while there
is no leader is stored in the order in which it was published.

What must not be stored twice, because its stream keeps no ids, is sent again only when nobody can have stored it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Lane", "Outstanding"]

_SILENCE_S_MIN: Final = 0.25
_SILENCE_S_MAX: Final = 1.0
_PROBE_S: Final = 0.15
_HOLD_S: Final = 3.0  # longer than a failover: by then the oldest may be one that will never be answered
_OVERTAKEN_MAX: Final = 2
_COPIES_MAX: Final = 3


class Outstanding:
    """Something that waits for its ack.

    Attributes:
        patience_s: without an ack for so long it is sent again, whatever else is acknowledged.
        may_repeat: it is stored only once, however often it is sent.
        sent_s: when it was sent last; None while it is to be sent.
        copies: how many were sent of which nobody knows that they are not stored.
    """

    __slots__ = ("copies", "first_sent_s", "may_repeat", "overtaken", "patience_s", "repeated_s", "sent_s")

    def __init__(self, patience_s: float, *, may_repeat: bool) -> None:
        self.patience_s = patience_s
        self.may_repeat = may_repeat
        self.sent_s: float | None = None
        self.first_sent_s = 0.0
        self.repeated_s = float("inf")  # when it was sent for the second time
        self.copies = 0
        self.overtaken = 0

    @property
    def is_sendable(self) -> bool:
        """Whether sending it, or sending it again, can not store it twice."""
        return self.may_repeat or not self.copies


Item = TypeVar("Item", bound=Outstanding)


class Lane(Generic[Item]):
    """See the module.

    Attributes:
        items: what waits, in the order in which it came.
    """

    def __init__(self) -> None:
        self.items: dict[Item, None] = {}
        self._unsent = 0
        self._heard_s = float("-inf")
        self._latency_s = 0.0
        self._epoch = -1
        self._reached_s = float("-inf")  # what was sent then has been acknowledged
        self._stalled_s: float | None = None
        self._probed_s = float("-inf")
        self._impatient_s = float("-inf")

    @property
    def is_stalled(self) -> bool:
        """Whether nothing but the probe is sent."""
        return self._stalled_s is not None

    @property
    def has_held(self) -> bool:
        """Whether something is to be sent now that was held back."""
        return self._stalled_s is None and self._unsent > 0

    def is_in_trouble(self, now_s: float) -> bool:
        """Whether it may be that the stream is another one by now, or gone."""
        return self.is_stalled or now_s - self._impatient_s < _SILENCE_S_MIN

    def is_idle(self, now_s: float, for_s: float) -> bool:
        """Whether nothing was in it for so long."""
        return not self.items and now_s - self._heard_s >= for_s

    def enter(self, item: Item, now_s: float) -> bool:
        """Something is to be sent. Returns whether at once; otherwise `due` names it when it is time."""
        if not self.items:
            self._heard_s = max(self._heard_s, now_s)
        at_once = self._stalled_s is None and not self._unsent
        self.items[item] = None
        self._unsent += 1
        return at_once

    def sent(self, item: Item, now_s: float) -> None:
        """It leaves."""
        if item.sent_s is None:
            self._unsent -= 1
        if not item.copies:
            item.first_sent_s = now_s
        else:
            item.repeated_s = min(item.repeated_s, now_s)
        item.copies += 1
        item.sent_s = now_s
        self._probed_s = now_s

    def put_back(self, item: Item, now_s: float, *, is_stored: bool | None) -> None:
        """Somebody refused it, or nobody took it: it is to be sent again, but not at once.

        Args:
            item: what was sent.
            now_s: the time.
            is_stored: False when the copy is known not to be stored; None when nobody knows.
        """
        if item.sent_s is not None:
            item.sent_s = None
            self._unsent += 1
        if is_stored is False:
            item.copies = max(0, item.copies - 1)
        self._probed_s = now_s
        if self._stalled_s is None:
            self._stalled_s = now_s

    def acknowledged(self, item: Item, epoch: int, now_s: float) -> None:
        """An ack came, from a leader of this epoch."""
        if item.sent_s is not None and item.copies == 1:
            self._latency_s += (now_s - item.sent_s - self._latency_s) / 8
        # Of several copies the first one may have been meant, unless its leader is gone.
        is_last = item.copies == 1 or epoch > self._epoch >= 0
        reached_s = item.sent_s if is_last else item.first_sent_s
        if reached_s is not None:
            self._reached_s = max(self._reached_s, reached_s)
        if epoch > self._epoch >= 0:
            self._put_back_older()
        self._epoch = max(self._epoch, epoch)
        self.answered(now_s)
        self.leave(item)

    def answered(self, now_s: float) -> None:
        """Somebody is there who decides on what is sent, whatever the answer was."""
        self._heard_s = now_s
        self._stalled_s = None

    def _put_back_older(self) -> None:
        """Another leader answers: what left before, it never got, or as good as never."""
        for item in self.items:
            if item.sent_s is not None and item.may_repeat and item.sent_s < self._reached_s:
                item.sent_s = None
                self._unsent += 1

    def leave(self, item: Item) -> None:
        """Its ack is not waited for any more."""
        if item in self.items:
            del self.items[item]
            if item.sent_s is None:
                self._unsent -= 1
        if not self.items:
            self._stalled_s = None

    def due(self, now_s: float) -> list[Item]:
        """What is to be sent now, in order."""
        if self._stalled_s is None and self._is_silent(now_s):
            self._stalled_s = now_s
        if self._stalled_s is not None:
            return self._probe(now_s)
        lost = list(self._lost(now_s))
        if self._unsent:
            lost += [item for item in self.items if item.sent_s is None and item.is_sendable]
        return lost

    @property
    def _silence_s(self) -> float:
        return min(max(2 * self._latency_s, _SILENCE_S_MIN), _SILENCE_S_MAX)

    def _is_silent(self, now_s: float) -> bool:
        for item in self.items:
            if item.sent_s is not None and item.may_repeat and not self._is_straggler(item):
                return now_s - max(item.sent_s, self._heard_s) >= self._silence_s
        return False

    def _is_straggler(self, item: Item) -> bool:
        """Whether others are answered and this one is not, however often it is sent."""
        return item.overtaken >= _OVERTAKEN_MAX or (item.copies >= _COPIES_MAX and self._heard_s > item.repeated_s)

    def _probe(self, now_s: float) -> list[Item]:
        if now_s - self._probed_s < _PROBE_S:
            return []
        assert self._stalled_s is not None
        sendable = (item for item in self.items if item.is_sendable)
        if now_s - self._stalled_s < _HOLD_S:
            probe = min(sendable, key=self._is_straggler, default=None)
        else:
            probe = min(sendable, key=lambda item: item.sent_s or float("-inf"), default=None)
        return [] if probe is None else [probe]

    def _lost(self, now_s: float) -> Iterator[Item]:
        """What was overtaken, or waits for too long; those that left last are at the end, and need no look."""
        for item in self.items:
            if item.sent_s is None or not item.may_repeat:
                continue
            age_s = now_s - item.sent_s
            if age_s >= item.patience_s:
                self._impatient_s = now_s
                yield item
            elif item.sent_s < self._reached_s and item.overtaken < _OVERTAKEN_MAX:
                if age_s >= self._silence_s:
                    item.overtaken += 1
                    yield item
            elif not item.overtaken:
                break
