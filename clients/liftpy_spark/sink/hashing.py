"""The partitions of many keys at once: what `partition_of` says of each, computed by numpy over columns of bytes.

CRC-32C, two bytes at a time: the state after two bytes is a table's entry at its low sixteen bits, mixed with the two
bytes, exclusive-or the rest of it. Keys of one length go through that together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np

from liftpy_envelope.binary_columns import offsets_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["checksums", "partitions_of"]

_POLYNOMIAL: Final = 0x82F63B78  # of Castagnoli, its bits reversed
_ONES: Final = 0xFFFFFFFF
_COLUMNWISE_BYTES_MAX: Final = 64  # a longer key is worth a call of its own
_ROWS_AT_ONCE: Final = 16_384  # so that what is computed stays in the cache


def _table(bits: int) -> npt.NDArray[np.uint32]:
    """What becomes of every state of so many bits when that many zeros have gone through it."""
    states = np.arange(1 << bits, dtype=np.uint32)
    for _ in range(bits):
        states = (states >> np.uint32(1)) ^ (np.uint32(_POLYNOMIAL) * (states & np.uint32(1)))
    return states


_AFTER_BYTE: Final = _table(8)
_AFTER_PAIR: Final = _table(16)


def partitions_of(keys: pa.BinaryArray, partition_count: int) -> npt.NDArray[np.int32]:
    """The partition of each key as `liftpy_envelope.partitioner.partition_of` gives it; -1 where there is no key."""
    partitions = (checksums(keys) % np.uint32(partition_count)).astype(np.int32)
    if keys.null_count:
        partitions[keys.is_null().to_numpy(zero_copy_only=False)] = -1
    return partitions


def checksums(keys: pa.BinaryArray) -> npt.NDArray[np.uint32]:
    """The CRC-32C of each key; that of nothing where there is none."""
    sums = np.zeros(len(keys), np.uint32)
    data_buffer = keys.buffers()[2]
    if not len(keys) or data_buffer is None:
        return sums
    data, offsets = np.frombuffer(data_buffer, np.uint8), offsets_of(keys)
    lengths = np.diff(offsets)
    length = int(lengths[0])
    if length <= _COLUMNWISE_BYTES_MAX and (lengths == length).all():
        strings = data[offsets[0] : offsets[-1]].reshape(len(keys), length)
        for first in range(0, len(keys), _ROWS_AT_ONCE):
            some = slice(first, first + _ROWS_AT_ONCE)
            sums[some] = _checksums_of_one_length(strings[some])
        return sums
    return _checksums_of_many_lengths(data, offsets.astype(np.int64), lengths)


def _checksums_of_many_lengths(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]
) -> npt.NDArray[np.uint32]:
    """The checksums of keys that are scattered by length; those of one length are gathered."""
    sums = np.zeros(len(lengths), np.uint32)
    starts = offsets[:-1]
    long = np.flatnonzero(lengths > _COLUMNWISE_BYTES_MAX)
    if len(long):
        checksum = google_crc32c.value
        whole = data[starts[0] : offsets[-1]].tobytes()  # slices of bytes cost a third of numpy's
        begins, ends = ((places - starts[0]).tolist() for places in (starts[long], offsets[long + 1]))
        sums[long] = [checksum(whole[start:end]) for start, end in zip(begins, ends, strict=True)]
    counts = np.bincount(lengths[lengths <= _COLUMNWISE_BYTES_MAX])
    for length in np.flatnonzero(counts).tolist():
        rows = np.flatnonzero(lengths == length)
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            some = rows[first : first + _ROWS_AT_ONCE]
            sums[some] = _checksums_of_one_length(data[starts[some, None] + np.arange(length)])
    return sums


def _checksums_of_one_length(keys: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """The checksums of keys of one length, a row for each."""
    states = np.full(len(keys), _ONES, np.uint32)
    paired = keys.shape[1] & ~1
    for pair in np.ascontiguousarray(keys[:, :paired]).view("<u2").T:
        states = _AFTER_PAIR[(states ^ pair) & np.uint32(0xFFFF)] ^ (states >> np.uint32(16))
    if paired < keys.shape[1]:
        states = _AFTER_BYTE[(states ^ keys[:, -1]) & np.uint32(0xFF)] ^ (states >> np.uint32(8))
    return states ^ np.uint32(_ONES)
