"""Of what a partition has, what a reader wants that filters by subject.

Batches without a record that matches are passed over. One in which most match goes to the reader as it is; of the
others the records that match are put together into smaller batches, which keep the offsets. Everything is read and
checked here, in pieces that are short enough not to keep others from the disk, and never on the event loop.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from liftpy_envelope.batch import HEADER_SIZE, check_body, read_header
from liftpy_envelope.errors import BatchTruncatedError, LiftError
from liftpy_envelope.subject_filter import SubjectMatcher
from liftpy_log.batches.partial import PartialBatch
from liftpy_log.batches.stored import StoredBatch
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.reader import Slice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from liftpy_envelope.batch import BatchHeader
    from liftpy_log.storage.disk import File
    from liftpy_server.pull.sending import Piece

__all__ = ["SCAN_COST_MAX", "Filtering", "filtered", "matcher_of"]

SCAN_COST_MAX: Final = 16 * 1024 * 1024
"""Bytes that one fetch looks through: some hundredths of a second. A batch counts as `_BATCH_COST` bytes more, and a
compressed one as what it becomes besides."""

_BATCH_COST: Final = 4 * 1024  # what could be looked through in the time that an empty batch takes
_STEP_COST_MAX: Final = 2 * 1024 * 1024
_WINDOW_BYTES: Final = 512 * 1024
_MERGED_BYTES_MAX: Final = 256 * 1024
_SMALL_BYTES_MAX: Final = 1024  # a batch of which less than this could be left away
_MATCHERS_KEPT: Final = 64  # what they remember of subjects is shared by all who ask for the same
_CODEC: Final = "lz4"


@lru_cache(maxsize=_MATCHERS_KEPT)
def matcher_of(patterns: tuple[str, ...]) -> SubjectMatcher | None:
    """What finds the records that these checked patterns match; None when that are all."""
    matcher = SubjectMatcher(patterns)
    return None if matcher.takes_all else matcher


class Filtering:
    """Looks through batches of one partition.

    Args:
        matcher: Finds the records.
        pinned: The batches, and the open files that they are in.
        bytes_max: About how many bytes to find; at least one batch always fits.
        cost_max: How much to look through, see `SCAN_COST_MAX`; at least one batch.

    Attributes:
        pieces: What to send.
        body_bytes: Size of the pieces.
        cost: Cost of what was looked through.
        last: The last batch that was looked through.
        is_done: Whether everything was looked through, or enough.
    """

    def __init__(
        self, matcher: SubjectMatcher, pinned: Sequence[tuple[File, Slice]], bytes_max: int, cost_max: int
    ) -> None:
        self._matcher = matcher
        self._pinned = list(pinned)
        self._bytes_max = bytes_max
        self._cost_max = cost_max
        self._position = self._pinned[0][1].position
        self._window_bytes = _WINDOW_BYTES
        self._taken_bytes = 0
        self._sent_end = -1
        self._partial: PartialBatch | None = None
        self.pieces: list[Piece] = []
        self.body_bytes = 0
        self.cost = 0
        self.last: Slice | None = None
        self.is_done = False

    @property
    def next_offset(self) -> int:
        """Where the reader is to go on, if that is beyond what is sent; -1 if it is not."""
        return self.last.next_offset if self.last is not None and self.last.next_offset > self._sent_end else -1

    def step(self) -> None:
        """Look through some of the batches. Waits for the disk.

        Raises:
            SegmentCorruptError: one is damaged.
            OSError: it could not be read.
        """
        until = self.cost + _STEP_COST_MAX
        while not self.is_done and self.cost < until:
            self._look_through_window()
        if self.is_done:
            self._flush()

    def _look_through_window(self) -> None:
        file, piece = self._pinned[0]
        start, end = self._position, piece.position + piece.length
        wanted = min(self._window_bytes, end - start)
        window = pa.py_buffer(file.read(start, wanted))
        try:
            if len(window) < wanted:
                raise BatchTruncatedError(f"the file ends {wanted - len(window)} bytes early")
            self._look_through(file, piece, window)
        except SegmentCorruptError:
            raise
        except LiftError as error:
            raise SegmentCorruptError(piece.segment.path, self._position, str(error)) from error
        if self._position == end and not self.is_done:
            del self._pinned[0]
            self.is_done = not self._pinned
            if self._pinned:
                self._position = self._pinned[0][1].position

    def _look_through(self, file: File, piece: Slice, window: pa.Buffer) -> None:
        """Look through the whole batches of a window that begins at the position."""
        view, at, end = memoryview(window), 0, piece.position + piece.length
        self._window_bytes = _WINDOW_BYTES
        while not self.is_done and (len(view) - at >= HEADER_SIZE or self._position + len(view) - at == end):
            if self._position == end:
                return
            header = read_header(view, at)
            if self._position + header.length > end:
                raise BatchTruncatedError(f"a batch of {header.length} bytes goes beyond byte {end}")
            if len(view) - at < header.length:
                self._window_bytes = max(_WINDOW_BYTES, header.length)
                return
            data = window.slice(at, header.length)
            check_body(header, data.slice(HEADER_SIZE))
            place = Slice(piece.segment, self._position, header.length, header.next_offset)
            self.cost += _BATCH_COST
            if not self._take(StoredBatch(header, data), file, place):
                self.is_done = True
                return
            at += header.length
            self._position += header.length
            self.last = place
            self.cost += header.length
            self.is_done = self.cost >= self._cost_max

    def _take(self, batch: StoredBatch, file: File, place: Slice) -> bool:
        """Take what matches; False when there is no room for it."""
        header = batch.header
        if not header.record_count:
            return True
        records = batch.records
        if header.is_compressed:
            self.cost += records.nbytes
        mask = self._matcher.mask(records.column("subject"))
        found = mask.true_count
        if not found:
            return True
        is_whole = _is_worth_all(header, found)
        size = header.length if is_whole else header.length * found // header.record_count
        if self._taken_bytes and self._taken_bytes + size > self._bytes_max:
            return False
        self._taken_bytes += size
        if is_whole:
            self._flush()
            self._send_whole(file, place)
            return True
        partial = self._partial
        if partial is None or not partial.can_take(header) or partial.size + size > _MERGED_BYTES_MAX:
            self._flush()
            partial = self._partial = PartialBatch(header)
        partial.take(batch, mask.to_numpy(zero_copy_only=False), records)
        return True

    def _send_whole(self, file: File, place: Slice) -> None:
        before = self.pieces[-1] if self.pieces else b""
        if (
            not isinstance(before, bytes)
            and before[0] is file
            and before[1].position + before[1].length == place.position
        ):
            place = place._replace(position=before[1].position, length=before[1].length + place.length)
            self.body_bytes -= before[1].length
            self.pieces.pop()
        self.pieces.append((file, place))
        self.body_bytes += place.length
        self._sent_end = place.next_offset

    def _flush(self) -> None:
        partial, self._partial = self._partial, None
        if partial is None:
            return
        encoded = partial.encode(_CODEC)
        self.pieces.append(b"".join(encoded.parts))
        self.body_bytes += encoded.length
        self._sent_end = encoded.next_offset


def _is_worth_all(header: BatchHeader, found: int) -> bool:
    """Whether a batch is sent as it is: then nobody copies it, and the reader drops the rest."""
    missing = header.record_count - found
    return missing <= found or header.length * missing // header.record_count < _SMALL_BYTES_MAX


async def filtered(filtering: Filtering, executor: Executor) -> None:
    """Take all steps, and let others have the executor in between.

    Raises:
        SegmentCorruptError, OSError: see `Filtering.step`.
    """
    loop = asyncio.get_running_loop()
    while not filtering.is_done:
        await loop.run_in_executor(executor, filtering.step)
