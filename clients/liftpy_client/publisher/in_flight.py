"""The queue of requests in flight to one partition: it decides when a request without an ack is sent again.

It does no I/O, and gets the time as `now_s`. A leader that dies takes unanswered requests with it, and its successor
does not announce itself. So a queue is in one of two states:

    flowing   A request is sent when it is added. It is sent again when a later request was acknowledged before it
              (it was overtaken, and counts as lost), or when its retry deadline is over.
    stalled   No ack came for a while, a request was refused, or no node listened. New requests are held back. One
              request, the oldest, is sent again and again as a probe. Its ack ends the stall. Then lost requests and
              held requests are sent in their order.

So a slow leader gets a few probes instead of a copy of everything, and messages that are published while there is no
leader are stored in the order in which they were published.

A request that must not be stored twice, because its stream keeps no ids, is sent again only when no node can have
stored it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["InFlightQueue", "InFlightRequest"]

_SILENCE_S_MIN: Final = 0.25
_SILENCE_S_MAX: Final = 1.0
_PROBE_S: Final = 0.15
_HOLD_S: Final = 3.0  # longer than a failover: by then the oldest may never be answered
_OVERTAKEN_MAX: Final = 2
_COPIES_MAX: Final = 3


class InFlightRequest:
    """A request that has no ack yet.

    Attributes:
        retry_after_s: Retry deadline: seconds without an ack after which it is sent again in any case.
        may_repeat: Whether it is stored once, however often it is sent.
        sent_s: Time at which it was sent last. None while it waits to be sent.
        copies: Number of copies that were sent and may be stored.
    """

    __slots__ = ("copies", "first_sent_s", "may_repeat", "overtaken", "repeated_s", "retry_after_s", "sent_s")

    def __init__(self, retry_after_s: float, *, may_repeat: bool) -> None:
        self.retry_after_s = retry_after_s
        self.may_repeat = may_repeat
        self.sent_s: float | None = None
        self.first_sent_s = 0.0
        self.repeated_s = float("inf")  # when it was sent for the second time
        self.copies = 0
        self.overtaken = 0

    @property
    def is_sendable(self) -> bool:
        """Whether sending it (again) cannot store it twice."""
        return self.may_repeat or not self.copies


Item = TypeVar("Item", bound=InFlightRequest)


class InFlightQueue(Generic[Item]):
    """Requests to one partition that have no ack yet, and when to send each of them again.

    Attributes:
        items: Requests without an ack, in the order in which they were added.
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
        self._overdue_s = float("-inf")

    @property
    def is_stalled(self) -> bool:
        """Whether only the probe is sent."""
        return self._stalled_s is not None

    @property
    def has_held(self) -> bool:
        """Whether requests that were held back can be sent now."""
        return self._stalled_s is None and self._unsent > 0

    def is_in_trouble(self, now_s: float) -> bool:
        """Whether the stream may have been deleted or replaced."""
        return self.is_stalled or now_s - self._overdue_s < _SILENCE_S_MIN

    def is_idle(self, now_s: float, for_s: float) -> bool:
        """Whether it has been empty for `for_s` seconds."""
        return not self.items and now_s - self._heard_s >= for_s

    def add(self, item: Item, now_s: float) -> bool:
        """Add a request. Return whether to send it now; otherwise `due` returns it when it is time."""
        if not self.items:
            self._heard_s = max(self._heard_s, now_s)
        at_once = self._stalled_s is None and not self._unsent
        self.items[item] = None
        self._unsent += 1
        return at_once

    def sent(self, item: Item, now_s: float) -> None:
        """Note that a request is being sent."""
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
        """Send a request again later, because it was refused or no node listened.

        Args:
            item: The request.
            now_s: The time.
            is_stored: False when the copy is known not to be stored; None when that is unknown.
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
        """Remove a request that a leader of this epoch acknowledged."""
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
        self.remove(item)

    def answered(self, now_s: float) -> None:
        """End a stall: a leader answered, whatever it said."""
        self._heard_s = now_s
        self._stalled_s = None

    def _put_back_older(self) -> None:
        """Send older requests again: another leader answers, and hardly got what was sent before."""
        for item in self.items:
            if item.sent_s is not None and item.may_repeat and item.sent_s < self._reached_s:
                item.sent_s = None
                self._unsent += 1

    def remove(self, item: Item) -> None:
        """Remove a request: its ack is not awaited any more."""
        if item in self.items:
            del self.items[item]
            if item.sent_s is None:
                self._unsent -= 1
        if not self.items:
            self._stalled_s = None

    def due(self, now_s: float) -> list[Item]:
        """Return the requests to send now, in order."""
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
        """Whether others are acknowledged and this one is not, however often it is sent."""
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
        """Requests that were overtaken or whose retry deadline is over. Those sent last stand at the end."""
        for item in self.items:
            if item.sent_s is None or not item.may_repeat:
                continue
            age_s = now_s - item.sent_s
            if age_s >= item.retry_after_s:
                self._overdue_s = now_s
                yield item
            elif item.sent_s < self._reached_s and item.overtaken < _OVERTAKEN_MAX:
                if age_s >= self._silence_s:
                    item.overtaken += 1
                    yield item
            elif not item.overtaken:
                break
