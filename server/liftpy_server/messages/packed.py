"""Byte strings one after the other in one buffer: what a column of a batch is, without an object per string."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from liftpy_envelope.ipc import ColumnBuffers

if TYPE_CHECKING:
    import numpy.typing as npt

    from liftpy_envelope.ipc import BufferLike

__all__ = ["PackedColumn", "strided"]


def strided(data: BufferLike | bytearray, start: int, step_bytes: int, count: int, width: int) -> npt.NDArray[np.void]:
    """Views of `width` bytes each, more than none, at `start` and every `step_bytes` further.

    An element is a whole string, so that copying them is a `memcpy` per string and not a step per byte.
    """
    return np.ndarray((count,), _void(width), data, start, (step_bytes,))


@lru_cache(maxsize=1_024)
def _void(width: int) -> np.dtype[np.void]:
    return np.dtype((np.void, width))


class PackedColumn(NamedTuple):
    """A column of byte strings in one piece of memory.

    Attributes:
        offsets: Where the strings begin in `data`; one entry more than there are strings.
        data: The strings, and maybe others around them.
        width: Size of every string, when that is known to be the same for all.
    """

    offsets: npt.NDArray[np.int32]
    data: pa.Buffer
    width: int | None = None

    @classmethod
    def of_equal(cls, data: BufferLike, width: int, count: int) -> PackedColumn:
        """The column of `count` strings of `width` bytes each, which are all of `data`."""
        return cls(_edges(width, count), pa.py_buffer(data), width)

    @classmethod
    def of_array(cls, array: pa.BinaryArray) -> PackedColumn:
        """The values of an array that begins where its buffers do, and has no nulls."""
        _, offsets, data = array.buffers()
        return cls(np.frombuffer(offsets, np.int32)[: len(array) + 1], pa.py_buffer(b"" if data is None else data))

    def cut(self, first: int, last: int, skip: int = 0) -> ColumnBuffers:
        """The buffers of a column with the strings from `first` up to `last`, each without its first `skip` bytes."""
        if skip:
            return self._cut_without_heads(first, last, skip)
        start, end = int(self.offsets[first]), int(self.offsets[last])
        offsets = self.offsets[first : last + 1]
        if start:
            offsets = offsets - np.int32(start)
        return ColumnBuffers(0, (b"", offsets.tobytes(), self.data.slice(start, end - start)))

    def _cut_without_heads(self, first: int, last: int, skip: int) -> ColumnBuffers:
        count = last - first
        if self.width is not None and self.width > skip:
            width = self.width - skip
            rests = strided(self.data, int(self.offsets[first]) + skip, self.width, count, width)
            return ColumnBuffers(0, (b"", _edges(width, count).tobytes(), rests.tobytes()))
        # Heads and rests alternate, and every other one is wanted.
        edges = np.empty(2 * count + 1, np.int32)
        edges[::2] = self.offsets[first : last + 1]
        np.minimum(edges[:-1:2] + np.int32(skip), edges[2::2], out=edges[1::2])
        both = pa.BinaryArray.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), self.data])
        rests = both.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32)))
        return PackedColumn.of_array(rests).cut(0, count)

    def repeated(self, first: int, last: int) -> bytes | None:
        """The string that all from `first` up to `last` are; None when they differ or may differ in size."""
        if self.width is None:
            return None
        start, count = int(self.offsets[first]), last - first
        string: bytes = self.data.slice(start, self.width).to_pybytes()
        return string if self.data.slice(start, self.width * count).equals(pa.py_buffer(string * count)) else None

    def take(self, first: int, last: int, order: npt.NDArray[np.int32]) -> PackedColumn:
        """The strings from `first` up to `last` in another order, given by their numbers counted from `first`."""
        if self.width:
            strings = strided(self.data, int(self.offsets[first]), self.width, last - first, self.width)
            return PackedColumn.of_equal(strings[order].tobytes(), self.width, len(order))
        return PackedColumn.of_array(self.array(first, last).take(pa.array(order)))

    def array(self, first: int, last: int) -> pa.BinaryArray:
        """The strings from `first` up to `last` as an Arrow array; shares memory."""
        offsets = self.offsets[first : last + 1]
        return pa.BinaryArray.from_buffers(pa.binary(), last - first, [None, pa.py_buffer(offsets), self.data])

    def slice(self, first: int, last: int) -> PackedColumn:
        """The strings from `first` up to `last`; shares memory."""
        return PackedColumn(self.offsets[first : last + 1], self.data, self.width)

    def strings(self, first: int, last: int) -> list[bytes]:
        """One object per string."""
        edges = self.offsets[first : last + 1].tolist()
        data = self.data.slice(edges[0], edges[-1] - edges[0]).to_pybytes()
        origin = edges[0]
        return [data[start - origin : end - origin] for start, end in pairwise(edges)]


def _edges(width: int, count: int) -> npt.NDArray[np.int32]:
    if not width:
        return np.zeros(count + 1, np.int32)
    return np.arange(0, width * count + 1, width, dtype=np.int32)
