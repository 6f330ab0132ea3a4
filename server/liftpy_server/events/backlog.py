"""The newest events that this node knows and may have to store, bounded.

Every node keeps them, not only the one that stores: when another node takes over the lead of `__activity`, it goes on
after the newest event of the log, with what is in its own backlog. So no event depends on the node that saw it first.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from liftpy_envelope.events import Position
from liftpy_server.events.derive import derive

if TYPE_CHECKING:
    from liftpy_envelope.events import Event
    from liftpy_server.metadata.state import MetadataState

__all__ = ["BACKLOG_MAX", "NOTHING", "Backlog"]

logger = logging.getLogger(__name__)

BACKLOG_MAX: Final = 20_000
NOTHING: Final = Position(0, 0)
_OF_NODES: Final = "node."


class Backlog:
    """See the module. `applied` is called on the consensus thread, everything else on the event loop.

    Args:
        limit: Number of events; the oldest are dropped beyond it.

    Attributes:
        dropped_to: The newest event that was dropped for want of room.
        unstored: How many were dropped since the newest one of which this node knows that it is stored.
        failures: Changes of which the events could not be found, by a fault of the program.
    """

    def __init__(self, limit: int = BACKLOG_MAX) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._events: deque[tuple[Position, Event]] = deque()
        self._is_worth_a_stream = False
        self.dropped_to = NOTHING
        self.unstored = 0
        self.failures = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def is_worth_a_stream(self) -> bool:
        """Whether anything but coming and going of nodes has happened: a cluster that forms needs no stream yet."""
        return self._is_worth_a_stream

    def applied(self, before: MetadataState, after: MetadataState, now_ns: int) -> None:
        """An entry of the metadata's log was applied. Never raises."""
        try:
            found = derive(before, after, now_ns)
        except Exception:
            self.failures += 1
            logger.exception("the events of revision %d of the metadata can not be told", after.revision)
            return
        if not found:
            return
        with self._lock:
            self._events.extend((Position(after.revision, number), event) for number, event in enumerate(found))
            self._is_worth_a_stream |= any(not event.kind.startswith(_OF_NODES) for event in found)
            while len(self._events) > self._limit:
                self.dropped_to = self._events.popleft()[0]
                self.unstored += 1

    def after(self, position: Position) -> list[tuple[Position, Event]]:
        """The events after this one, oldest first."""
        with self._lock:
            found = list(takewhile(lambda each: each[0] > position, reversed(self._events)))
        found.reverse()
        return found

    def stored(self, position: Position) -> None:
        """Events up to this one are stored: they need not be kept."""
        with self._lock:
            while self._events and self._events[0][0] <= position:
                self._events.popleft()
            if self.dropped_to <= position:
                self.unstored = 0
