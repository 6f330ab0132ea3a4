"""From record batches, the format on disk, to rows, the columns of objects in the bucket, and back.

What a record is comes through unchanged: offset, time to the nanosecond, subject, key, headers, value, message id,
leader epoch, with null told from empty; replies only where they are asked for. Producer and sequence of the batch that
a record came in stand in its row, too; batches that are made of rows are cut anew, and have none.

Measured on one core, in thousands of records of 128 B and of 1 KiB a second: `rows_of_many` 550 and 320 from batches of
one record, 2,600 and 900 from batches of 10 and of 60, 3,100 and 2,600 from batches of 700; writing the rows into a
fragment, with their digests, 740 and 310; `batches_of` 5,000 and 1,300.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from liftpy_bucket.objects.rows.decoding import decode_many
from liftpy_bucket.objects.rows.schema import BINARY_COLUMNS, MERGED_SEQUENCE, row_names, row_schema, subject_texts
from liftpy_bucket.objects.rows.to_batches import batches_of
from liftpy_envelope.batch import NO_PRODUCER
from liftpy_envelope.columns import Column

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from liftpy_envelope.batch import BatchHeader
    from liftpy_envelope.ipc import BufferLike

__all__ = ["batches_of", "row_names", "row_schema", "rows_of", "rows_of_many"]

_PIECE_BYTES: Final = 8 * 1024 * 1024
"""What is done once for a piece takes a fifth of an upload's time with 2 MiB, and half of that with 8."""

_NS_PER_US: Final = 1_000


def rows_of(header: BatchHeader, body: BufferLike, *, keeps_replies: bool = False) -> pa.RecordBatch:
    """The rows of one record batch.

    Args:
        header: Header of the batch.
        body: What stands behind the header; checked.
        keeps_replies: Whether there is a column `reply`; without it replies are dropped.

    Raises:
        BatchCorruptError: the body is not the Arrow message that its header announces.
    """
    return _rows_of([(header, body)], keeps_replies=keeps_replies)


def rows_of_many(
    batches: Iterable[tuple[BatchHeader, BufferLike]],
    *,
    keeps_replies: bool = False,
    piece_bytes: int = _PIECE_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The rows of record batches that follow on one another, of any size each, some MiB at once.

    Args:
        batches: Header and checked body.
        keeps_replies: Whether there is a column `reply`, as for `rows_of`.
        piece_bytes: How many bytes of batches make one piece of rows. Larger batches are pieces of their own.

    Raises:
        BatchCorruptError: a body is not the Arrow message that its header announces.
    """
    piece: list[tuple[BatchHeader, BufferLike]] = []
    size = 0
    for batch in batches:
        if piece and size + batch[0].length > piece_bytes:
            yield _rows_of(piece, keeps_replies=keeps_replies)
            piece, size = [], 0
        piece.append(batch)
        size += batch[0].length
    if piece:
        yield _rows_of(piece, keeps_replies=keeps_replies)


def _rows_of(batches: Sequence[tuple[BatchHeader, BufferLike]], *, keeps_replies: bool) -> pa.RecordBatch:
    by_layout: dict[tuple[int, bool], list[tuple[BatchHeader, BufferLike]]] = {}
    for batch in batches:
        by_layout.setdefault((batch[0].columns, batch[0].is_compressed), []).append(batch)
    pieces = [_rows_of_alike(alike, keeps_replies=keeps_replies) for alike in by_layout.values()]
    if len(pieces) == 1:
        return pieces[0]
    schema = row_schema(keeps_replies=keeps_replies)
    joined = pa.RecordBatch.from_arrays(
        [pa.concat_arrays([piece.column(place) for piece in pieces]) for place in range(len(schema))], schema=schema
    )
    return joined.take(pa.array(np.argsort(joined.column("offset").to_numpy(), kind="stable")))


def _rows_of_alike(batches: Sequence[tuple[BatchHeader, BufferLike]], *, keeps_replies: bool) -> pa.RecordBatch:
    """The rows of batches with the same columns."""
    records = decode_many(batches)
    bitmap = batches[0][0].columns
    headers = [header for header, _ in batches]
    counts = np.array([header.record_count for header in headers], np.int64)
    offsets = np.repeat(np.array([header.base_offset for header in headers], np.int64), counts)
    if bitmap & Column.OFFSET_DELTA:
        offsets += records.column("offset_delta").to_numpy()
    else:
        offsets += np.arange(len(offsets)) - np.repeat(np.cumsum(counts) - counts, counts)
    if bitmap & Column.TIMESTAMP:
        times = records.column("timestamp").to_numpy()
    else:
        times = np.repeat(np.array([header.base_timestamp for header in headers], np.int64), counts)
    epochs = np.repeat(np.array([header.leader_epoch for header in headers], np.int32), counts)
    return _assembled(records, offsets, times, epochs, _producers(headers, counts), keeps_replies=keeps_replies)


def _producers(headers: Sequence[BatchHeader], counts: npt.NDArray[np.int64]) -> tuple[pa.Array, pa.Array]:
    """Ids and sequences of idempotent producers, a row each; `MERGED_SEQUENCE` where key compaction wrote the batch."""
    has_none = np.array([header.producer_id == NO_PRODUCER for header in headers])
    is_merged = np.array([header.is_compacted for header in headers])
    if has_none.all() and not is_merged.any():
        total = int(counts.sum())
        return pa.nulls(total, pa.binary(16)), pa.nulls(total, pa.int64())
    batch = pa.array(np.repeat(np.arange(len(headers)), counts))
    ids = pa.array([header.producer_id for header in headers], pa.binary(16), mask=has_none)
    known = [MERGED_SEQUENCE if header.is_compacted else header.producer_sequence for header in headers]
    sequences = pa.array(known, pa.int64(), mask=has_none & ~is_merged)
    return ids.take(batch), sequences.take(batch)


def _assembled(
    records: pa.RecordBatch,
    offsets: npt.NDArray[np.int64],
    times: npt.NDArray[np.int64],
    epochs: npt.NDArray[np.int32],
    producers: tuple[pa.Array, pa.Array],
    *,
    keeps_replies: bool,
) -> pa.RecordBatch:
    schema = row_schema(keeps_replies=keeps_replies)
    present = set(records.schema.names)
    columns = {
        "offset": pa.array(offsets),
        "timestamp": pa.array(times // _NS_PER_US).view(schema.field("timestamp").type),
        "timestamp_ns": pa.array(times),
        "subject": subject_texts(records.column("subject")),
        "leader_epoch": pa.array(epochs),
        "producer_id": producers[0],
        "producer_sequence": producers[1],
    }
    for name in BINARY_COLUMNS:
        columns[name] = records.column(name) if name in present else pa.nulls(len(offsets), pa.binary())
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
