"""Where the values of a binary column lie, as numpy sees it: no copy, and nothing done for each value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["lengths_of", "offsets_of"]


def offsets_of(column: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Where in the column's data each value begins, and where the last one ends; shares memory with the column.

    A value that is null has a place as well, mostly an empty one.
    """
    _, offsets, _ = column.buffers()
    if offsets is None or not len(column):
        return np.zeros(1, np.int32)
    return np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]


def lengths_of(column: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """The bytes of each value; of a value that is null, those of its place."""
    return np.diff(offsets_of(column))
