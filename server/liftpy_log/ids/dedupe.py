"""The deduplication window of one partition: which ids were stored lately, and where.

A pure function of the log: an id is remembered while its record is at most `window_ns` older than the newest record
(and up to a 128th of that longer), and at most the newest `ids_max` ids are. So a leader, a follower and a node that
reads its log again remember the same. Times are those of `LogTime.age_time`, so no wall clock makes an id old. Two
things make the window shorter than that, and `is_shortened` says so: records that were cut off, for whose sake older
ids were forgotten; and the memory that all windows of a node share.

Of ordered producers more is remembered, and for longer; see `ordered`.

Ids are hashed and kept in tables, the newest in the last one; see `table`. Every id has a number, one more than that
of the id before it, and those from `_start` on are remembered: to forget an id is to count on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_log.ids.ordered import OrderedId, OrderedProducers
from liftpy_log.ids.table import DedupeId, HashedIds, IdTable, has_any, hash_id, hash_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import numpy.typing as npt

__all__ = ["DedupeId", "DedupeMemory", "DedupeWindow", "HashedIds", "Stored", "hash_id", "hash_ids"]

_MARKS_PER_WINDOW: Final = 128
_JOINED_MAX: Final = 20_000  # ids, in some milliseconds


class Stored(NamedTuple):
    """Where the original of a duplicate is: offset of its last record, and how many records it has."""

    offset: int
    records: int


class DedupeMemory:
    """What all windows of a node may take.

    A window that wants more when all is taken forgets its own oldest ids instead, unless it has less than its share.
    So all of them together take at most twice of it.

    Args:
        bytes_max: Memory for all windows, bytes.

    Attributes:
        size_bytes: What they take.
        windows: How many of them take anything.
    """

    def __init__(self, bytes_max: int = 2**30) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.windows = 0

    def has_room(self, size: int, held: int) -> bool:
        """Whether a window that takes `held` bytes may take `size` more."""
        return self.size_bytes + size <= self.bytes_max or (held + size) * max(1, self.windows) <= self.bytes_max


class _Mark:
    """Where the ids of a short span of time begin.

    Attributes:
        span: When it begins.
        number: Number of its first id.
        last: Time of the newest record whose id is in it.
    """

    __slots__ = ("last", "number", "span")

    def __init__(self, span: int, number: int, last: int) -> None:
        self.span = span
        self.number = number
        self.last = last


class DedupeWindow:
    """The ids that one partition remembers.

    Args:
        window_ns: How much older than the newest record an id may be.
        ids_max: How many ids are remembered; 0 turns deduplication off.
        memory: What all windows of the node share.

    Attributes:
        end_offset: The ids of all records below it went through here, and none of a record from there on.
        ordered: The ordered producers.
    """

    def __init__(self, window_ns: int, ids_max: int, memory: DedupeMemory | None = None) -> None:
        self.window_ns = window_ns
        self.ids_max = ids_max if window_ns else 0
        self.end_offset = 0
        self.ordered = OrderedProducers()
        self._memory = memory or DedupeMemory()
        self._tables: list[IdTable] = []
        self._marks: deque[_Mark] = deque()
        self._start = 0
        self._forgotten_at: int | None = None  # time of the newest id that was forgotten

    def __len__(self) -> int:
        return self._end - self._start

    @property
    def _end(self) -> int:
        return self._tables[-1].end if self._tables else self._start

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return sum(table.size_bytes for table in self._tables)

    @property
    def reach_ns(self) -> int:
        """How much older than the newest record the oldest may be whose id is remembered."""
        return self.window_ns + self._span_ns

    def find(self, key: DedupeId | OrderedId) -> Stored | None:
        """Where the record with this id is; None when it is not remembered.

        Of an ordered producer it is the highest batch, if that makes this one a duplicate.
        """
        if isinstance(key, OrderedId):
            batch = self.ordered.find(key)
            return None if batch is None else Stored(batch.offset, batch.records)
        (first,), (second,) = hash_id(key)
        for table in reversed(self._tables):
            found = table.find(int(first), int(second))
            if found is not None:
                return Stored(*table.place(found))
        return None

    def are_new(self, ids: HashedIds, now: int) -> bool:
        """Whether none of these is remembered."""
        self.expire(now)
        return not has_any(self._tables, ids)

    def expire(self, now: int) -> None:
        """Forget ids whose record is more than the window older than `now`."""
        horizon = self._span(now - self.window_ns)
        if not self._marks or self._marks[0].span >= horizon:
            return
        while self._marks and self._marks[0].span < horizon:
            self._forgotten_at = self._marks.popleft().last
        self._forget(self._marks[0].number if self._marks else self._end)

    @property
    def _span_ns(self) -> int:
        return max(1, self.window_ns // _MARKS_PER_WINDOW)

    def _span(self, time: int) -> int:
        return time - time % self._span_ns

    def _forget(self, number: int) -> None:
        """Forget the ids below a number."""
        self._start = max(self._start, number)
        while self._tables and self._tables[0].end <= self._start:
            self._drop(0)
        if self._tables:
            self._tables[0].least = max(0, self._start - self._tables[0].number)

    def _drop(self, index: int) -> None:
        self._memory.size_bytes -= self._tables.pop(index).size_bytes
        self._memory.windows -= not self._tables

    def _shorten(self, number: int) -> None:
        """Forget the ids below a number, although they are not too old."""
        if number <= self._start:
            return
        while self._marks and self._marks[0].number < number:
            self._forgotten_at = self._marks[0].last
            if number < (self._marks[1].number if len(self._marks) > 1 else self._end):
                self._marks[0].number = number
            else:
                self._marks.popleft()
        self._forget(number)

    def add(
        self,
        timestamp: int,
        ids: HashedIds,
        offsets: Sequence[int] | npt.NDArray[np.int64],
        *,
        records: int = 1,
    ) -> None:
        """Remember the ids of a batch that was stored at `timestamp`.

        What is remembered of records at its place, or behind it, was never stored, and is forgotten.

        Args:
            timestamp: Not before that of the batch before.
            ids: Ids of the batch, at least one.
            offsets: Where their records are, ascending.
            records: Number of records that each id stands for.
        """
        if not self.ids_max:
            self._forgotten_at = timestamp
            return
        if self._tables and self._tables[-1].newest >= offsets[0]:
            self.truncate(int(offsets[0]))
        self.expire(timestamp)
        self._mark(timestamp)
        done, count = 0, len(ids.first)
        while done < count:
            table = self._roomy()
            part = min(table.room, count - done)
            table.add(ids.part(done, done + part), offsets[done : done + part], records)
            done += part
        self._shorten(self._end - self.ids_max)

    def _mark(self, timestamp: int) -> None:
        span = self._span(timestamp)
        if self._marks and self._marks[-1].span >= span:
            self._marks[-1].last = timestamp
        else:
            self._marks.append(_Mark(span, self._end, timestamp))

    def _roomy(self) -> IdTable:
        """The newest table if it has room, or another, for as many ids as are remembered now."""
        if self._tables and self._tables[-1].room:
            return self._tables[-1]
        table = IdTable(self._end, min(len(self) + 1, self.ids_max))
        if not self._memory.has_room(table.size_bytes, self.size_bytes):
            table = IdTable(self._end, len(self) // 4)  # so that a quarter or so is forgotten at once, not all
        while self._tables and not self._memory.has_room(table.size_bytes, self.size_bytes):
            self._shorten(self._tables[0].end)
        if not self._memory.has_room(table.size_bytes, 0):
            table = IdTable(table.number, 0)
        if len(self) <= _JOINED_MAX and len(self) < table.room:
            self._join(table)
        self._memory.size_bytes += table.size_bytes
        self._memory.windows += not self._tables
        self._tables.append(table)
        return table

    def _join(self, table: IdTable) -> None:
        """Move the ids of all tables to another: few tables are quicker than many, and few ids are moved quickly."""
        table.number = self._start
        for other in self._tables:
            table.take(other)
        while self._tables:
            self._drop(0)

    def recall(self, older: Iterable[tuple[int, HashedIds, Sequence[int]]]) -> None:
        """Remember ids from before all that is remembered: the newest of them, as many as there is room for.

        Args:
            older: (timestamp, ids, offsets) of what was stored, oldest first; what is remembered is passed over.
        """
        before = DedupeWindow(self.window_ns, self.ids_max - len(self), self._memory)
        oldest = self._tables[0].oldest if self._tables else None
        for timestamp, ids, offsets in older:
            count = len(offsets) if oldest is None else bisect_left(offsets, oldest)
            if count:
                before.add(timestamp, ids.part(0, count), offsets[:count])
        count, shift = len(before), self._start - before._end
        for table in before._tables:
            table.number += shift
        self._memory.windows -= bool(self._tables and before._tables)
        self._tables[:0] = before._tables
        for mark in reversed(before._marks):
            self._marks.appendleft(_Mark(mark.span, mark.number + shift, mark.last))
        self._start -= count
        if before._forgotten_at is not None:
            self._forgotten_at = max(self._forgotten_at or 0, before._forgotten_at)

    def truncate(self, end_offset: int) -> None:
        """Forget the ids of records from `end_offset` on, where a batch begins.

        What was forgotten for their sake stays forgotten.
        """
        self.ordered.truncate(end_offset)
        self.end_offset = min(self.end_offset, end_offset)
        while self._tables:
            newest = self._tables[-1]
            newest.truncate(end_offset)
            if newest.count and newest.end > self._start:
                break
            self._drop(-1)
        end = self._end
        while self._marks and self._marks[-1].number >= end:
            self._marks.pop()

    def clear(self, end_offset: int) -> None:
        """Forget everything: the log begins anew at `end_offset`."""
        self.truncate(0)
        self.ordered.clear(end_offset)
        self._forgotten_at = None
        self.end_offset = end_offset

    def resize(self, window_ns: int, ids_max: int) -> None:
        """Change the limits; what is over them now goes with the next batch."""
        self.window_ns = window_ns
        self.ids_max = ids_max if window_ns else 0

    def is_shortened(self, now: int) -> bool:
        """Whether ids younger than the window had to be forgotten."""
        return self._forgotten_at is not None and self._forgotten_at >= now - self.window_ns

    def known_ns(self, now: int) -> int:
        """How old a record may be whose id is surely remembered: the window, or less where it is shortened."""
        if self._forgotten_at is None or not self.is_shortened(now):
            return self.window_ns
        return max(0, now - self._forgotten_at)
