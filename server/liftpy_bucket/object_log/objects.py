"""The objects of an object log, by number and by sequence, through a cache; they never change.

Most objects are small, so the first bytes of one are asked for as many at a time, and mostly are all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import ObjectCorruptError, ObjectMissingError
from liftpy_bucket.object_log.cache import ObjectCache
from liftpy_bucket.object_log.end import find_last
from liftpy_bucket.object_log.format import LogObject, ObjectHead, decode_head, decode_object

if TYPE_CHECKING:
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["LogObjects"]

_FRONT_BYTES: Final = 64 << 10


class LogObjects:
    """The objects of one log, through a cache.

    Args:
        store: Object store.
        prefix: Prefix of the keys, with a slash behind it.
        cache_bytes: Maximum bytes of objects that are kept in memory.
    """

    def __init__(self, store: ObjectStore, prefix: str, cache_bytes: int) -> None:
        self._store = store
        self._prefix = prefix
        self._cache = ObjectCache(cache_bytes)
        self._last_known = 0
        self._near: ObjectHead | None = None

    def key(self, number: int) -> str:
        """Key of the object with this number."""
        return f"{self._prefix}{number:020d}"

    def is_key(self, key: str) -> bool:
        """Whether it is that of an object."""
        return key.removeprefix(self._prefix).isdecimal()

    def note_exists(self, number: int) -> None:
        """An object is known to be there: the end is looked for from here."""
        self._last_known = max(self._last_known, number)

    def head(self, number: int) -> ObjectHead:
        """What an object is."""
        key = self.key(number)
        front = self._cache.get(key, lambda: self._store.get_range(key, 0, _FRONT_BYTES))
        head = decode_head(front, key)
        if head.number != number:
            raise ObjectCorruptError(key, f"it is object {head.number}")
        return head

    def whole(self, number: int) -> LogObject:
        """An object with its records, checked."""
        key = self.key(number)
        front = self._cache.get(key, lambda: self._store.get_range(key, 0, _FRONT_BYTES))
        if len(front) < _FRONT_BYTES:
            return decode_object(front, key, number)
        rest = max(1, decode_head(front, key).size - _FRONT_BYTES + 1)  # one more than there should be
        body = self._cache.get(f"{key} whole", lambda: front + self._store.get_range(key, _FRONT_BYTES, rest))
        return decode_object(body, key, number)

    def next_whole(self, number: int, sequence: int) -> LogObject | None:
        """An object that has a record; None where there is no such object.

        Raises:
            ObjectCorruptError: it is there and does not have the record.
        """
        try:
            whole = self.whole(number)
        except ObjectMissingError:
            return None
        if not whole.head.first <= sequence < whole.head.end:
            raise ObjectCorruptError(self.key(number), f"it should have record {sequence}")
        self._near = whole.head
        return whole

    def writer_of(self, number: int) -> str:
        """Who wrote an object, for a message."""
        try:
            return self.whole(number).writer
        except ObjectMissingError:
            return "unknown"  # it has been trimmed meanwhile

    def find_end(self, floor: int, floor_first: int, hint: int) -> tuple[int, int] | None:
        """Number and first sequence of the next object, or None where the first one is missing.

        Args:
            floor: Number of the first object.
            floor_first: Sequence of its first record.
            hint: The number of an object near the end, at least where records are appended one by one.
        """
        last = find_last(self._exists, floor, self._last_known or hint)
        if last is None:
            return None
        self.note_exists(last)
        try:
            head = self.head(last)
        except ObjectMissingError:
            return None  # trimmed since
        if head.first - floor_first < last - floor:
            raise ObjectCorruptError(self.key(last), f"record {head.first} can not stand so far behind the beginning")
        self._near = head
        return last + 1, head.end

    def _exists(self, number: int) -> bool:
        try:
            self._store.head(self.key(number))
        except ObjectMissingError:
            return False
        return True

    def locate(self, sequence: int, floor: int, floor_first: int) -> int | None:
        """The number of the object that has a record, or None where there is none.

        As every object has at least one record, the distance in sequences bounds that in numbers; where each has
        exactly one, the first guess is right.
        """
        near = self._near
        low, low_first, high = floor, floor_first, floor + sequence - floor_first
        if near is not None and near.number >= floor:
            if near.first <= sequence < near.end and self._is_there(near.number):
                return near.number
            if sequence >= near.end:
                low, low_first = near.number + 1, near.end
                high = low + sequence - near.end
            elif sequence < near.first:
                low = max(low, near.number - (near.first - sequence))
                high = min(high, near.number - 1)
        guess = low if sequence == low_first else high
        while low <= high:
            try:
                head = self.head(guess)
            except ObjectMissingError:
                high = guess - 1
            else:
                if head.first <= sequence < head.end:
                    self._near = head
                    return guess
                if sequence < head.first:
                    high = guess - 1
                else:
                    low = guess + 1
                    high = min(high, low + sequence - head.end)
            guess = (low + high) // 2
        return None

    def _is_there(self, number: int) -> bool:
        """It was there; a cached copy is as good as the object."""
        try:
            self.head(number)
        except ObjectMissingError:
            return False
        return True
