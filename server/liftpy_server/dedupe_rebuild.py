"""The ids of stored batches: of those that a follower gets, and read back from the log when a partition is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from liftpy_envelope.batch import HEADER_SIZE, NO_PRODUCER, decode_records
from liftpy_envelope.columns import Column
from liftpy_log.dedupe import Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_envelope.batch import BatchHeader
    from liftpy_envelope.ipc import BufferLike
    from liftpy_log.dedupe import DedupeId, DedupeWindow
    from liftpy_log.files import FileCache
    from liftpy_log.log_time import LogTime
    from liftpy_log.partition_log import PartitionLog

__all__ = ["note_batches", "rebuild_dedupe"]


class _ProducerId:
    """The id of an idempotent batch."""

    __slots__ = ("_key", "_place", "base_offset", "count")

    def __init__(self, header: BatchHeader) -> None:
        self.base_offset = header.base_offset
        self.count = 1
        self._key = (header.producer_id, header.producer_sequence)
        self._place = Stored(header.next_offset - 1, header.record_count)

    def stored(self) -> Sequence[tuple[DedupeId, int | Stored]]:
        return [(self._key, self._place)]


class _MessageIds:
    """The column of message ids of a batch, copied, so that the batch itself can go."""

    __slots__ = ("_buffers", "_deltas", "_length", "base_offset", "count")

    _TYPE: Final = pa.binary()

    def __init__(self, base_offset: int, column: pa.Array, deltas: pa.Array | None) -> None:
        assert column.offset == 0, "the buffers of a decoded column begin with it"
        self.base_offset = base_offset
        self._deltas = None if deltas is None else deltas.to_numpy().tobytes()  # of a batch that covers dropped records
        self.count = len(column) - column.null_count
        self._length = len(column)
        self._buffers = [buffer and buffer.to_pybytes() for buffer in column.buffers()]

    def stored(self) -> Sequence[tuple[DedupeId, int | Stored]]:
        buffers = [None if buffer is None else pa.py_buffer(buffer) for buffer in self._buffers]
        ids = pa.Array.from_buffers(self._TYPE, self._length, buffers).to_pylist()
        deltas = range(self._length) if self._deltas is None else memoryview(self._deltas).cast("i")
        return [(key, self.base_offset + delta) for delta, key in zip(deltas, ids, strict=True) if key is not None]


def rebuild_dedupe(window: DedupeWindow, log: PartitionLog, files: FileCache, time: LogTime) -> None:
    """Fill an empty window with the ids of the records that are young enough, compared with the newest.

    Args:
        window: of the partition.
        log: its records.
        files: the node's open files.
        time: of the log.

    Raises:
        SegmentCorruptError: a batch on the way is damaged; nothing that it says of its ids was believed.
    """
    if not window.ids_max or not log.last_timestamp:
        return
    start = log.offset_at_time(time.before(log.last_timestamp, window.window_ns))
    if start is None:
        return
    for piece in log.read(start, log.log_end, 2**62):
        file, segment = files.get(piece.segment), piece.segment
        for position, header in segment.headers(file, piece.position):
            if position >= piece.position + piece.length:
                break
            if not _has_ids(header):
                continue
            if header.producer_id != NO_PRODUCER:
                window.note(time.age_time(header.max_timestamp), _ProducerId(header))
                continue
            _note_ids(window, *segment.records(file, position), time)


def note_batches(
    window: DedupeWindow, headers: Sequence[BatchHeader], data: BufferLike | memoryview, time: LogTime
) -> None:
    """Let a window remember the ids of whole batches, without a look at each; batches without ids cost nothing.

    Args:
        window: of the partition.
        headers: of the batches.
        data: their checked bytes, one batch after the other; nothing of them is kept.
        time: of the log.

    Raises:
        BatchCorruptError: a batch is not what its header announces; those before it are noted.
    """
    if not window.ids_max:
        return
    buffer: pa.Buffer | None = None
    position = 0
    for header in headers:
        if _has_ids(header):
            if buffer is None:
                buffer = pa.py_buffer(data)
            _note(window, header, buffer.slice(position + HEADER_SIZE, header.length - HEADER_SIZE), time)
        position += header.length


def _has_ids(header: BatchHeader) -> bool:
    return bool(header.columns & Column.MESSAGE_ID) or header.producer_id != NO_PRODUCER


def _note(window: DedupeWindow, header: BatchHeader, body: BufferLike, time: LogTime) -> None:
    if header.producer_id != NO_PRODUCER:
        window.note(time.age_time(header.max_timestamp), _ProducerId(header))
    else:
        _note_ids(window, header, decode_records(header, body), time)


def _note_ids(window: DedupeWindow, header: BatchHeader, records: pa.RecordBatch, time: LogTime) -> None:
    deltas = records.column("offset_delta") if header.columns & Column.OFFSET_DELTA else None
    ids = _MessageIds(header.base_offset, records.column("message_id"), deltas)
    if ids.count:
        window.note(time.age_time(header.max_timestamp), ids)
