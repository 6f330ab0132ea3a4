"""The columns of a record batch and their Arrow schema, which is a function of a bitmap and nothing else.

A bit is a persisted number: bits are never renumbered, only added. Columns stand in the order of their bits.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import pyarrow as pa

__all__ = ["ALL_COLUMNS", "Column", "column_names", "columns_in", "is_binary", "schema_of"]


class Column:
    """One bit per column; plain integers, because batches are cut by the hundred thousand a second."""

    TIMESTAMP: Final = 1  # int64 ns since the epoch; absent when every record has the batch's base timestamp
    OFFSET_DELTA: Final = 2  # int32; only after key compaction, otherwise offsets are contiguous
    SUBJECT: Final = 4  # binary
    KEY: Final = 8  # binary, nullable
    HEADERS: Final = 16  # binary, nullable: the NATS header block as received
    VALUE: Final = 32  # binary, nullable: null is a tombstone
    MESSAGE_ID: Final = 64  # binary, nullable: what `Nats-Msg-Id` or the envelope said
    REPLY: Final = 128  # binary, nullable: only in streams that keep replies


ALL_COLUMNS: Final = 255

_NAMES: Final = {bit: name.lower() for name, bit in vars(Column).items() if not name.startswith("_")}
_TYPES: Final[dict[int, pa.DataType]] = {Column.TIMESTAMP: pa.int64(), Column.OFFSET_DELTA: pa.int32()}
_NOT_NULL: Final = Column.TIMESTAMP | Column.OFFSET_DELTA | Column.SUBJECT


def is_binary(column: int) -> bool:
    """Whether a column holds byte strings, and so has three buffers; the others have two."""
    return column not in _TYPES


@cache
def columns_in(bitmap: int) -> tuple[int, ...]:
    """The columns of `bitmap`, in the order they stand in a batch."""
    return tuple(bit for bit in _NAMES if bit & bitmap)


@cache
def column_names(bitmap: int) -> tuple[str, ...]:
    """Lower-case names of the columns of `bitmap`, in the order they stand in a batch."""
    return tuple(_NAMES[bit] for bit in columns_in(bitmap))


@cache
def schema_of(bitmap: int) -> pa.Schema:
    """The Arrow schema of a record batch with these columns."""
    return pa.schema(
        [
            pa.field(_NAMES[bit], _TYPES.get(bit, pa.binary()), nullable=not bit & _NOT_NULL)
            for bit in columns_in(bitmap)
        ]
    )
