"""Sparse indexes of one segment: offset to position, and time to offset.

    <base>.index       magic u32 | version u32 | base_offset i64 | entries_crc32c u32 | 4 pad
                       entries: relative_offset u32, position u32
    <base>.timeindex   the same head; entries: max_timestamp i64 (ns), relative_offset u32

One entry per `INDEX_INTERVAL_BYTES` or so of the segment, for the batch that begins there; `max_timestamp` is that
of the segment up to the end of that batch. Little-endian. Both files are caches: one that is missing, damaged or of
another version is rebuilt from the segment.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

import google_crc32c

__all__ = ["OFFSET_SUFFIX", "TIME_SUFFIX", "SegmentIndex"]

OFFSET_SUFFIX: Final = ".index"
TIME_SUFFIX: Final = ".timeindex"

_VERSION: Final = 1
_HEAD: Final = struct.Struct("<IIqI4x")
_OFFSET_MAGIC: Final = 0x4958464C
_TIME_MAGIC: Final = 0x5449464C
_TIME_ENTRY: Final = struct.Struct("<qI")


class SegmentIndex:
    """The entries of both indexes, side by side in memory."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._offsets = array("I")
        self._positions = array("I")
        self._times = array("q")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, position: int, max_timestamp: int) -> None:
        """Add an entry for the batch at `offset`, which begins at `position`."""
        assert not self._positions or position > self._positions[-1]
        self._offsets.append(offset - self.base_offset)
        self._positions.append(position)
        self._times.append(max_timestamp)

    def floor(self, offset: int) -> tuple[int, int]:
        """(offset, position) of the last entry at or before `offset`; the segment's beginning when there is none."""
        return self._entry(bisect_right(self._offsets, offset - self.base_offset) - 1)

    def floor_position(self, position: int) -> tuple[int, int]:
        """(offset, position) of the last entry at or before `position`; the segment's beginning when there is none."""
        return self._entry(bisect_right(self._positions, position) - 1)

    def before_time(self, timestamp: int) -> tuple[int, int]:
        """(offset, position) of the last entry whose records are all before `timestamp`."""
        return self._entry(bisect_left(self._times, timestamp) - 1)

    def last(self) -> tuple[int, int]:
        """(offset, position) of the last entry; the segment's beginning when there is none."""
        return self._entry(len(self._offsets) - 1)

    def _entry(self, index: int) -> tuple[int, int]:
        if index < 0:
            return self.base_offset, 0
        return self.base_offset + self._offsets[index], self._positions[index]

    def keep_before(self, position: int) -> None:
        """Drop the entries at or after `position`."""
        kept = bisect_left(self._positions, position)
        del self._offsets[kept:], self._positions[kept:], self._times[kept:]

    def encode(self) -> tuple[bytes, bytes]:
        """The contents of the offset index file and of the time index file."""
        pairs = array("I", bytes(8 * len(self._offsets)))
        pairs[0::2], pairs[1::2] = self._offsets, self._positions
        times = b"".join(map(_TIME_ENTRY.pack, self._times, self._offsets))
        return self._seal(_OFFSET_MAGIC, pairs.tobytes()), self._seal(_TIME_MAGIC, times)

    def _seal(self, magic: int, entries: bytes) -> bytes:
        return _HEAD.pack(magic, _VERSION, self.base_offset, google_crc32c.value(entries)) + entries

    @classmethod
    def decode(cls, base_offset: int, offsets: bytes, times: bytes) -> SegmentIndex | None:
        """Read both files; None when they are not what `encode` wrote for this segment."""
        pairs, moments = _open(_OFFSET_MAGIC, base_offset, offsets), _open(_TIME_MAGIC, base_offset, times)
        if pairs is None or moments is None or len(pairs) // 8 != len(moments) // _TIME_ENTRY.size:
            return None
        index = cls(base_offset)
        numbers = array("I", pairs)
        index._offsets, index._positions = numbers[0::2], numbers[1::2]
        index._times = array("q", (time for time, _ in _TIME_ENTRY.iter_unpack(moments)))
        of_times = array("I", (offset for _, offset in _TIME_ENTRY.iter_unpack(moments)))
        return index if of_times == index._offsets else None  # a crash may keep an old file beside a new one


def _open(magic: int, base_offset: int, content: bytes) -> bytes | None:
    if len(content) < _HEAD.size:
        return None
    entries = content[_HEAD.size :]
    head = (magic, _VERSION, base_offset, google_crc32c.value(entries))
    return entries if _HEAD.unpack_from(content) == head else None
