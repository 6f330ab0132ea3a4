"""Cutting a follower's log back to where it agrees with its leader's, and beginning it anew.

The order is what makes a crash harmless, at any moment: all that is there is synced in its segments; the entries of
the write-ahead log are cancelled; the mark (see `cut_mark`) is durable; the segments are cut; the mark says so. Before
the mark is durable the log is as it was, after that it is cut, by whoever opens it if need be. No round of group
commit is at work meanwhile. A segment that was cut is another object from then on, so that nobody who remembers a
place in the old one finds it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from liftpy_log.appending import LogAppending
from liftpy_log.cut_mark import CutMark, CutState, load_cut_mark, save_cut_mark
from liftpy_log.entries import Tail
from liftpy_log.epochs import EpochHistory
from liftpy_log.errors import (
    BatchBoundaryError,
    OffsetOutOfRangeError,
    PartitionOfflineError,
    SegmentCorruptError,
    StorageFullError,
)
from liftpy_log.segments.segment import Segment, remove_newest
from liftpy_log.storage.disk import is_full

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from liftpy_envelope.batch import BatchHeader
    from liftpy_log.entries import LogConfig
    from liftpy_log.storage.disk import Disk
    from liftpy_log.storage.files import FileCache

__all__ = ["LogTruncation"]


class LogTruncation(LogAppending):
    """The part of a log that cuts it back."""

    def __init__(self, disk: Disk, files: FileCache, directory: Path, config: LogConfig) -> None:
        super().__init__(disk, files, directory, config)
        self._log_start = 0

    def truncate(self, end: int) -> None:
        """Drop the records from `end` on, and make durable what is left; nothing when there are none to drop.

        Blocks for several syncs. When it returns no crash brings the dropped records back, and a round of group commit
        that ended before says nothing of what is appended from now on. Slices of dropped records must not be read any
        more.

        Args:
            end: offset at which a batch begins, or the start or end of the log.

        Raises:
            OffsetOutOfRangeError: it is below the start of the log or above its end; nothing has changed.
            BatchBoundaryError: it is inside of a batch; nothing has changed.
            StorageFullError: there is no room to take note of the cut; nothing has changed.
            PartitionOfflineError: an I/O error, now or earlier; the log may be cut when it is opened next.
        """
        self.check_well()
        if not self._log_start <= end <= self.log_end:
            raise OffsetOutOfRangeError(end, self._log_start, self.log_end)
        if end == self.log_end:
            return
        if end == self._log_start:  # which may be inside of a batch
            self.rebuild(end)
            return
        segment = self._segments[bisect_right(self._segments, end, key=lambda each: each.base_offset) - 1]
        position, last = self._find_edge(segment, end)
        mark = CutMark(CutState.CUTTING, end, self.log_end, segment.base_offset, position)
        self._cut(mark, lambda: self._shorten(segment, position, last))
        self.epochs.truncate(end)

    def rebuild(self, start: int) -> None:
        """Drop all records, and go on at `start`, wherever that is. See `truncate`.

        Raises:
            StorageFullError: there is no room to take note of it; nothing has changed.
            PartitionOfflineError: an I/O error, now or earlier; the log may begin anew when it is opened next.
        """
        self.check_well()
        self._cut(CutMark(CutState.RENEWING, start, self.log_end, start, 0), lambda: self._renew(start))
        self.epochs = EpochHistory()
        self._log_start = start

    def forget_ahead(self) -> None:
        """Cancel, durably, what the write-ahead log holds of this log, whose files are about to go.

        Raises:
            OSError: it may or may not be cancelled.
        """
        if self.wal is not None:
            self.wal.void(self.directory, is_given_up=True)
            self.wal = None

    def _find_edge(self, segment: Segment, end: int) -> tuple[int, BatchHeader | None]:
        """Where in a segment `end` is, and the header of the batch before it."""
        if end == segment.base_offset:
            return 0, None
        try:
            at, header = segment.locate(self._files.get(segment), end - 1)
        except SegmentCorruptError as error:
            raise self.fail_with(error) from None
        except OSError as error:
            raise self.fail(f"reading {segment.path} failed: {error}") from error
        if header.next_offset != end:
            raise BatchBoundaryError(end, header.base_offset, header.next_offset)
        return at + header.length, header

    def _cut(self, mark: CutMark, cut: Callable[[], Segment]) -> None:
        with self.between_rounds():
            try:
                self._sync_active()
            except OSError as error:
                raise self.fail(f"fdatasync of {self.active.path} failed: {error}") from error
            self._note_synced(self.log_end)
            mark = self._announce(mark)
            try:
                active = cut()
                save_cut_mark(self._disk, self.directory, mark._replace(state=CutState.DONE))
            except OSError as error:
                reason = f"cutting the log in {self.directory} back to offset {mark.end} failed: {error}"
                raise self.fail(f"{reason}. It is finished when the node is started again") from error
            self._marks.clear()
            self._marks.append((mark.end, active.size))
            self._tail = Tail(active, active.size, mark.end)
            self._note_cut(mark.end)

    def _announce(self, mark: CutMark) -> CutMark:
        """Make it durable that the log is cut, or change nothing. Returns the mark that says so."""
        earlier = None
        try:
            earlier = load_cut_mark(self._disk, self.directory)
            if self.wal is not None:
                self.wal.void(self.directory)
                self.wal = None
            if earlier is not None:  # the checkpoint may not know of that one either
                mark = mark._replace(old_end=max(mark.old_end, earlier.old_end))
            save_cut_mark(self._disk, self.directory, mark)
        except PartitionOfflineError as error:
            raise self.fail_with(error) from None
        except OSError as error:
            if is_full(error) and self._is_marked(earlier):
                raise StorageFullError(f"no room to cut the log in {self.directory} back: {error.strerror}") from error
            raise self.fail(f"cutting the log in {self.directory} back failed: {error}") from error
        return mark

    def _is_marked(self, mark: CutMark | None) -> bool:
        try:
            return load_cut_mark(self._disk, self.directory) == mark
        except (OSError, PartitionOfflineError):
            return False

    def _shorten(self, segment: Segment, position: int, last: BatchHeader | None) -> Segment:
        """Cut the log back to `position` in one of its segments, which is the newest then."""
        remove_newest(self._disk, self._files, self._segments, segment)
        file = self._files.get(segment)
        shortened = segment.shortened(file, position, last)
        segment.discard_index()
        file.truncate(position)
        file.sync()
        self._files.forget(segment)
        self._segments[-1] = shortened
        return shortened

    def _renew(self, start: int) -> Segment:
        remove_newest(self._disk, self._files, self._segments, None)
        segment, file = Segment.create(self._disk, self.directory, start)
        self._files.add(segment, file)
        self._segments.append(segment)
        return segment
