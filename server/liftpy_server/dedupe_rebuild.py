"""The deduplication window of a log, read back from it when the partition is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_envelope.batch import HEADER_SIZE, NO_PRODUCER, decode_records
from liftpy_envelope.columns import Column
from liftpy_log.dedupe import Stored
from liftpy_log.scan import walk_headers

if TYPE_CHECKING:
    from liftpy_envelope.batch import BatchHeader
    from liftpy_log.dedupe import DedupeId, DedupeWindow
    from liftpy_log.disk import File
    from liftpy_log.files import FileCache
    from liftpy_log.partition_log import PartitionLog

__all__ = ["rebuild_dedupe"]


def rebuild_dedupe(window: DedupeWindow, log: PartitionLog, files: FileCache) -> None:
    """Fill an empty window with the ids of the records that are young enough, compared with the newest.

    Raises:
        SegmentCorruptError: a batch on the way is damaged.
    """
    if not window.ids_max or not log.last_timestamp:
        return
    start = log.offset_at_time(log.last_timestamp - window.window_ns)
    if start is None:
        return
    for piece in log.read(start, log.log_end, 2**62):
        file = files.get(piece.segment)
        for position, header in walk_headers(file, piece.position, piece.position + piece.length):
            window.add(header.max_timestamp, _ids(file, position, header))


def _ids(file: File, position: int, header: BatchHeader) -> list[tuple[DedupeId, int | Stored]]:
    if header.producer_id != NO_PRODUCER:
        key = (header.producer_id, header.producer_sequence)
        return [(key, Stored(header.next_offset - 1, header.record_count))]
    if not header.columns & Column.MESSAGE_ID:
        return []
    body = file.read(position + HEADER_SIZE, header.length - HEADER_SIZE)
    ids = decode_records(header, body).column("message_id").to_pylist()
    return [(key, header.base_offset + index) for index, key in enumerate(ids) if key is not None]
