"""Reads of a log: which whole batches answer a fetch, and where a time is."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from liftpy_envelope.columns import Column

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Sequence

    import pyarrow as pa

    from liftpy_envelope.batch import BatchHeader
    from liftpy_log.segments.segment import Segment
    from liftpy_log.storage.disk import File
    from liftpy_log.storage.files import FileCache

__all__ = ["LogReader", "Slice", "pin_all", "unpin_all"]


class Slice(NamedTuple):
    """Whole batches in one segment file; `next_offset` is the offset after the last of them."""

    segment: Segment
    position: int
    length: int
    next_offset: int


class LogReader:
    """Looks things up in segments that their owner changes.

    Args:
        files: The node's open files.
        segments: The log's segments, oldest first.
        marks: (next offset, end position) of the newest batches of the newest segment.
    """

    def __init__(self, files: FileCache, segments: Sequence[Segment], marks: deque[tuple[int, int]]) -> None:
        self._files = files
        self._segments = segments
        self._marks = marks

    def read(self, offset: int, end_offset: int, bytes_max: int, hint: Slice | None) -> list[Slice]:
        """See `PartitionLog.read`; the offsets are in range."""
        slices: list[Slice] = []
        while offset < end_offset and bytes_max > 0:
            segment = self._segment_of(offset)
            file = self._files.get(segment)
            if hint is not None and hint.segment is segment and hint.next_offset == offset:
                position = hint.position + hint.length
            else:
                position, _ = segment.locate(file, offset)
            piece = self._cut(segment, file, position, end_offset, bytes_max)
            if piece.length <= 0:
                break  # the end lies inside of the next batch
            slices.append(piece)
            offset = piece.next_offset
            bytes_max -= piece.length
            hint = None
        return slices

    def _segment_of(self, offset: int) -> Segment:
        if offset >= self._segments[-1].base_offset:
            return self._segments[-1]
        return self._segments[bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1]

    def _cut(self, segment: Segment, file: File, position: int, end_offset: int, bytes_max: int) -> Slice:
        stop_offset, stop = self._end(segment, file, end_offset)
        if stop - position > bytes_max:
            limit = position + bytes_max
            stop_offset, stop = segment.index(file).floor_position(limit)
            if stop <= position:
                for at, header in segment.headers(file, position):
                    if at > position and at + header.length > limit:
                        break
                    stop_offset, stop = header.next_offset, at + header.length
        return Slice(segment, position, stop - position, stop_offset)

    def _end(self, segment: Segment, file: File, end_offset: int) -> tuple[int, int]:
        """(offset, position) where a read up to `end_offset` stops in this segment, on a batch's edge."""
        if end_offset >= segment.next_offset:
            return segment.next_offset, segment.size
        if segment is self._segments[-1]:
            for next_offset, position in reversed(self._marks):
                if next_offset == end_offset:
                    return next_offset, position
                if next_offset < end_offset:
                    break
        position, header = segment.locate(file, end_offset)
        return header.base_offset, position

    def offset_at_time(self, timestamp: int) -> int | None:
        """See `PartitionLog.offset_at_time`; not bounded by the start of the log."""
        for segment in self._segments:
            if not segment.size or segment.max_timestamp < timestamp:
                continue
            file = self._files.get(segment)
            found = segment.locate_time(file, timestamp)
            if found is None:
                continue
            position, header = found
            if not header.columns & (Column.TIMESTAMP | Column.OFFSET_DELTA):
                return header.base_offset
            header, records = segment.records(file, position)
            return header.base_offset + _first_delta(header, records, timestamp)
        return None


def pin_all(files: FileCache, slices: Sequence[Slice]) -> list[tuple[File, Slice]]:
    """Pin the files of all slices; `unpin_all` gives them back."""
    pinned: list[tuple[File, Slice]] = []
    try:
        pinned.extend((files.pin(piece.segment), piece) for piece in slices)
    except OSError:
        unpin_all(files, pinned)
        raise
    return pinned


def unpin_all(files: FileCache, pinned: Sequence[tuple[File, Slice]]) -> None:
    """Give back what `pin_all` pinned."""
    for file, piece in pinned:
        files.unpin(piece.segment, file)


def _first_delta(header: BatchHeader, records: pa.RecordBatch, timestamp: int) -> int:
    """How far behind the base offset of a batch its first record not before `timestamp` is."""
    first = 0
    if header.columns & Column.TIMESTAMP:
        times = records.column("timestamp").to_pylist()
        first = next(index for index, time in enumerate(times) if time >= timestamp)
    if header.columns & Column.OFFSET_DELTA:
        return int(records.column("offset_delta")[first].as_py())
    return first
