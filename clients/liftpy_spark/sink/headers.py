"""A column of headers as Spark has it, as NATS header blocks: operations on the column, none for each row."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from liftpy_spark.sink.errors import SinkRowError

__all__ = ["header_blocks"]

_BEGIN: Final = pa.scalar(b"NATS/1.0\r\n", pa.binary())
_BETWEEN: Final = pa.scalar(b"\r\n", pa.binary())
_END: Final = pa.scalar(b"\r\n\r\n", pa.binary())
_COLON: Final = pa.scalar(b": ", pa.binary())
_NOTHING: Final = pa.scalar(b"", pa.binary())
_NAME: Final = r"^[^\s:\pZ]+$"
_VALUE: Final = r"^([^ \t\r\n]([^\r\n]*[^ \t\r\n])?)?$"


def header_blocks(headers: pa.ListArray) -> pa.BinaryArray:
    """A NATS header block for each list of headers; null where there is none, or none in it.

    Args:
        headers: Lists of structs `key` (string) and `value` (binary). A value that is null counts as empty.

    Raises:
        SinkRowError: a name or value can not stand in a header block.
    """
    flat = headers.flatten()
    names, values = (pc.struct_field(flat, name) for name in ("key", "value"))
    _check(names, pc.match_substring_regex(names, _NAME), "name", "text without white space and colons")
    values = pc.fill_null(values.cast(pa.binary()), _NOTHING)
    fitting = pc.match_substring_regex(values, _VALUE)
    _check(values, fitting, "value", "one line without white space at its ends")
    lines = pc.binary_join_element_wise(names.cast(pa.binary()), values, _COLON)
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, lines), _BETWEEN)
    blocks = pc.binary_join_element_wise(_BEGIN, joined, _END, _NOTHING)
    return pc.if_else(pa.array(counts > 0), blocks, pa.scalar(None, pa.binary()))


def _check(found: pa.Array, fitting: pa.BooleanArray, what: str, right: str) -> None:
    wrong = pc.fill_null(pc.invert(fitting), True)
    if wrong.true_count:
        first = found.filter(wrong)[0].as_py()
        raise SinkRowError(
            f"column headers: {what} {first!r:.80} can not stand in a NATS header block; a {what} is {right}"
        )
