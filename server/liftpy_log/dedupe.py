"""The deduplication window of one partition: which ids were stored lately, and where.

A pure function of the log: an id is remembered while its record is at most `window_ns` older than the newest record,
and at most `ids_max` ids are. Building the window anew from the log gives the window that was there.

Who leads asks at every message, and adds the ids of what it stores. Who follows is never asked: it notes the ids of
each batch in the form in which they came, and they become entries of the window when somebody asks.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DedupeId", "DedupeWindow", "NotedIds", "Stored"]

DedupeId = bytes | tuple[bytes, int]
"""A message id, or a producer's id with a sequence; the two can not be mistaken for each other."""


class Stored(NamedTuple):
    """Where the original of a duplicate is: offset of its last record, and how many records it has."""

    offset: int
    records: int


class NotedIds(Protocol):
    """The ids of a batch, in whatever form they came.

    Attributes:
        base_offset: of the batch.
        count: how many ids there are, at least one.
    """

    base_offset: int
    count: int

    def stored(self) -> Sequence[tuple[DedupeId, int | Stored]]:
        """The ids and where their records are, as for `DedupeWindow.add`."""
        ...


class DedupeWindow:
    """Ids in the order in which they were stored.

    Args:
        window_ns: how much older than the newest record an id may be.
        ids_max: how many ids are remembered; 0 turns deduplication off.
    """

    def __init__(self, window_ns: int, ids_max: int) -> None:
        self.window_ns = window_ns
        self.ids_max = ids_max if window_ns else 0
        self._ids: dict[DedupeId, int | Stored] = {}
        self._order: deque[tuple[int, deque[DedupeId]]] = deque()
        self._noted: deque[tuple[int, NotedIds]] = deque()  # all younger than what is in `_order`
        self._noted_count = 0
        self._shortened_at: int | None = None

    def __len__(self) -> int:
        return min(self.ids_max, len(self._ids) + self._noted_count)

    def find(self, key: DedupeId) -> Stored | None:
        """Where the record with this id is; None when it is not remembered."""
        if self._noted:
            self._expand()
        found = self._ids.get(key)
        if found is None or isinstance(found, Stored):
            return found
        return Stored(found, 1)

    def are_new(self, keys: Sequence[DedupeId], now: int) -> bool:
        """Whether none of these is remembered, and no two are the same."""
        self.expire(now)
        if self._noted:
            self._expand()
        return self._ids.keys().isdisjoint(keys) and len(set(keys)) == len(keys)

    def expire(self, now: int) -> None:
        """Forget ids whose record is more than the window older than `now`."""
        horizon = now - self.window_ns
        while self._order and self._order[0][0] < horizon:
            for key in self._order.popleft()[1]:
                del self._ids[key]
        while self._noted and self._noted[0][0] < horizon:
            self._noted_count -= self._noted.popleft()[1].count

    def add(self, timestamp: int, stored: Sequence[tuple[DedupeId, int | Stored]]) -> None:
        """Remember the ids of a batch that was stored at `timestamp`; none of them is remembered already."""
        if not self.ids_max:
            return
        self.expire(timestamp)
        if self._noted:
            self._expand()
        self._remember(timestamp, stored)

    def recall(self, older: Sequence[tuple[int, Sequence[tuple[DedupeId, int | Stored]]]]) -> None:
        """Remember ids from before all that is remembered: the newest of them, as many as there is room for.

        Args:
            older: (timestamp, ids and places) of what was stored, oldest first.
        """
        if not self.ids_max:
            return
        if self._noted:
            self._expand()
        for timestamp, stored in reversed(older):
            keys: deque[DedupeId] = deque()
            for key, place in reversed(stored):
                if key in self._ids:
                    continue
                if len(self._ids) >= self.ids_max:
                    self._shortened_at = max(timestamp, self._shortened_at or 0)
                    break
                self._ids[key] = place
                keys.appendleft(key)
            if keys:
                self._order.appendleft((timestamp, keys))

    def note(self, timestamp: int, ids: NotedIds) -> None:
        """Remember the ids of a batch that was stored at `timestamp`, without a look at each."""
        if not self.ids_max:
            return
        self.expire(timestamp)
        self._noted.append((timestamp, ids))
        self._noted_count += ids.count
        self._shorten(self.ids_max - self._noted_count)
        while self._noted_count > self.ids_max:
            self._shortened_at, oldest = self._noted[0]
            if self._noted_count - oldest.count < self.ids_max:
                return  # some of these stay: which ones shows when somebody asks
            self._noted.popleft()
            self._noted_count -= oldest.count

    def truncate(self, end_offset: int) -> None:
        """Forget the ids of records from `end_offset` on, where a batch begins.

        What was forgotten for their sake stays forgotten.
        """
        while self._noted and self._noted[-1][1].base_offset >= end_offset:
            self._noted_count -= self._noted.pop()[1].count
        while self._order:
            place = self._ids[self._order[-1][1][-1]]
            if (place.offset if isinstance(place, Stored) else place) < end_offset:
                return
            for key in self._order.pop()[1]:
                del self._ids[key]

    def _expand(self) -> None:
        while self._noted:
            timestamp, ids = self._noted.popleft()
            self._noted_count -= ids.count
            self._remember(timestamp, ids.stored())

    def _remember(self, timestamp: int, stored: Sequence[tuple[DedupeId, int | Stored]]) -> None:
        keys: deque[DedupeId] = deque()
        for key, place in stored:
            if key not in self._ids:
                keys.append(key)
            self._ids[key] = place
        if keys:
            self._order.append((timestamp, keys))
        self._shorten(self.ids_max)

    def _shorten(self, ids_max: int) -> None:
        while self._order and len(self._ids) > ids_max:
            oldest_at, oldest = self._order[0]
            del self._ids[oldest.popleft()]
            self._shortened_at = oldest_at
            if not oldest:
                self._order.popleft()

    def resize(self, window_ns: int, ids_max: int) -> None:
        """Change the limits; what is over them now goes with the next batch."""
        self.window_ns = window_ns
        self.ids_max = ids_max if window_ns else 0

    def is_shortened(self, now: int) -> bool:
        """Whether ids younger than the window had to be forgotten because there were too many."""
        return self._shortened_at is not None and self._shortened_at >= now - self.window_ns
