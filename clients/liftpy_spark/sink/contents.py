"""What rows come to, whatever their order and their tasks: by it a batch is known again when it is executed again.

It is to notice a checkpoint that was rolled back or copied, and queries that are not deterministic; nobody is expected
to forge rows. So it is made of CRC-32C and lengths, by columns. The sums of the bucket, a cryptographic hash for every
record, would cost as much as all the rest of staging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from liftpy_spark.sink.columns import lengths_of
from liftpy_spark.sink.hashing import checksums

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

__all__ = ["RowTally", "total_of"]

_MASK: Final = (1 << 64) - 1
_COLUMNS: Final = ("value", "key", "headers")
_FACTORS: Final = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))  # of MurmurHash3
_SHIFT: Final = np.uint64(33)
_HIGH: Final = np.uint64(32)


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
            hashes = _mixed(hashes, _words(records.column(name)) if name in names else np.uint64(0))
        if "subject" in names:
            subjects = records.column("subject")
            words = _words(subjects.dictionary.cast(pa.binary()))[subjects.indices.to_numpy()]
        else:
            words = _words(pa.array([self._subject], pa.binary()))[0]
        hashes = _mixed(hashes, words)
        self.total = (self.total + int(hashes.sum(dtype=np.uint64))) & _MASK


def total_of(totals: Iterable[int]) -> int:
    """What the rows of several tallies come to."""
    return sum(totals) & _MASK


def _words(column: pa.BinaryArray) -> npt.NDArray[np.uint64]:
    """Checksum and length of each value; 0 where there is none."""
    words = (lengths_of(column).astype(np.uint64) + np.uint64(1)) << _HIGH | checksums(column).astype(np.uint64)
    if column.null_count:
        words[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return words


def _mixed(hashes: npt.NDArray[np.uint64], words: npt.NDArray[np.uint64] | np.uint64) -> npt.NDArray[np.uint64]:
    """Murmur's finalizer, which lets every bit act on every other one."""
    mixed = (hashes ^ words) + np.uint64(1)
    for factor in _FACTORS:
        mixed ^= mixed >> _SHIFT
        mixed *= factor
    return mixed ^ (mixed >> _SHIFT)
