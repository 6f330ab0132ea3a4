"""The ids of stored batches: of those that a follower gets, and read back from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from liftpy_envelope.batch import HEADER_SIZE, NO_PRODUCER, decode_records
from liftpy_envelope.columns import Column
from liftpy_log.ids.dedupe import hash_id, hash_ids
from liftpy_log.ids.ordered import StoredBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_envelope.batch import BatchHeader
    from liftpy_envelope.ipc import BufferLike
    from liftpy_log.ids.dedupe import DedupeWindow
    from liftpy_log.log_time import LogTime
    from liftpy_log.partition_log import PartitionLog

__all__ = ["note_batches", "note_log"]


def note_log(window: DedupeWindow, log: PartitionLog, time: LogTime, committed_end: int = 0) -> None:
    """Bring a window up to what is in the log: forget what is not there, and remember what went by.

    It costs nothing where the window has seen all of the log, and reads at most as far back as the window reaches, or
    what is not known of ordered producers.

    Args:
        window: Window of the partition.
        log: Log of the partition.
        time: Time of the log.
        committed_end: Records below it are never cut off.

    Raises:
        SegmentCorruptError: a batch on the way is damaged; nothing that it says of its ids was believed.
    """
    if window.end_offset > log.log_end:
        window.truncate(log.log_end)
    window.ordered.truncate(log.log_end)  # a leader may have told of more
    ids_from, ordered_from = _ids_from(window, log, time), max(window.ordered.end_offset, log.log_start)
    begin = min(ids_from, ordered_from)
    if begin < log.log_end:
        for header, records in log.batches(begin):
            if header.producer_epoch:
                if header.next_offset > ordered_from:
                    _note_ordered(window, header, committed_end)
            elif header.next_offset <= ids_from:
                continue
            elif header.producer_id != NO_PRODUCER:
                _note_producer(window, header, time)
            elif header.columns & Column.MESSAGE_ID:
                _note_ids(window, header, records(), time)
    window.end_offset = window.ordered.end_offset = log.log_end


def _ids_from(window: DedupeWindow, log: PartitionLog, time: LogTime) -> int:
    """Where the batches begin whose ids are to be noted."""
    if not window.ids_max or window.end_offset == log.log_end:
        return log.log_end
    since = log.offset_at_time(time.before(log.last_timestamp, window.reach_ns))
    return log.log_end if since is None else max(since, window.end_offset)


def note_batches(
    window: DedupeWindow,
    headers: Sequence[BatchHeader],
    data: BufferLike | memoryview,
    time: LogTime,
    committed_end: int = 0,
) -> None:
    """Let a window remember the ids of whole batches; batches without ids cost nothing.

    Args:
        window: Window of the partition.
        headers: Headers of the batches.
        data: Bytes of the batches, which were checked, one after the other; nothing of them is kept.
        time: Time of the log.
        committed_end: Records below it are never cut off.

    Raises:
        BatchCorruptError: a batch is not what its header announces; those before it are noted.
    """
    buffer: pa.Buffer | None = None
    position = 0
    for header in headers:
        if header.producer_epoch:
            _note_ordered(window, header, committed_end)
        elif header.producer_id != NO_PRODUCER:
            _note_producer(window, header, time)
        elif header.columns & Column.MESSAGE_ID and window.ids_max:
            if buffer is None:
                buffer = pa.py_buffer(data)
            body = buffer.slice(position + HEADER_SIZE, header.length - HEADER_SIZE)
            _note_ids(window, header, decode_records(header, body), time)
        window.end_offset = window.ordered.end_offset = header.next_offset
        position += header.length


def _note_ordered(window: DedupeWindow, header: BatchHeader, committed_end: int) -> None:
    batch = StoredBatch(
        *(header.producer_epoch, header.producer_sequence),
        *(header.next_offset - 1, header.record_count, header.max_timestamp),
    )
    window.ordered.add(header.producer_id, batch, committed_end)


def _note_producer(window: DedupeWindow, header: BatchHeader, time: LogTime) -> None:
    ids = hash_id((header.producer_id, header.producer_sequence))
    window.add(time.age_time(header.max_timestamp), ids, [header.next_offset - 1], records=header.record_count)


def _note_ids(window: DedupeWindow, header: BatchHeader, records: pa.RecordBatch, time: LogTime) -> None:
    column = records.column("message_id")
    if column.null_count == len(column):
        return
    if header.columns & Column.OFFSET_DELTA:  # a batch that covers dropped records
        offsets = records.column("offset_delta").to_numpy().astype(np.int64) + header.base_offset
    else:
        offsets = np.arange(header.base_offset, header.next_offset)
    if column.null_count:
        offsets = offsets[column.is_valid().to_numpy(zero_copy_only=False)]
        column = column.drop_null()
    window.add(time.age_time(header.max_timestamp), hash_ids(column.to_pylist()), offsets)
