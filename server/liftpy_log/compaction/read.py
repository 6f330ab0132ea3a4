"""A sealed segment from its first batch to its last, in large reads, with every checksum checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from liftpy_envelope.batch import HEADER_SIZE, check_body, read_header
from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError, BatchVersionError
from liftpy_log.batches.stored import StoredBatch
from liftpy_log.errors import SegmentCorruptError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from liftpy_log.compaction.state import SealedSegment
    from liftpy_log.storage.disk import Disk, File

__all__ = ["read_segment"]

_WINDOW_BYTES: Final = 512 * 1024


def read_segment(disk: Disk, segment: SealedSegment, pause: Callable[[int], None]) -> Iterator[StoredBatch]:
    """The batches of a segment, with a file of its own, so that it may be deleted meanwhile.

    Args:
        disk: Disk that holds the files.
        segment: The segment.
        pause: Called after every window with its bytes.

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
