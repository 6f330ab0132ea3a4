"""The log of one partition: an ordered list of segments of which only the newest grows.

Offsets are given out here and nowhere else, and a batch once appended is never changed; only a follower's log is ever
cut back, to where it agrees with its leader's. What is appended is durable when a group commit round, or a roll, has
reported it: `synced_end` says how far.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING

from liftpy_log.compaction_swap import LogCompaction
from liftpy_log.entries import LogConfig, Tail
from liftpy_log.errors import OffsetOutOfRangeError, SegmentCorruptError
from liftpy_log.limits import VERIFY_ON_OPEN_BYTES_MAX
from liftpy_log.opening import open_segments, rebuild_epochs
from liftpy_log.reader import LogReader
from liftpy_log.segments.segment import Segment, remove_oldest
from liftpy_log.storage.disk import is_full

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from liftpy_envelope.batch import BatchHeader
    from liftpy_log.errors import PartitionOfflineError
    from liftpy_log.reader import Slice
    from liftpy_log.segments.recovery import TornTail
    from liftpy_log.storage.disk import Disk
    from liftpy_log.storage.files import FileCache

__all__ = ["LogConfig", "PartitionLog"]

logger = logging.getLogger(__name__)


class PartitionLog(LogCompaction):
    """See the module. `open` finds out what is there; everything else but a cut is fast.

    Attributes:
        torn_tail: what was cut off at its end when it was opened; None when it was whole.
    """

    torn_tail: TornTail | None = None

    def __init__(self, disk: Disk, files: FileCache, directory: Path, config: LogConfig) -> None:
        super().__init__(disk, files, directory, config)
        self._reader = LogReader(files, self._segments, self._marks)

    @classmethod
    def open(
        cls,
        disk: Disk,
        files: FileCache,
        directory: Path,
        config: LogConfig | None = None,
        *,
        log_start: int = 0,
        durable_end: int = 0,
        verify_bytes: int = VERIFY_ON_OPEN_BYTES_MAX,
        unsynced_parents: tuple[Path, ...] = (),
        on_torn: Callable[[TornTail], None] | None = None,
    ) -> PartitionLog:
        """Open a log, or create an empty one.

        Args:
            disk: where.
            files: the node's open files.
            directory: of the partition.
            config: how to keep the log.
            log_start: records below this offset were purged.
            durable_end: records below this offset are known to have been durable.
            verify_bytes: how much of the newest segment to check beyond what its index asks for.
            unsynced_parents: directories above it whose names may not be on disk. Where they are given, the names of
                an empty log are made durable together with its first record; the log loses nothing by that, and
                thousands are created without a wait for the disk.
            on_torn: called before a torn tail is cut off; an error that it raises leaves it there.

        Raises:
            SegmentCorruptError: something other than a torn tail is wrong.
            OSError: the disk fails.
        """
        log = cls(disk, files, directory, config or LogConfig())

        def found_torn(tail: TornTail) -> None:
            if on_torn is not None:
                on_torn(tail)
            log.torn_tail = tail

        log._segments += open_segments(
            disk,
            files,
            directory,
            durable_end=durable_end,
            verify_bytes=verify_bytes,
            first_offset=log_start,
            on_torn=found_torn,
            durable_names=not unsynced_parents,
        )
        active, first = log.active, log._segments[0]
        if unsynced_parents and durable_end <= first.base_offset:
            log._unsynced_names = (directory, *unsynced_parents)
            if active.next_offset > first.base_offset:  # written by a process that was killed before a round ended
                log.sync_names(set())
        log.synced_end = active.next_offset
        log._log_start = max(log_start, log._segments[0].base_offset)
        log._tail = Tail(active, active.size, active.next_offset)
        log.epochs = rebuild_epochs(log._segments, files)
        log._advance(log._log_start)
        log._gone_below = log.load_cleaned().gone_below
        log._marks.append((active.next_offset, active.size))
        return log

    @classmethod
    def offline(cls, disk: Disk, files: FileCache, directory: Path, failure: PartitionOfflineError) -> PartitionLog:
        """A log that could not be opened: it holds nothing and refuses everything, saying why."""
        log = cls(disk, files, directory, LogConfig())
        log.failure = failure
        log._tail = Tail(Segment(disk, directory, 0), 0, 0)
        return log

    @property
    def segments(self) -> Sequence[Segment]:
        """Oldest first."""
        return self._segments

    @property
    def log_start(self) -> int:
        """First offset there is."""
        return self._log_start

    @property
    def size_bytes(self) -> int:
        """Bytes of record batches in all segments."""
        return sum(segment.size for segment in self._segments)

    def read(self, offset: int, end_offset: int, bytes_max: int, hint: Slice | None = None) -> list[Slice]:
        """Whole batches from the one that holds `offset` up to `end_offset`.

        Args:
            offset: first offset wanted.
            end_offset: batches that begin here or later are not given out.
            bytes_max: about how much; the first batch is given out whatever its size.
            hint: the last slice of the previous read; saves the look-up when `offset` follows on it.

        Raises:
            OffsetOutOfRangeError: `offset` is below the start of the log or above `end_offset`.
            SegmentCorruptError: a batch on the way is damaged; the log works no further.
        """
        self.check_well()
        if not self._log_start <= offset <= end_offset:
            raise OffsetOutOfRangeError(offset, self._log_start, end_offset)
        try:
            return self._reader.read(offset, end_offset, bytes_max, hint)
        except SegmentCorruptError as error:
            raise self.fail_with(error) from None

    def offset_at_time(self, timestamp: int) -> int | None:
        """Offset of the first record not before `timestamp` (ns); None when all records are earlier.

        Raises:
            SegmentCorruptError: a batch on the way is damaged; the log works no further.
        """
        self.check_well()
        try:
            found = self._reader.offset_at_time(timestamp)
        except SegmentCorruptError as error:
            raise self.fail_with(error) from None
        return None if found is None else max(self._log_start, found)

    def batches(self, offset: int) -> Iterator[tuple[BatchHeader, Callable[[], pa.RecordBatch]]]:
        """The batches from the one that holds `offset` on: their headers, and what reads and checks their records.

        Raises:
            OffsetOutOfRangeError: see `read`.
            SegmentCorruptError: a batch on the way is damaged, and is named with its file; the log works no further.
        """
        pieces = self.read(offset, self.log_end, 2**62)
        try:
            for segment, position, length, _ in pieces:
                file = self._files.get(segment)
                for at, header in segment.headers(file, position):
                    if at >= position + length:
                        break
                    yield header, partial(self._records, segment, at)
        except SegmentCorruptError as error:
            raise self.fail_with(error) from None

    def _records(self, segment: Segment, position: int) -> pa.RecordBatch:
        try:
            return segment.records(self._files.get(segment), position)[1]
        except SegmentCorruptError as error:
            raise self.fail_with(error) from None

    def drop_before(self, offset: int) -> int:
        """Delete the segments that lie wholly below `offset`; the newest is kept. Returns how many went.

        Raises:
            PartitionOfflineError: an I/O error.
        """
        before = len(self._segments)
        count = bisect_right(self._segments[1:], offset, key=lambda segment: segment.base_offset)
        try:
            # Of segments below a purge it is known when the log is opened that they are to go, holes or not.
            in_order = offset > self._log_start
            remove_oldest(self._disk, self._files, self._segments, count, in_order=in_order)
        except OSError as error:
            if not is_full(error):
                raise self.fail(f"deleting segments in {self.directory} failed: {error}") from error
            logger.warning("no room to delete all that may go in %s: %s", self.directory, error)
        if len(self._segments) < before:
            self._advance(self._segments[0].base_offset)
        return before - len(self._segments)

    def _advance(self, offset: int) -> None:
        self._log_start = max(self._log_start, offset)
        self.epochs.advance(self._log_start)
        if self._log_start == self.log_end:
            self.epochs.truncate(self._log_start)  # they hold no record any more

    def purge(self, offset: int) -> None:
        """Make `offset` the start of the log; whole segments below it are deleted.

        Raises:
            StorageFullError, PartitionOfflineError: see `roll`.
        """
        self.check_well()
        offset = min(offset, self.log_end)
        if offset == self.log_end:
            self.roll()
        self._advance(offset)
        self.drop_before(offset)

    def flush_index(self) -> None:
        """Write the index of the newest segment when much is missing in its files."""
        self._flush_index(self.active.flush_long_index)

    @staticmethod
    def _flush_index(flush: Callable[[], None]) -> None:
        try:
            flush()
        except OSError as error:  # a cache: opening takes longer without it
            logger.warning("an index could not be written: %s", error)

    def close(self) -> None:
        """Make everything durable and give the files back.

        Raises:
            PartitionOfflineError: an I/O error.
        """
        if self.failure is None:
            try:
                self._sync_active()
            except OSError as error:
                raise self.fail(f"closing {self.active.path} failed: {error}") from error
            self._note_synced(self.log_end)
            self._flush_index(self.active.flush_index)
        self.release()

    def release(self) -> None:
        """Give the files back without a further look at them. Plans for a compaction are void from now on."""
        self._cuts += 1
        for segment in self._segments:
            self._files.forget(segment)
