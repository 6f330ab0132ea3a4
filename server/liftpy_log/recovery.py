"""What a segment file holds after a crash.

A write that was under way leaves a torn tail: bytes after the last whole batch that no whole batch follows. Only that
is ever cut off. Anything else that is not well was well once, and takes the partition offline: a bad batch with a
good one somewhere behind it, a batch out of order, a log that ends before what is known to have been durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError, BatchVersionError
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.scan import find_valid_batch, read_batch, walk_headers

if TYPE_CHECKING:
    from liftpy_log.disk import File
    from liftpy_log.segment import Segment

__all__ = ["recover_active", "recover_sealed"]


def recover_sealed(segment: Segment, file: File, next_base: int) -> None:
    """Learn what a closed segment holds, from its index and its last batches.

    Raises:
        SegmentCorruptError: it does not end where the next segment begins.
    """
    end = file.size()
    if not _resume(segment, file, end, end):
        segment.rebuild(file, end)
    else:
        try:
            for position, header in walk_headers(file, segment.size, end):
                segment.check_chain(position, header)
                segment.append(header)
        except (BatchTruncatedError, BatchCorruptError, BatchVersionError, SegmentCorruptError):
            segment.rebuild(file, end)  # finds the same place, or shows that the index lied
    if segment.next_offset != next_base:
        raise SegmentCorruptError(
            segment.path,
            segment.size,
            f"it ends at offset {segment.next_offset}, the next segment begins at {next_base}",
        )
    segment.drop_index()


def recover_active(segment: Segment, file: File, *, durable_end: int, verify_bytes: int) -> int:
    """Learn what the newest segment holds, check its end, and cut off a torn tail.

    Args:
        segment: the segment; it knows all of its content afterwards.
        file: its open file.
        durable_end: offset up to which records are known to have been durable.
        verify_bytes: how much of the end to check beyond what the index asks for.

    Returns:
        How many bytes were cut off.

    Raises:
        SegmentCorruptError: something other than a torn tail is wrong with it.
    """
    end = file.size()
    if not _resume(segment, file, end, max(0, end - verify_bytes)):
        segment.start_over()
    cut = 0
    while segment.size < end:
        position = segment.size
        try:
            header, _ = read_batch(file, position, end)
        except (BatchTruncatedError, BatchCorruptError) as error:
            follower = find_valid_batch(file, position + 1, end)
            if follower is not None:
                reason = f"{error}; a good batch follows at byte {follower}, so this is no torn tail"
                raise SegmentCorruptError(segment.path, position, reason) from error
            cut = end - position
            break
        except BatchVersionError as error:
            raise SegmentCorruptError(segment.path, position, str(error)) from error
        segment.check_chain(position, header)
        segment.append(header)
    if segment.next_offset < durable_end:
        reason = f"the log ends at offset {segment.next_offset}, but records up to {durable_end} were durable"
        raise SegmentCorruptError(segment.path, segment.size, reason)
    if cut:
        file.truncate(segment.size)
    return cut


def _resume(segment: Segment, file: File, end: int, before: int) -> bool:
    """Take over the part of the index that lies before `before`; False when there is none to trust."""
    index = segment.load_index()
    if index is None or not len(index) or end == 0:
        return False
    offset, position = index.floor_position(min(before, end - 1))
    try:
        _, first = next(walk_headers(file, 0, end))
        _, header = next(walk_headers(file, position, end))
    except (BatchTruncatedError, BatchCorruptError, BatchVersionError):
        return False
    if header.base_offset != offset or first.base_offset != segment.base_offset:
        return False
    index.keep_before(position)
    segment.start_over()
    segment.adopt_index(index)
    segment.first_timestamp = first.base_timestamp
    segment.size = position
    segment.next_offset = offset
    return True
