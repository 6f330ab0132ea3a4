"""The digest of a record: what the sums in manifests are made of.

BLAKE2b with 32 bytes of output, over this, little-endian:

    offset i64 | timestamp i64 (ns) | lengths i32 of subject, key, headers, value, message_id, reply (-1: null)
    | subject | key | headers | value | message_id | reply

Subjects are hashed as they stand in rows, UTF-8. The leader epoch is left out: who leads does not change a record.

The canonical form of many rows is built by columns; what is done row by row is one hash. Measured on one core, in
thousands of records of 128 B and of 1 KiB a second, hash alone over canonical bytes: BLAKE2b 1,250 and 580 (making it
anew with `digest_size=` instead of copying an empty one: 840 and 550), SHA-256 with the processor's instructions
1,300 and 810, without them far less, BLAKE2s 1,200 and 325, SHA3-256 700 and 220. BLAKE2b is fast on any processor.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from liftpy_bucket.objects.rows.schema import BINARY_COLUMNS, cuts_by_size, lengths_of
from liftpy_bucket.objects.setsum import DIGEST_BYTES, Setsum

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["HASH_NAME", "digests_of", "setsum_of"]

HASH_NAME: Final = "blake2b-256"
_HEAD: Final = np.dtype([("offset", "<i8"), ("timestamp", "<i8"), ("lengths", "<i4", 6)])
_PIECE_BYTES: Final = 1024 * 1024  # what is made in the processor's cache costs a tenth
_NOTHING: Final = b""  # no pa.scalar: to make one pyarrow imports pandas, which readers need not
_NULL: Final = -1


def digests_of(rows: pa.RecordBatch) -> bytearray:
    """The digests of rows, `DIGEST_BYTES` each, one after the other."""
    digests = bytearray()
    for piece in cuts_by_size(rows, _PIECE_BYTES):
        digests += _digests_of_piece(piece)
    assert len(digests) == DIGEST_BYTES * rows.num_rows
    return digests


def setsum_of(rows: pa.RecordBatch) -> Setsum:
    """The sum of rows."""
    return Setsum.of_digests(digests_of(rows))


def _digests_of_piece(rows: pa.RecordBatch) -> bytes:
    content, places = _canonical(rows)
    fresh = blake2b(digest_size=DIGEST_BYTES).copy
    return b"".join(
        [
            (state := fresh()).update(content[start:end]) or state.digest()  # type: ignore[func-returns-value]  # None
            for start, end in pairwise(places)
        ]
    )


def _canonical(rows: pa.RecordBatch) -> tuple[memoryview, list[int]]:
    """The canonical bytes of rows, and where each begins and the last one ends."""
    count = rows.num_rows
    heads: npt.NDArray[np.void] = np.zeros(count, _HEAD)
    heads["offset"] = rows.column("offset").to_numpy()
    heads["timestamp"] = rows.column("timestamp_ns").to_numpy()
    heads["lengths"] = _NULL
    parts: list[pa.Array | pa.Scalar] = []
    for number, name in enumerate(("subject", *BINARY_COLUMNS)):
        if name not in rows.schema.names:
            continue
        column = rows.column(name)
        if column.null_count == count:
            continue
        lengths = lengths_of(column)
        if column.null_count:
            lengths[np.asarray(column.is_null())] = _NULL
        heads["lengths"][:, number] = lengths
        parts.append(column.cast(pa.binary()) if name == "subject" else column)
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(_HEAD.itemsize)
    head_column = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(heads)])
    joined = pc.binary_join_element_wise(head_column, *parts, _NOTHING, null_handling="replace", null_replacement=b"")
    _, places, content = joined.buffers()
    assert joined.offset == 0
    return memoryview(content), np.frombuffer(places, "<i4", count + 1).tolist()
