"""The deduplication window of one partition: which ids were stored lately, and where.

A pure function of the log: an id is remembered while its record is at most `window_ns` older than the newest record,
and at most `ids_max` ids are. Building the window anew from the log gives the window that was there.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DedupeId", "DedupeWindow", "Stored"]

DedupeId = bytes | tuple[bytes, int]
"""A message id, or a producer's id with a sequence; the two can not be mistaken for each other."""


class Stored(NamedTuple):
    """Where the original of a duplicate is: offset of its last record, and how many records it has."""

    offset: int
    records: int


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
        self._shortened_at: int | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, key: DedupeId) -> Stored | None:
        """Where the record with this id is; None when it is not remembered."""
        found = self._ids.get(key)
        if found is None or isinstance(found, Stored):
            return found
        return Stored(found, 1)

    def are_new(self, keys: Sequence[DedupeId], now: int) -> bool:
        """Whether none of these is remembered, and no two are the same."""
        self.expire(now)
        return self._ids.keys().isdisjoint(keys) and len(set(keys)) == len(keys)

    def expire(self, now: int) -> None:
        """Forget ids whose record is more than the window older than `now`."""
        horizon = now - self.window_ns
        while self._order and self._order[0][0] < horizon:
            for key in self._order.popleft()[1]:
                del self._ids[key]

    def add(self, timestamp: int, stored: Sequence[tuple[DedupeId, int | Stored]]) -> None:
        """Remember the ids of a batch that was stored at `timestamp`; none of them is remembered already."""
        if not self.ids_max:
            return
        self.expire(timestamp)
        keys: deque[DedupeId] = deque()
        for key, place in stored:
            if key not in self._ids:
                keys.append(key)
            self._ids[key] = place
        if keys:
            self._order.append((timestamp, keys))
        while len(self._ids) > self.ids_max:
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
