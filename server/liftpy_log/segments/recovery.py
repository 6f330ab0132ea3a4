"""What a segment file holds after a crash.

Writes that were under way leave a torn tail, and only that is ever cut off. It is

- bytes after the last whole batch that no whole batch follows, or
- when the power went, a batch of which a sector never came to the disk, while later ones, written within the same
  minute, did: writes that were not synced reach the disk in any order.

Anything else that is not well was well once, and takes the partition offline: a batch in which bits turned with a
good one somewhere behind it, a batch out of order, a log that ends before what is known to have been durable.

Damage of the last batch looks like a torn tail, too. So whoever opens the log is told before anything is cut off, and
can keep that in mind: a log that was cut proves nothing where others have longer ones.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from liftpy_envelope.batch import HEADER_SIZE, read_header
from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError, BatchVersionError
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.limits import UNSYNCED_AGE_NS_MAX
from liftpy_log.segments.scan import find_valid_batch, has_unwritten_sector, read_batch, walk_headers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from liftpy_log.segments.index import SegmentIndex
    from liftpy_log.segments.segment import Segment
    from liftpy_log.storage.disk import File

__all__ = ["TornTail", "find_end", "recover_active", "recover_sealed"]

logger = logging.getLogger(__name__)

_BAD = (BatchTruncatedError, BatchCorruptError)


class TornTail(NamedTuple):
    """Bytes at the end of a log that are no whole batch.

    Attributes:
        path: The segment's file.
        position: Where in it they begin.
        length: Number of bytes.
        offset: The log ends there without them.
    """

    path: Path
    position: int
    length: int
    offset: int


def recover_sealed(segment: Segment, file: File, next_base: int) -> None:
    """Learn what a closed segment holds, from its index and its last batches.

    Raises:
        SegmentCorruptError: it does not end where the next segment begins.
    """
    end = file.size()
    if not _resume(segment, file, segment.load_index(), end, end):
        segment.rebuild(file, end)
    else:
        try:
            for position, header in walk_headers(file, segment.size, end):
                segment.check_chain(position, header)
                segment.append(header)
        except (*_BAD, BatchVersionError, SegmentCorruptError):
            segment.rebuild(file, end)  # finds the same place, or shows that the index lied
    if segment.next_offset != next_base:
        raise SegmentCorruptError(
            segment.path,
            segment.size,
            f"it ends at offset {segment.next_offset}, the next segment begins at {next_base}",
        )
    segment.drop_index()


def find_end(segment: Segment, file: File) -> int:
    """Offset after the last batch of a segment that follows on the others and has a good header."""
    end = file.size()
    if not _resume(segment, file, segment.load_index(), end, end):
        segment.start_over()
    try:
        for _, header in walk_headers(file, segment.size, end):
            if header.base_offset != segment.next_offset:
                break
            segment.append(header)
    except (*_BAD, BatchVersionError) as error:
        logger.info("%s is read up to byte %d: %s", segment.path, segment.size, error)
    return segment.next_offset


def recover_active(
    segment: Segment, file: File, *, durable_end: int, verify_bytes: int, on_torn: Callable[[TornTail], None]
) -> None:
    """Learn what the newest segment holds, check its end, and cut off a torn tail.

    Args:
        segment: The segment; it knows all of its content afterwards.
        file: Open file of the segment.
        durable_end: Offset up to which records are known to have been durable.
        verify_bytes: How much of the end to check beyond what the index asks for.
        on_torn: Called before a torn tail is cut off; an error that it raises leaves the file as it is.

    Raises:
        SegmentCorruptError: something other than a torn tail is wrong with it.
    """
    end = file.size()
    index = segment.load_index()
    indexed_bytes = 0 if index is None or not len(index) else index.last()[1] + 1
    if not _resume(segment, file, index, end, max(0, end - verify_bytes)):
        segment.start_over()
    torn = None
    while segment.size < end:
        position = segment.size
        try:
            header, _ = read_batch(file, position, end)
        except _BAD as error:
            follower = _proof_of_damage(file, position, end)
            if follower is not None:
                reason = f"{error}; a good batch follows at byte {follower}, so this is no torn tail"
                raise SegmentCorruptError(segment.path, position, reason) from error
            torn = TornTail(segment.path, position, end - position, segment.next_offset)
            break
        except BatchVersionError as error:
            raise SegmentCorruptError(segment.path, position, str(error)) from error
        segment.check_chain(position, header)
        segment.append(header)
    if segment.next_offset < durable_end:
        reason = f"the log ends at offset {segment.next_offset}, but records up to {durable_end} were durable"
        raise SegmentCorruptError(segment.path, segment.size, reason)
    if torn is not None:
        on_torn(torn)
        logger.warning(
            "%s ends with %d bytes from byte %d that are no whole batch, and are cut off: as a rule a write that was "
            "never finished or acknowledged; the log ends at offset %d",
            *(torn.path, torn.length, torn.position, torn.offset),
        )
        file.truncate(segment.size)
    if indexed_bytes > segment.size:
        segment.discard_index()


def _proof_of_damage(file: File, position: int, end: int) -> int | None:
    """Position of a good batch that shows that the bad one at `position` was well; None when it may just be torn."""
    try:
        bad_end = position + read_header(file.read(position, min(HEADER_SIZE, end - position))).length
        follower = find_valid_batch(file, bad_end, end)  # what lies inside of it is a value
    except _BAD:
        bad_end = position + HEADER_SIZE
        follower = find_valid_batch(file, position + 1, end)
    if follower is None or (has_unwritten_sector(file, position, bad_end) and _is_recent(file, follower, end)):
        return None
    return follower


def _is_recent(file: File, position: int | None, end: int) -> bool:
    """Whether the good batches from `position` on may all have waited for the same sync."""
    times: list[int] = []
    next_at = end
    while position is not None:
        try:
            for at, header in walk_headers(file, position, end):
                times = [*times[:1], header.max_timestamp]
                next_at = at + header.length
            position = None
        except _BAD:
            position = find_valid_batch(file, next_at, end)
        except BatchVersionError:
            return False
    return times[-1] - times[0] <= UNSYNCED_AGE_NS_MAX


def _resume(segment: Segment, file: File, index: SegmentIndex | None, end: int, before: int) -> bool:
    """Take over the part of the index that lies before `before`; False when there is none to trust."""
    if index is None or not len(index) or end == 0:
        return False
    offset, position = index.floor_position(min(before, end - 1))
    try:
        _, first = next(walk_headers(file, 0, end))
        _, header = next(walk_headers(file, position, end))
    except (*_BAD, BatchVersionError):
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
