"""What rows come to, whatever their order and their tasks: by it a batch is known again when it is executed again.

It is to notice a checkpoint that was rolled back or copied, and queries that are not deterministic; nobody is expected
to forge rows. So it is made of steps of Murmur, by numpy, eight bytes of all values at a time. The sums of the bucket,
a cryptographic hash for every record, would cost as much as all the rest of staging, and so would a CRC of every value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np
import pyarrow as pa

from liftpy_envelope.binary_columns import offsets_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

__all__ = ["RowTally", "total_of"]

_MASK: Final = (1 << 64) - 1
_COLUMNS: Final = ("value", "key", "headers")
_FACTORS: Final = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))  # of MurmurHash3
_SHIFT: Final = np.uint64(33)
_HALF: Final = np.uint64(32)
_WORD_BYTES: Final = 8
_TAIL_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(_WORD_BYTES)], np.uint64)
_BY_WORDS_BYTES_MAX: Final = 1024  # a longer value is worth a call of its own
_ROWS_AT_ONCE: Final = 8_192  # so that what is computed stays in the cache


class RowTally:
    """Sums up rows.

    Args:
        subject: Subject of rows that say none.

    Attributes:
        total: A sum of 64 bits over hashes of the rows.
    """

    def __init__(self, subject: str | None) -> None:
        self._subject = (subject or "").encode()
        self.total = 0

    def add(self, records: pa.RecordBatch) -> None:
        """Take rows with columns `value` and, where there are any, `key`, `headers`, `subject` (a dictionary)."""
        names = records.schema.names
        hashes = np.zeros(records.num_rows, np.uint64)
        for name in _COLUMNS:  # a column that is missing is one of nulls
            hashes = _mixed(hashes, _hashes(records.column(name)) if name in names else np.uint64(0))
        if "subject" in names:
            subjects = records.column("subject")
            of_values = _hashes(subjects.dictionary.cast(pa.binary()))[subjects.indices.to_numpy()]
        else:
            of_values = _hashes(pa.array([self._subject], pa.binary()))[0]
        hashes = _mixed(hashes, of_values)
        self.total = (self.total + int(hashes.sum(dtype=np.uint64))) & _MASK


def total_of(totals: Iterable[int]) -> int:
    """What the rows of several tallies come to."""
    return sum(totals) & _MASK


def _hashes(column: pa.BinaryArray) -> npt.NDArray[np.uint64]:
    """A hash of each value; 0 where there is none."""
    hashes = np.zeros(len(column), np.uint64)
    buffer = column.buffers()[2]
    data = np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
    offsets = offsets_of(column).astype(np.int64)
    for first in range(0, len(column), _ROWS_AT_ONCE):
        some = offsets[first : first + _ROWS_AT_ONCE + 1]
        begin, end = int(some[0]), int(some[-1])
        behind = data[end : end + _WORD_BYTES]  # a word that begins in a value may end behind it
        if len(behind) < _WORD_BYTES:
            values = np.concatenate((data[begin:end], np.zeros(_WORD_BYTES, np.uint8)))
        else:
            values = data[begin : end + _WORD_BYTES]
        hashes[first : first + _ROWS_AT_ONCE] = _hashes_of_some(values, some - begin)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


def _hashes_of_some(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Hashes of values that lie side by side; `data` has a word more than they need, since one begins at every byte."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashes = lengths.astype(np.uint64) + np.uint64(1)
    words: npt.NDArray[np.uint64] = np.ndarray(len(data) - _WORD_BYTES + 1, "<u8", data, strides=(1,))
    length = int(lengths[0])
    if length <= _BY_WORDS_BYTES_MAX and (lengths == length).all():
        for at in range(0, length - length % _WORD_BYTES, _WORD_BYTES):
            hashes = _stepped(hashes, words[at::length][: len(hashes)])
        return _with_tails(hashes, words, offsets[1:], lengths)
    long = np.flatnonzero(lengths > _BY_WORDS_BYTES_MAX)
    short = np.flatnonzero(lengths <= _BY_WORDS_BYTES_MAX)
    short = short[np.argsort(-lengths[short], kind="stable")]
    ordered, negative = hashes[short], -lengths[short]
    for at in range(0, int(lengths[short].max(initial=0)), _WORD_BYTES):
        count = int(np.searchsorted(negative, -at - _WORD_BYTES, "right"))  # so many have another word
        ordered[:count] = _stepped(ordered[:count], words[starts[short[:count]] + at])
    hashes[short] = _with_tails(ordered, words, offsets[1:][short], lengths[short])
    ranges = zip(starts[long].tolist(), offsets[1:][long].tolist(), strict=True)
    sums = [google_crc32c.value(data[start:end].tobytes()) for start, end in ranges]
    hashes[long] = _stepped(hashes[long], np.array(sums, np.uint64))
    return hashes


def _with_tails(
    hashes: npt.NDArray[np.uint64],
    words: npt.NDArray[np.uint64],
    ends: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint64]:
    """Hashes with what is left of their values behind the last whole word, be it nothing."""
    tails = lengths % _WORD_BYTES
    return _stepped(hashes, words[ends - tails] & _TAIL_MASKS[tails])


def _stepped(hashes: npt.NDArray[np.uint64], words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hashes with one more word each."""
    stepped = hashes ^ words
    stepped *= _FACTORS[0]
    stepped ^= stepped >> _HALF
    return stepped


def _mixed(hashes: npt.NDArray[np.uint64], words: npt.NDArray[np.uint64] | np.uint64) -> npt.NDArray[np.uint64]:
    """Murmur's finalizer, which lets every bit act on every other one."""
    mixed = (hashes ^ words) + np.uint64(1)
    for factor in _FACTORS:
        mixed ^= mixed >> _SHIFT
        mixed *= factor
    return mixed ^ (mixed >> _SHIFT)
