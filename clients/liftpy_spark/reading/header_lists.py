r"""NATS header blocks as Spark shows headers: a list of pairs of name and value, made for a whole column at once.

A name that stands several times in a block stands as often in its list. A record without headers has null.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["header_lists"]

# A line as `liftpy_envelope.headers` reads it: a value ends where its line does, or with a lone \r or \n.
_LINE: Final = r"(?s)\A(?P<key>[^:\r\n]+):[ \t]*(?P<value>[^\r\n]*?)[ \t]*(?:[\r\n].*)?\z"


def header_lists(blocks: pa.Array, kind: pa.ListType) -> pa.ListArray:
    """The headers of every record.

    Args:
        blocks: Header blocks, as they came.
        kind: The type of the column: a list of structs of `key` and `value`.
    """
    if blocks.null_count == len(blocks):
        return pa.nulls(len(blocks), kind)
    lines = pc.split_pattern(blocks, b"\r\n")
    flat, owners = lines.flatten(), np.asarray(pc.list_parent_indices(lines))
    pairs = pc.extract_regex(flat, pattern=_LINE)
    is_header = np.asarray(pairs.is_valid())
    is_header[1:] &= owners[1:] == owners[:-1]  # not the first line of a block, which is the version
    is_header[:1] = False
    counts = np.bincount(owners[is_header], minlength=len(blocks))
    chosen = pairs.filter(pa.array(is_header))
    kept = pa.StructArray.from_arrays(
        [_texts(chosen.field("key")), chosen.field("value")], fields=list(kind.value_type)
    )
    offsets = np.zeros(len(blocks) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), kept, type=kind, mask=pa.array(counts == 0))


def _texts(names: pa.Array) -> pa.Array:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:  # NATS does not insist on UTF-8
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
