"""The digest of a record: what the sums in manifests are made of.

The hash of a partition, one of `RecordHash`, over this, little-endian:

    offset i64 | timestamp i64 (ns) | lengths i32 of subject, key, headers, value, message_id, reply (-1: null)
    | subject | key | headers | value | message_id | reply

Subjects are hashed as they stand in rows, UTF-8. The leader epoch is left out: who leads does not change a record.

The canonical form of many rows is built by columns; what is done row by row is one hash. Measured on one core, in
thousands of records of 128 B and of 1 KiB a second, hash alone over canonical bytes: XXH3 4,000 and 3,100, BLAKE2b
1,015 and 360 (making it anew with `digest_size=` instead of copying an empty one takes a third longer), BLAKE3 1,600
and 590, SHA-256 with the processor's instructions 1,000 and 580.
"""

from __future__ import annotations

from enum import StrEnum
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

__all__ = ["RecordHash", "digests_of", "setsum_of"]

_HEAD: Final = np.dtype([("offset", "<i8"), ("timestamp", "<i8"), ("lengths", "<i4", 6)])
_PIECE_BYTES: Final = 3 * 1024 * 1024  # a third of it costs a seventh more with 1 KiB each, and thrice of it as much
_NOTHING: Final = b""  # no pa.scalar: to make one pyarrow imports pandas, which readers need not
_NULL: Final = -1
_XXH3_BYTES: Final = 16


class RecordHash(StrEnum):
    """A hash of records. A partition keeps the one that it began with: sums of two hashes can not be compared.

    Sums tell whether we lost, doubled or changed a record ourselves. What was changed by others is told by the SHA-256
    of row groups and footers. So the hash need not be one for secrets.
    """

    BLAKE2B = "blake2b-256"
    """BLAKE2b with 32 bytes of output."""

    XXH3 = "xxh3-128"
    """XXH3 with 16 bytes of output, most significant one first, and 16 zeros behind them."""


def digests_of(rows: pa.RecordBatch, record_hash: RecordHash) -> bytearray:
    """The digests of rows, `DIGEST_BYTES` each, one after the other."""
    hashed = _HASHES[record_hash]
    digests = bytearray()
    for piece in cuts_by_size(rows, _PIECE_BYTES):
        digests += hashed(*_canonical(piece))
    assert len(digests) == DIGEST_BYTES * rows.num_rows
    return digests


def setsum_of(rows: pa.RecordBatch, record_hash: RecordHash) -> Setsum:
    """The sum of rows."""
    return Setsum.of_digests(digests_of(rows, record_hash))


def _by_blake2b(content: memoryview, places: list[int]) -> bytes:
    fresh = blake2b(digest_size=DIGEST_BYTES).copy
    return b"".join(
        [
            (state := fresh()).update(content[start:end]) or state.digest()  # type: ignore[func-returns-value]  # None
            for start, end in pairwise(places)
        ]
    )


def _by_xxh3(content: memoryview, places: list[int]) -> bytes:
    from xxhash import xxh3_128_digest  # noqa: PLC0415 - nodes without a bucket, and readers, need not have it

    found = b"".join([xxh3_128_digest(content[start:end]) for start, end in pairwise(places)])
    digests = np.zeros((len(places) - 1, DIGEST_BYTES), np.uint8)
    digests[:, :_XXH3_BYTES] = np.frombuffer(found, np.uint8).reshape(-1, _XXH3_BYTES)
    return digests.tobytes()


_HASHES: Final = {RecordHash.BLAKE2B: _by_blake2b, RecordHash.XXH3: _by_xxh3}


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
