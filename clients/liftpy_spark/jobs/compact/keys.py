"""Keys of rows, as the search for superseded records has them: hashed, and of each row group only the last of each key.

What a later row of the same row group supersedes is known at once and told to nobody: whoever reads the row group again
finds it again. So what has to be compared between row groups is at most one row per key and row group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import numpy.typing as npt

    from liftpy_log.compaction.offset_map import KeyHasher

__all__ = ["CANDIDATES", "KEY_COLUMNS", "candidates_of", "keyed", "superseded_within"]

CANDIDATES: Final = "place int, offset long, high long, low long, is_new boolean"
"""Rows of `candidates_of`, for Spark: where, which, the key's hash, and whether it supersedes older ones."""
KEY_COLUMNS: Final = ("offset", "key")


def keyed(rows: pa.RecordBatch) -> tuple[pa.BinaryArray, npt.NDArray[np.int64]]:
    """Keys and offsets of the rows that have a key."""
    keys = rows.column("key")
    offsets: npt.NDArray[np.int64] = rows.column("offset").to_numpy()
    if not keys.null_count:
        return keys, offsets
    return keys.drop_null(), offsets[np.asarray(keys.is_valid())]


def superseded_within(hashes: npt.NDArray[np.uint64], first: int) -> npt.NDArray[np.bool_]:
    """Which rows, of those from the place `first` on, have a later one of the same key behind them.

    Args:
        hashes: Hashes of the keys of a row group, two numbers each, in the order of their offsets.
        first: Rows before this place supersede nothing and are not looked at.
    """
    gone = np.zeros(len(hashes), np.bool_)
    late = hashes[first:]
    order = np.lexsort((late[:, 1], late[:, 0]))  # stable: of equal keys the last one stays the last one
    is_same = (late[order[1:]] == late[order[:-1]]).all(axis=1)
    gone[order[:-1][is_same] + first] = True
    return gone


def candidates_of(rows: pa.RecordBatch, hasher: KeyHasher, place: int, new_start: int) -> pa.RecordBatch:
    """What is compared with other row groups: of every key the last row, and rows below `new_start`.

    A superseded row is among them where there is one, so that it is found that the object has one.

    Args:
        rows: Rows of a row group, with `KEY_COLUMNS` at least.
        hasher: Hasher of keys, the same for all row groups.
        place: Place of the object.
        new_start: Rows below this offset supersede nothing.
    """
    keys, offsets = keyed(rows)
    hashes = hasher.hash(keys)
    first = int(offsets.searchsorted(new_start))
    gone = superseded_within(hashes, first)
    gone[np.flatnonzero(gone)[:1]] = False
    stays = np.flatnonzero(~gone)
    chosen = hashes[stays].view(np.int64)
    columns = [
        pa.array(np.full(len(stays), place, np.int32)),
        pa.array(offsets[stays]),
        pa.array(chosen[:, 0]),
        pa.array(chosen[:, 1]),
        pa.array(stays >= first),
    ]
    return pa.RecordBatch.from_arrays(columns, ["place", "offset", "high", "low", "is_new"])
