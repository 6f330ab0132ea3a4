"""Hashes of message ids, and where their records are, in arrays: no Python object for any of them.

A table has room for a fixed number of ids and never grows, so no add takes longer than another; `dedupe` begins a new
table when one is full, and drops it whole when the last of its ids is forgotten. 96 bits of hash stand for an id. A
false duplicate is a lost message: with 6 million ids remembered its probability is 2^-73 for a message. The hashes are
Python's own of bytes (SipHash, with a secret key of the process), over the id, and over the id with a byte behind it.
They mean nothing to another process, and are never stored.

A bucket has eight slots, of a tag of 16 bits and the number of an id each, and is filled in order; the few ids that
find their bucket full are kept in a dict. A look-up of many ids reads the tags of their buckets at once, and nearly
always finds no tag: then the ids are new. Only where a tag is there the hashes are compared, one id at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["DedupeId", "HashedIds", "IdTable", "has_any", "hash_id", "hash_ids"]

DedupeId = bytes | tuple[bytes, int]
"""A message id, or a producer's id with a sequence; the two can not be mistaken for each other."""

_WAYS: Final = 8
_IDS_PER_BUCKET: Final = 4  # on average in a table that is full: one id in a hundred finds its bucket full until then
_BUCKETS_MIN: Final = 16
_BUCKETS_MAX: Final = 2**18
_FEW: Final = 32  # for fewer ids a loop is quicker than numpy
_MESSAGE: Final = b"m"
_PRODUCER: Final = b"p"
_ONES: Final = np.uint64(0x0001_0001_0001_0001)
_TOPS: Final = np.uint64(0x8000_8000_8000_8000)
_FULL: Final = np.uint64(1 << 48)  # the second word of a bucket that is full is not below it


class HashedIds(NamedTuple):
    """Two hashes of each of some ids, of 64 bits and of 32: lists of a few, arrays of many."""

    first: list[int] | npt.NDArray[np.uint64]
    second: list[int] | npt.NDArray[np.uint32]

    def part(self, start: int, end: int) -> HashedIds:
        """A slice of the ids."""
        return HashedIds(self.first[start:end], self.second[start:end])


def hash_ids(keys: Sequence[bytes]) -> HashedIds:
    """The hashes of message ids."""
    longer = [key + _MESSAGE for key in keys]
    if len(keys) < _FEW:
        return HashedIds(
            [hash(key) & 0xFFFF_FFFF_FFFF_FFFF for key in keys], [hash(key) & 0xFFFF_FFFF for key in longer]
        )
    first, second = (np.fromiter(map(hash, each), np.int64, len(keys)).view(np.uint64) for each in (keys, longer))
    return HashedIds(first, second.astype(np.uint32))


def hash_id(key: DedupeId) -> HashedIds:
    """The hashes of one id."""
    if isinstance(key, bytes):
        return hash_ids([key])
    producer_id, sequence = key
    whole = producer_id + sequence.to_bytes(8, "little", signed=True)
    return HashedIds([hash(whole) & 0xFFFF_FFFF_FFFF_FFFF], [hash(whole + _PRODUCER) & 0xFFFF_FFFF])


