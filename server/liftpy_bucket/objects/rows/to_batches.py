"""Rows become record batches again, that may stand on disk and go to consumers and replicas.

Values are not copied: what a batch holds of a column is a slice of the column's own memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from liftpy_bucket.objects.rows.schema import row_sizes, subject_bytes
from liftpy_envelope.batch import compress_body, encode_body, encode_header
from liftpy_envelope.columns import Column
from liftpy_envelope.ipc import ColumnBuffers, column_buffers

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    import pyarrow as pa

    from liftpy_envelope.batch import BatchBody
    from liftpy_envelope.ipc import BufferLike

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
) -> Iterator[list[BufferLike]]:
    """Whole record batches that cover all offsets from `start` to `end`, each as the parts that make it: header first.

    A hole before a row belongs to the batch before it; where `start` lies before the first row, to the first batch.

    Args:
        rows: Ascending by offset; of their columns those that a batch has are needed. They must not change while
            parts of them are in use.
        codec: `none`, `lz4` or `zstd`.
        bytes_max: About how large a batch is before compression; a larger one only where one record is larger.
        start: The first offset that is covered; that of the first row when it is not given.
        end: The offset after the last one that is covered; that after the last row when it is not given.
        leader_epoch: Leader epoch of what is covered where there are no rows at all.
    """
    if not rows.num_rows:
        if start is not None and end is not None:
            yield from _holes(start, end, leader_epoch, 0)
        return
    cutter = _Cutter(rows, codec)
    offsets, times, epochs = cutter.offsets, cutter.times, cutter.epochs
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
        yield cutter.cut(first, last, base, following)
        yield from _holes(following, covered, epoch, int(times[last - 1]))
        base, first = covered, last


def _holes(start: int, end: int, leader_epoch: int, timestamp: int) -> Iterator[list[BufferLike]]:
    """Batches without records that cover offsets which have none."""
    nothing = [ColumnBuffers(0, (b"", b"")), ColumnBuffers(0, (b"", bytes(4), b""))]
    while start < end:
        stop = min(end, start + _COVERED_MAX)
        body = encode_body(0, Column.OFFSET_DELTA | Column.SUBJECT, nothing)
        yield _whole(body, start, stop, leader_epoch, (timestamp, timestamp))
        start = stop


class _Cutter:
    """Cuts rows into batches; what can be done once for all of them is done at the beginning.

    Args:
        rows: One at least.
        codec: Codec of the batches.
    """

    def __init__(self, rows: pa.RecordBatch, codec: str) -> None:
        self._codec = codec
        self.offsets: npt.NDArray[np.int64] = rows.column("offset").to_numpy()
        self.epochs: npt.NDArray[np.int32] = rows.column("leader_epoch").to_numpy()
        self.times: npt.NDArray[np.int64] = rows.column("timestamp_ns").to_numpy()
        self._columns = [(Column.SUBJECT, _Values(subject_bytes(rows.column("subject"))))]
        for name, bit in _COLUMNS.items():
            if name in rows.schema.names and (column := rows.column(name)).null_count < len(column):
                self._columns.append((bit, _Values(column)))

    def cut(self, first: int, last: int, base: int, end: int) -> list[BufferLike]:
        """The rows from `first` up to `last` as a batch for the offsets from `base` up to `end`."""
        offsets, times = self.offsets[first:last], self.times[first:last]
        bitmap = 0
        columns: list[ColumnBuffers] = []
        if (times != times[0]).any():
            bitmap |= Column.TIMESTAMP
            columns.append(ColumnBuffers(0, (b"", times.astype("<i8").tobytes())))
        if last - first != end - base:
            bitmap |= Column.OFFSET_DELTA
            columns.append(ColumnBuffers(0, (b"", (offsets - base).astype("<i4").tobytes())))
        for bit, values in self._columns:
            if (buffers := values.cut(first, last)) is not None:
                bitmap |= bit
                columns.append(buffers)
        body = encode_body(last - first, bitmap, columns)
        if self._codec != "none":
            body = compress_body(body, self._codec)
        return _whole(body, base, end, int(self.epochs[first]), (int(times[0]), int(times.max())))


class _Values:
    """A column of bytes."""

    def __init__(self, column: pa.BinaryArray) -> None:
        _, offsets, data = column.buffers()
        self._column = column
        self._has_nulls = column.null_count > 0
        self._ends = np.frombuffer(offsets, "<i4", len(column) + 1, 4 * column.offset)
        self._data = data

    def cut(self, first: int, last: int) -> ColumnBuffers | None:
        """The buffers of the values from `first` up to `last`; None where all of them are null."""
        if self._has_nulls:
            column = self._column.slice(first, last - first)
            return None if column.null_count == len(column) else column_buffers(column)
        start, end = int(self._ends[first]), int(self._ends[last])
        offsets = (self._ends[first : last + 1] - self._ends[first]).tobytes()
        return ColumnBuffers(0, (b"", offsets, b"" if end == start else self._data.slice(start, end - start)))


def _whole(body: BatchBody, base: int, end: int, leader_epoch: int, times: tuple[int, int]) -> list[BufferLike]:
    header = encode_header(
        body,
        base_offset=base,
        leader_epoch=leader_epoch,
        base_timestamp=times[0],
        max_timestamp=times[1],
        last_offset_delta=end - base - 1,
    )
    return [header, *body.parts]
