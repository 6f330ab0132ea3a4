"""A sealed segment from its first batch to its last, in large reads, with every checksum checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from liftpy_envelope.batch import HEADER_SIZE, BatchHeader, check_body, decode_records, read_header
from liftpy_envelope.columns import Column
from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError, BatchVersionError
from liftpy_log.errors import SegmentCorruptError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from liftpy_log.compaction.state import SealedSegment
    from liftpy_log.storage.disk import Disk, File

__all__ = ["StoredBatch", "read_segment"]

_WINDOW_BYTES: Final = 512 * 1024


class StoredBatch(NamedTuple):
    """One whole and checked batch."""

    header: BatchHeader
    data: pa.Buffer

    @property
    def records(self) -> pa.RecordBatch:
        """Its records, decoded at every call."""
        return decode_records(self.header, self.data.slice(HEADER_SIZE))

    def offsets(self, records: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The offset of each of its records."""
        base = self.header.base_offset
        if self.header.columns & Column.OFFSET_DELTA:
            deltas: npt.NDArray[np.int32] = records.column("offset_delta").to_numpy()
            return deltas.astype(np.int64) + base
        return np.arange(base, base + records.num_rows)

    def times(self, records: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The time of each of its records, in ns."""
        if self.header.columns & Column.TIMESTAMP:
            times: npt.NDArray[np.int64] = records.column("timestamp").to_numpy()
            return times
        return np.full(records.num_rows, self.header.base_timestamp, np.int64)


def read_segment(disk: Disk, segment: SealedSegment, pause: Callable[[int], None]) -> Iterator[StoredBatch]:
    """The batches of a segment, with a file of its own, so that it may be deleted meanwhile.

    Args:
        disk: where.
        segment: which.
        pause: called after every window with its bytes.

    Raises:
        FileNotFoundError: it is gone.
        SegmentCorruptError: a batch is damaged, or the segment does not hold what it did.
    """
    file = disk.open(segment.path)
    try:
        yield from _batches(file, segment, pause)
    finally:
        file.close()


def _batches(file: File, segment: SealedSegment, pause: Callable[[int], None]) -> Iterator[StoredBatch]:
    position, offset, wanted = 0, segment.base_offset, _WINDOW_BYTES
    while position < segment.size:
        window = pa.py_buffer(file.read(position, min(wanted, segment.size - position)))
        view = memoryview(window)
        if len(view) < min(wanted, segment.size - position):
            break  # the file was cut
        at, wanted = 0, _WINDOW_BYTES
        try:
            while len(view) - at >= HEADER_SIZE or position + len(view) == segment.size > position + at:
                header = read_header(view, at)
                if len(view) - at < header.length and position + len(view) < segment.size:
                    wanted = max(wanted, header.length)
                    break
                data = window.slice(at, min(header.length, len(view) - at))
                check_body(header, data.slice(HEADER_SIZE))
                if header.base_offset != offset:
                    raise BatchCorruptError(f"offset {header.base_offset} stands where {offset} must")
                yield StoredBatch(header, data)
                at, offset = at + header.length, header.next_offset
        except (BatchCorruptError, BatchTruncatedError, BatchVersionError) as error:
            raise SegmentCorruptError(segment.path, position + at, str(error)) from error
        position += at
        pause(at)
    if offset != segment.next_offset:
        raise SegmentCorruptError(segment.path, position, f"it ends at offset {offset}, not at {segment.next_offset}")
