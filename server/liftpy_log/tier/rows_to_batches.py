"""Rows become record batches again, that may stand on disk and go to consumers and replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from liftpy_envelope.batch import HEADER_SIZE, BatchBody, compress_body, encode_body, encode_header, read_header
from liftpy_envelope.columns import Column
from liftpy_envelope.ipc import ColumnBuffers, column_buffers
from liftpy_log.tier.rows_schema import row_sizes, subject_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    import pyarrow as pa

    from liftpy_envelope.batch import BatchHeader

__all__ = ["batches_of"]

_COVERED_MAX: Final = 2**31 - 1  # offsets by one batch
_COLUMNS: Final = {
    "key": Column.KEY,
    "headers": Column.HEADERS,
    "value": Column.VALUE,
    "message_id": Column.MESSAGE_ID,
    "reply": Column.REPLY,
}


def batches_of(
    rows: pa.RecordBatch,
    codec: str,
    bytes_max: int,
    *,
    start: int | None = None,
    end: int | None = None,
    leader_epoch: int = 0,
) -> Iterator[tuple[BatchHeader, bytes]]:
    """Whole record batches, each with its header in front, that cover all offsets from `start` to `end`.

    A hole before a row belongs to the batch before it; where `start` lies before the first row, to the first batch.

    Args:
        rows: ascending by offset.
        codec: `none`, `lz4` or `zstd`.
        bytes_max: about how large a batch is before compression; a larger one only where one record is larger.
        start: the first offset that is covered; that of the first row when it is not given.
        end: the offset after the last one that is covered; that after the last row when it is not given.
        leader_epoch: for what is covered where there are no rows at all.
    """
    offsets = rows.column("offset").to_numpy()
    epochs = rows.column("leader_epoch").to_numpy()
    if not len(offsets):
        if start is not None and end is not None:
            yield from _holes(start, end, leader_epoch, 0)
        return
    times = rows.column("timestamp_ns").to_numpy()
    base = int(offsets[0]) if start is None else start
    end = int(offsets[-1]) + 1 if end is None else end
    assert base <= offsets[0]
    assert end > offsets[-1]
    ends = np.cumsum(row_sizes(rows))
    new_epochs = np.append(np.flatnonzero(np.diff(epochs)) + 1, len(offsets))
    first = 0
    while first < len(offsets):
        epoch, time = int(epochs[first]), int(times[first])
        if offsets[first] - base >= _COVERED_MAX:
            yield from _holes(base, int(offsets[first]), epoch, time)
            base = int(offsets[first])
        size_before = int(ends[first - 1]) if first else 0
        last = min(
            int(np.searchsorted(ends, size_before + bytes_max, "right")),
            int(new_epochs[np.searchsorted(new_epochs, first, "right")]),
            int(np.searchsorted(offsets, base + _COVERED_MAX)),
        )
        last = max(last, first + 1)
        covered = int(offsets[last]) if last < len(offsets) else end
        following = covered
        if following - base > _COVERED_MAX:
            following = int(offsets[last - 1]) + 1
        yield _batch(rows.slice(first, last - first), base, following, codec)
        yield from _holes(following, covered, epoch, int(times[last - 1]))
        base, first = covered, last


def _holes(start: int, end: int, leader_epoch: int, timestamp: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Batches without records that cover offsets which have none."""
    nothing = [ColumnBuffers(0, (b"", b"")), ColumnBuffers(0, (b"", bytes(4), b""))]
    while start < end:
        stop = min(end, start + _COVERED_MAX)
        body = encode_body(0, Column.OFFSET_DELTA | Column.SUBJECT, nothing)
        yield _whole(body, start, stop, leader_epoch, (timestamp, timestamp))
        start = stop


def _batch(rows: pa.RecordBatch, base: int, end: int, codec: str) -> tuple[BatchHeader, bytes]:
    offsets: npt.NDArray[np.int64] = rows.column("offset").to_numpy()
    times: npt.NDArray[np.int64] = rows.column("timestamp_ns").to_numpy()
    bitmap = Column.SUBJECT
    columns: list[ColumnBuffers] = []
    if (times != times[0]).any():
        bitmap |= Column.TIMESTAMP
        columns.append(ColumnBuffers(0, (b"", times.astype("<i8").tobytes())))
    if len(offsets) != end - base:
        bitmap |= Column.OFFSET_DELTA
        columns.append(ColumnBuffers(0, (b"", (offsets - base).astype("<i4").tobytes())))
    columns.append(column_buffers(subject_bytes(rows.column("subject"))))
    for name, bit in _COLUMNS.items():
        if name in rows.schema.names and (column := rows.column(name)).null_count < len(column):
            bitmap |= bit
            columns.append(column_buffers(column))
    body = encode_body(len(offsets), bitmap, columns)
    if codec != "none":
        body = compress_body(body, codec)
    epoch = rows.column("leader_epoch")[0].as_py()
    return _whole(body, base, end, epoch, (int(times[0]), int(times.max())))


def _whole(
    body: BatchBody, base: int, end: int, leader_epoch: int, times: tuple[int, int]
) -> tuple[BatchHeader, bytes]:
    header = encode_header(
        body,
        base_offset=base,
        leader_epoch=leader_epoch,
        base_timestamp=times[0],
        max_timestamp=times[1],
        last_offset_delta=end - base - 1,
    )
    whole = b"".join((header, *body.parts))
    assert len(whole) == HEADER_SIZE + body.length
    return read_header(whole), whole