class IdTable:
    """A table with room for a fixed number of ids.

    Ids are numbered from 0 on in the order in which they were added, which is that of their offsets.

    Args:
        number: What the owner calls the first id.
        ids: Number of ids that there is to be room for at least, up to 1,048,576.

    Attributes:
        number: What the owner calls the first id.
        count: How many ids there are.
        least: Ids below this number are not there, to whoever looks.
        others: Numbers by first hash, of ids whose bucket was full.
    """

    def __init__(self, number: int, ids: int) -> None:
        buckets = min(_BUCKETS_MAX, max(_BUCKETS_MIN, 1 << (-(-ids // _IDS_PER_BUCKET) - 1).bit_length()))
        self._capacity = buckets * _IDS_PER_BUCKET
        self._mask = buckets - 1
        self._words = np.zeros(buckets * 2, np.uint64)  # four tags each; 0 is no tag
        self._tags = self._words.view(np.uint16)
        self._numbers = np.empty(buckets * _WAYS, np.uint32)
        self._fill = np.zeros(buckets, np.uint8)
        self._firsts = np.empty(self._capacity, np.uint64)
        self._seconds = np.empty(self._capacity, np.uint32)
        self._offsets = np.empty(self._capacity, np.int64)
        self._records: npt.NDArray[np.int32] | None = None  # by id, once there is one that stands for several records
        # The same memory, for one id at a time.
        self._tag_at = self._tags.data
        self._number_at = self._numbers.data
        self._fill_at = self._fill.data
        self._first_at = self._firsts.data
        self._second_at = self._seconds.data
        self._offset_at = self._offsets.data
        self.others: dict[int, int] = {}
        self._taken = 0  # slots, also of ids that were cut since
        self.number = number
        self.count = 0
        self.least = 0

    @property
    def size_bytes(self) -> int:
        """What it takes in memory when it is full."""
        arrays = self._words, self._numbers, self._fill, self._firsts, self._seconds, self._offsets
        return sum(array.nbytes for array in arrays)

    @property
    def end(self) -> int:
        """What the owner calls the id after the last one."""
        return self.number + self.count

    @property
    def room(self) -> int:
        """Number of ids that still fit."""
        return self._capacity - self._taken

    @property
    def oldest(self) -> int:
        """Offset of the first id that is there; there must be one."""
        return int(self._offset_at[self.least])

    @property
    def newest(self) -> int:
        """Offset of the last id; there must be one."""
        return int(self._offset_at[self.count - 1])

    def place(self, number: int) -> tuple[int, int]:
        """Offset of an id, and for how many records it stands."""
        return self._offset_at[number], 1 if self._records is None else int(self._records[number])

    def find(self, first: int, second: int) -> int | None:
        """The number of an id, the newest if it is there more than once; None when it is not there."""
        bucket, tag, found = first & self._mask, first >> 48 or 1, None
        fill, start = self._fill_at[bucket], bucket * _WAYS
        row = self._tag_at[start : start + fill].tolist()
        if tag in row:
            numbers = (self._number_at[start + way] for way in range(fill) if row[way] == tag)
            found = max((number for number in numbers if self._is(number, first, second)), default=None)
        if fill == _WAYS and self.others:
            other = self.others.get(first)  # which is newer than what is in the bucket
            if other is not None and self._is(other, first, second):
                return other
        return found

    def _is(self, number: int, first: int, second: int) -> bool:
        return (
            self.least <= number < self.count and self._first_at[number] == first and self._second_at[number] == second
        )

    def read(self, first: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64]) -> None:
        """Read the tags of the buckets of some ids, four in each of two words."""
        words = (first & np.uint64(self._mask)).view(np.int64)
        words *= 2
        self._words.take(words, out=low, mode="clip")
        words += 1
        self._words.take(words, out=high, mode="clip")

    def _bucketed(self, first: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        return (first & np.uint64(self._mask)).view(np.int64), np.maximum(first >> np.uint64(48), np.uint64(1))

    def add(self, ids: HashedIds, offsets: Sequence[int] | npt.NDArray[np.int64], records: int = 1) -> None:
        """Add ids, for which there must be room.

        Args:
            ids: The ids.
            offsets: Where their records are, above all that were added before.
            records: Number of records that each id stands for.
        """
        first, second = ids
        start, end = self.count, self.count + len(first)
        if records != 1 and self._records is None:
            self._records = np.ones(self._capacity, np.int32)
        if self._records is not None:
            self._records[start:end] = records
        if isinstance(first, list):
            for number, each in enumerate(zip(first, second, offsets, strict=True), start):
                self._first_at[number], self._second_at[number], self._offset_at[number] = each
                self._put(each[0], number)
        else:
            if isinstance(offsets, range):
                offsets = np.arange(offsets.start, offsets.stop)
            self._firsts[start:end], self._seconds[start:end], self._offsets[start:end] = first, second, offsets
            self._put_many(first, start)
        self.count = end
        self._taken += end - start

    def take(self, other: IdTable) -> None:
        """Add the ids of another table, which come before all that are added later."""
        ids = slice(other.least, other.count)
        if other._records is not None:
            self._records = np.ones(self._capacity, np.int32) if self._records is None else self._records
            self._records[self.count : self.count + other.count - other.least] = other._records[ids]
        records, self._records = self._records, None
        self.add(HashedIds(other._firsts[ids], other._seconds[ids]), other._offsets[ids])
        self._records = records

    def _put(self, first: int, number: int) -> None:
        bucket = first & self._mask
        fill = self._fill_at[bucket]
        if fill == _WAYS:
            self.others[first] = number
            return
        at = bucket * _WAYS + fill
        self._tag_at[at] = first >> 48 or 1
        self._number_at[at] = number
        self._fill_at[bucket] = fill + 1

    def _put_many(self, first: npt.NDArray[np.uint64], start: int) -> None:
        buckets, tags = self._bucketed(first)
        numbers = np.arange(start, start + len(first), dtype=np.uint32)
        while len(buckets):
            fill = self._fill.take(buckets)
            full = fill == _WAYS
            if full.any():
                others = numbers[full].tolist()
                self.others.update(zip(first[[number - start for number in others]].tolist(), others, strict=True))
                left = np.flatnonzero(~full)
                buckets, tags, numbers, fill = buckets[left], tags[left], numbers[left], fill[left]
            at = buckets * _WAYS + fill
            self._numbers[at] = numbers  # of several that want the same slot one gets it
            is_put = self._numbers.take(at) == numbers
            if is_put.all():
                self._tags[at] = tags
                self._fill[buckets] = fill + 1
                return
            self._tags[at[is_put]] = tags[is_put]
            self._fill[buckets[is_put]] += 1
            left = np.flatnonzero(~is_put)
            buckets, tags, numbers = buckets[left], tags[left], numbers[left]

    def truncate(self, end_offset: int) -> None:
        """Forget the ids of records from `end_offset` on. Their slots stay taken."""
        self.count = int(np.searchsorted(self._offsets[: self.count], end_offset))


def has_any(tables: Sequence[IdTable], ids: HashedIds) -> bool:
    """Whether any of these ids is in any of the tables."""
    first, second = ids
    if isinstance(first, list):
        return any(table.find(*pair) is not None for pair in zip(first, second, strict=True) for table in tables)
    low, high = np.empty((2, len(tables), len(first)), np.uint64)
    for row, table in enumerate(tables):
        table.read(first, low[row], high[row])
    full = high >= _FULL
    wanted = np.maximum(first >> np.uint64(48), np.uint64(1)) * _ONES
    low ^= wanted
    high ^= wanted
    hits = (((low - _ONES) & ~low) | ((high - _ONES) & ~high)) & _TOPS  # not 0 where a tag is 0 now
    suspects = [divmod(place, len(first)) for place in np.flatnonzero(hits).tolist()]
    for place in np.flatnonzero(full).tolist():
        row, at = divmod(place, len(first))
        if int(first[at]) in tables[row].others:
            suspects.append((row, at))
    return any(tables[row].find(int(first[at]), int(second[at])) is not None for row, at in suspects)
