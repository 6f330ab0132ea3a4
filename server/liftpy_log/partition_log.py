"""The log of one partition: an ordered list of segments of which only the newest grows.

Offsets are assigned here and nowhere else, and a batch once appended is never changed; only a follower's log is ever
truncated, to where it agrees with its leader's, or reset. What is appended is durable when a group commit round, or a
roll, has reported it: `synced_end` says how far. `Durability` is the part of a log that rounds work with, and
`LogCompaction` the part that key compaction works with.

The order of a truncation makes a crash harmless, at any moment: all that is there is synced in its segments; the
entries of the write-ahead log are cancelled; the mark (see `cut_mark`) is durable; the segments are cut; the mark says
so. Before the mark is durable the log is as it was, after that it is cut, by whoever opens it if need be. No round of
group commit is at work meanwhile. A segment that was cut is another object from then on, so that nobody who remembers a
place in the old one finds it.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from liftpy_envelope.batch import HEADER_SIZE, NO_PRODUCER, encode_header
from liftpy_log.compaction.swap import LogCompaction
from liftpy_log.cut_mark import CutMark, CutState, load_cut_mark, save_cut_mark
from liftpy_log.durability.durability import Durability
from liftpy_log.entries import Appended, LogConfig, Tail, Unsynced
from liftpy_log.epochs import EpochHistory
from liftpy_log.errors import (
    BatchBoundaryError,
    BatchesRefusedError,
    OffsetOutOfRangeError,
    PartitionOfflineError,
    SegmentCorruptError,
    StorageFullError,
    UnfinishedCutError,
)
from liftpy_log.ids.ordered import save_ordered
from liftpy_log.limits import VERIFY_ON_OPEN_BYTES_MAX
from liftpy_log.opening import open_segments, rebuild_epochs
from liftpy_log.reader import LogReader
from liftpy_log.segments.segment import Segment, last_timestamp, remove_newest, remove_oldest
from liftpy_log.storage.disk import is_full, lacks_descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from liftpy_envelope.batch import BatchBody, BatchHeader
    from liftpy_envelope.ipc import BufferLike
    from liftpy_log.reader import Slice
    from liftpy_log.recent import RecentTail
    from liftpy_log.segments.recovery import TornTail
    from liftpy_log.storage.disk import Disk
    from liftpy_log.storage.files import FileCache

__all__ = ["LogConfig", "PartitionLog"]

logger = logging.getLogger(__name__)


class PartitionLog:
    """The log of one partition. `open` finds out what is there; everything else but a truncation is fast.

    Attributes:
        directory: Where the segments are.
        config: How the log is kept.
        epochs: Leader epochs, and the offsets at which they began.
        recent: Keeps the newest batches in memory, while the log leads; see `recent`.
        durability: How much of it is durable, and whether it is well.
        compaction: What key compaction works with.
        ordered_saves: How often the file of the ordered producers was written.
        torn_tail: What was cut off at its end when it was opened; None when it was whole.
    """

    torn_tail: TornTail | None = None

    def __init__(self, disk: Disk, files: FileCache, directory: Path, config: LogConfig) -> None:
        self.directory = directory
        self.config = config
        self.epochs = EpochHistory()
        self.recent: RecentTail | None = None
        self._disk = disk
        self._files = files
        self._log_start = 0
        self._segments: list[Segment] = []
        self._marks: deque[tuple[int, int]] = deque(maxlen=1_024)  # (next offset, position) of the newest batches
        self._reader = LogReader(files, self._segments, self._marks)
        self.durability = Durability(disk, directory)
        self._ordered_lock = threading.Lock()
        self.ordered_saves = 0
        self.compaction = LogCompaction(disk, files, self._segments, self.durability)

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
            disk: Disk that holds the files.
            files: The node's open files.
            directory: Directory of the partition.
            config: How to keep the log.
            log_start: Records below this offset were purged.
            durable_end: Records below this offset are known to have been durable.
            verify_bytes: How much of the newest segment to check beyond what its index asks for.
            unsynced_parents: Directories above it whose names may not be on disk. Where they are given, the names of
                an empty log are made durable together with its first record; the log loses nothing by that, and
                thousands are created without a wait for the disk.
            on_torn: Called before a torn tail is cut off; an error that it raises leaves it there.

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
            log.durability.unsynced_names = (directory, *unsynced_parents)
            if active.next_offset > first.base_offset:  # written by a process that was killed before a round ended
                log.durability.sync_names(set())
        log.durability.synced_end = active.next_offset
        log._log_start = max(log_start, log._segments[0].base_offset)
        log.durability.tail = Tail(active, active.size, active.next_offset)
        log.epochs = rebuild_epochs(log._segments, files)
        log._advance(log._log_start)
        log.compaction.note_opened()
        log._marks.append((active.next_offset, active.size))
        return log

    @classmethod
    def offline(cls, disk: Disk, files: FileCache, directory: Path, failure: PartitionOfflineError) -> PartitionLog:
        """A log that could not be opened: it holds nothing and refuses everything, saying why."""
        log = cls(disk, files, directory, LogConfig())
        log.durability.failure = failure
        log.durability.tail = Tail(Segment(disk, directory, 0), 0, 0)
        return log

    @property
    def segments(self) -> Sequence[Segment]:
        """Segments of the log, oldest first."""
        return self._segments

    @property
    def log_start(self) -> int:
        """First offset there is."""
        return self._log_start

    @property
    def size_bytes(self) -> int:
        """Bytes of record batches in all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def active(self) -> Segment:
        """The segment that grows."""
        return self._segments[-1]

    @property
    def log_end(self) -> int:
        """Offset after the last record."""
        return self.durability.tail.next_offset

    @property
    def last_timestamp(self) -> int:
        """Time of the last record; 0 when there never was one since the last purge."""
        return last_timestamp(self._segments)

    @property
    def failure(self) -> PartitionOfflineError | None:
        """Why the log refuses to work further; None while it is well."""
        return self.durability.failure

    @property
    def synced_end(self) -> int:
        """Records below this offset are durable."""
        return self.durability.synced_end

    def _sync_active(self) -> None:
        self.durability.sync_names(set())
        self._files.get(self.active).sync()

    def append(
        self,
        body: BatchBody,
        *,
        leader_epoch: int,
        timestamp: int,
        producer_id: bytes = NO_PRODUCER,
        producer_sequence: int = -1,
        producer_epoch: int = 0,
    ) -> Appended:
        """Append one batch.

        Args:
            body: Records of the batch.
            leader_epoch: Leader epoch of the leader that takes them.
            timestamp: Now; raised to that of the last record where the clock went back.
            producer_id: Producer id of an idempotent batch.
            producer_sequence: Producer sequence of an idempotent batch.
            producer_epoch: Producer epoch of a batch of an ordered producer.

        Raises:
            StorageFullError: the disk is full; nothing of the batch is there.
            PartitionOfflineError: an I/O error, now or earlier.
        """
        if self.durability.failure is not None:
            raise self.durability.failure
        active, position, base_offset = self.durability.tail
        parts, body_length, _, _, _, count = body
        length = HEADER_SIZE + body_length
        timestamp = max(timestamp, active.max_timestamp or self.last_timestamp)
        if position and self._is_over(position, active.first_timestamp, length, timestamp):
            self.roll()
            active, position, _ = self.durability.tail
        header = encode_header(
            body,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            base_timestamp=timestamp,
            max_timestamp=timestamp,
            producer_id=producer_id,
            producer_sequence=producer_sequence,
            producer_epoch=producer_epoch,
        )
        recent, whole = self.recent, None
        encoded: list[BufferLike] = [header, *parts]
        if recent is not None and length <= recent.batch_bytes_max:
            whole = b"".join(encoded)  # a copy: the parts may be of a buffer that holds much else
            encoded = [whole]
        elif len(parts) == 1 and isinstance(parts[0], bytes):
            encoded = [header + parts[0]]
        self.epochs.begin(leader_epoch, base_offset)
        self._write(active, position, encoded)
        next_offset = base_offset + count
        active.extend(length, next_offset, timestamp, timestamp)
        self._keep_unsynced(active, position, encoded, next_offset, length)
        position += length
        self._marks.append((next_offset, position))
        self.durability.tail = Tail(active, position, next_offset)
        if recent is not None and whole is not None:
            recent.add(base_offset, next_offset, whole)
        return Appended(base_offset, next_offset, timestamp)

    def append_batches(self, data: BufferLike | memoryview, headers: Sequence[BatchHeader]) -> Appended:
        """Append whole batches of a leader as they are.

        Args:
            data: Bytes of the batches, one after the other; not to be changed until they are durable.
            headers: Theirs, checked; of the bodies nothing is looked at.

        Returns:
            Where they went. When the disk became full after a segment was closed on the way, those that found room:
            `next_offset` is then below that of the last header.

        Raises:
            BatchesRefusedError: they do not continue the log; nothing of them is there.
            StorageFullError: the disk is full; nothing of them is there.
            PartitionOfflineError: an I/O error, now or earlier.
        """
        self.durability.check_well()
        base_offset = self.durability.tail.next_offset
        self._check_continues(len(data), headers, base_offset)
        buffer = pa.py_buffer(data)
        taken = at = 0
        while taken < len(headers):
            count, length = self._fitting(headers, taken)
            try:
                if not count:
                    self.roll()
                    continue
                self._append_run(buffer.slice(at, length), headers[taken : taken + count])
            except StorageFullError:
                if not taken:
                    raise
                break
            taken += count
            at += length
        return Appended(base_offset, self.durability.tail.next_offset, headers[taken - 1].max_timestamp)

    def _check_continues(self, size: int, headers: Sequence[BatchHeader], offset: int) -> None:
        epoch = self.epochs.latest
        length = 0
        for header in headers:
            if header.base_offset != offset:
                raise BatchesRefusedError(self.directory, f"offset {header.base_offset} comes where {offset} must")
            if header.leader_epoch < epoch:
                raise BatchesRefusedError(self.directory, f"epoch {header.leader_epoch} comes after {epoch}")
            offset, epoch = header.next_offset, header.leader_epoch
            length += header.length
        if not headers or length != size:
            raise BatchesRefusedError(self.directory, f"{len(headers)} headers speak of {length} bytes, not of {size}")

    def _fitting(self, headers: Sequence[BatchHeader], start: int) -> tuple[int, int]:
        """How many batches from `start` on the newest segment takes, and their bytes; an empty one takes one."""
        active, position, _ = self.durability.tail
        born, length = active.first_timestamp, 0
        for index in range(start, len(headers)):
            header = headers[index]
            if position + length and self._is_over(position + length, born, header.length, header.max_timestamp):
                return index - start, length
            born = header.base_timestamp if born is None else born
            length += header.length
        return len(headers) - start, length

    def _append_run(self, data: pa.Buffer, headers: Sequence[BatchHeader]) -> None:
        active, position, _ = self.durability.tail
        self._write(active, position, [data])
        next_offset, start = headers[-1].next_offset, position
        for header in headers:
            self.epochs.begin(header.leader_epoch, header.base_offset)
            active.append(header)
            position += header.length
            self._marks.append((header.next_offset, position))
        self._keep_unsynced(active, start, [data], next_offset, len(data))
        self.durability.tail = Tail(active, position, next_offset)

    def _keep_unsynced(
        self, segment: Segment, position: int, parts: list[BufferLike], next_offset: int, length: int
    ) -> None:
        if self.config.keep_unsynced:
            self.durability.keep_unsynced(Unsynced(segment, position, parts, next_offset), length)
        else:
            self.durability.appended_unkept(next_offset)

    def _is_over(self, size: int, born: int | None, length: int, timestamp: int) -> bool:
        """Whether a segment of `size` bytes is too large, or too old, for another batch."""
        return size + length > self.config.segment_bytes or (
            born is not None and timestamp - born >= self.config.segment_age_ns
        )

    def _write(self, segment: Segment, position: int, parts: list[BufferLike]) -> None:
        try:
            file = self._files.get(segment)
        except OSError as error:
            if is_full(error):
                self.epochs.truncate(self.log_end)
                raise StorageFullError(f"{segment.path} can not be opened now: {error.strerror}") from error
            raise self.durability.fail(f"opening {segment.path} failed: {error}") from error
        try:
            file.write(position, parts)
        except OSError as error:
            if not is_full(error):
                raise self.durability.fail(f"writing {segment.path} failed: {error}") from error
            try:
                file.truncate(position)
            except OSError as worse:
                raise self.durability.fail(f"cutting {segment.path} back failed: {worse}") from worse
            self.epochs.truncate(self.log_end)
            raise StorageFullError(f"no room on the disk of {segment.path}: {error.strerror}") from error

    def roll(self) -> None:
        """Close the newest segment and begin another, if there is anything in it.

        A segment is durable before its successor exists.

        Raises:
            StorageFullError: there is no room for another file; the old one goes on growing.
            PartitionOfflineError: an I/O error.
        """
        self.durability.check_well()
        active = self.active
        if not active.size:
            return
        try:
            self._sync_active()
        except OSError as error:
            if is_full(error):  # no sync fails like this: a file could not be opened
                raise StorageFullError(f"{active.path} can not be opened now: {error.strerror}") from error
            raise self.durability.fail(f"fdatasync of {active.path} failed: {error}") from error
        self.durability.note_synced(active.next_offset)
        try:
            active.flush_index()
            segment, file = Segment.create(self._disk, self.directory, active.next_offset)
            active.drop_index()
        except OSError as error:
            if is_full(error):
                raise StorageFullError(f"no room for a new segment in {self.directory}") from error
            raise self.durability.fail(f"creating a segment in {self.directory} failed: {error}") from error
        self._files.add(segment, file)
        self._segments.append(segment)
        self._marks.clear()
        self._marks.append((segment.base_offset, 0))
        self.durability.tail = Tail(segment, 0, segment.base_offset)

    def read(self, offset: int, end_offset: int, bytes_max: int, hint: Slice | None = None) -> list[Slice]:
        """Whole batches from the one that holds `offset` up to `end_offset`.

        Args:
            offset: First offset wanted.
            end_offset: Batches that begin here or later are not returned.
            bytes_max: About how much; the first batch is returned whatever its size.
            hint: The last slice of the previous read; saves the look-up when `offset` follows on it.

        Raises:
            OffsetOutOfRangeError: `offset` is below the start of the log or above `end_offset`.
            SegmentCorruptError: a batch on the way is damaged; the log works no further.
        """
        self.durability.check_well()
        if not self._log_start <= offset <= end_offset:
            raise OffsetOutOfRangeError(offset, self._log_start, end_offset)
        try:
            return self._reader.read(offset, end_offset, bytes_max, hint)
        except SegmentCorruptError as error:
            raise self.durability.fail_with(error) from None

    def offset_at_time(self, timestamp: int) -> int | None:
        """Offset of the first record not before `timestamp` (ns); None when all records are earlier.

        Raises:
            SegmentCorruptError: a batch on the way is damaged; the log works no further.
        """
        self.durability.check_well()
        try:
            found = self._reader.offset_at_time(timestamp)
        except SegmentCorruptError as error:
            raise self.durability.fail_with(error) from None
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
            raise self.durability.fail_with(error) from None

    def _records(self, segment: Segment, position: int) -> pa.RecordBatch:
        try:
            return segment.records(self._files.get(segment), position)[1]
        except SegmentCorruptError as error:
            raise self.durability.fail_with(error) from None

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
                raise self.durability.fail(f"deleting segments in {self.directory} failed: {error}") from error
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
        self.durability.check_well()
        offset = min(offset, self.log_end)
        if offset == self.log_end:
            self.roll()
        self._advance(offset)
        self.drop_before(offset)

    def truncate(self, end: int) -> None:
        """Drop the records from `end` on, and make durable what is left; nothing when there are none to drop.

        Blocks for several syncs. When it returns no crash brings the dropped records back, and a round of group commit
        that ended before says nothing of what is appended from now on. Slices of dropped records must not be read any
        more.

        Args:
            end: Offset at which a batch begins, or the start or end of the log.

        Raises:
            OffsetOutOfRangeError: it is below the start of the log or above its end; nothing has changed.
            BatchBoundaryError: it is inside of a batch; nothing has changed.
            StorageFullError: there is no room to take note of the cut; nothing has changed.
            UnfinishedCutError: there is none to finish it; the log is to be opened again.
            PartitionOfflineError: an I/O error, now or earlier; the log may be cut when it is opened next.
        """
        self.durability.check_well()
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
            UnfinishedCutError: there is none to finish it; the log is to be opened again.
            PartitionOfflineError: an I/O error, now or earlier; the log may begin anew when it is opened next.
        """
        self.durability.check_well()
        self._cut(CutMark(CutState.RENEWING, start, self.log_end, start, 0), lambda: self._renew(start))
        self.epochs = EpochHistory()
        self._log_start = start

    def forget_ahead(self) -> None:
        """Cancel, durably, what the write-ahead log holds of this log, whose files are about to go.

        Raises:
            OSError: it may or may not be cancelled.
        """
        if self.durability.wal is not None:
            self.durability.wal.void(self.directory, is_given_up=True)
            self.durability.wal = None

    def _find_edge(self, segment: Segment, end: int) -> tuple[int, BatchHeader | None]:
        """Where in a segment `end` is, and the header of the batch before it."""
        if end == segment.base_offset:
            return 0, None
        try:
            at, header = segment.locate(self._files.get(segment), end - 1)
        except SegmentCorruptError as error:
            raise self.durability.fail_with(error) from None
        except OSError as error:
            if is_full(error):
                raise StorageFullError(f"no room to cut the log in {self.directory} back: {error.strerror}") from error
            raise self.durability.fail(f"reading {segment.path} failed: {error}") from error
        if header.next_offset != end:
            raise BatchBoundaryError(end, header.base_offset, header.next_offset)
        return at + header.length, header

    def _cut(self, mark: CutMark, cut: Callable[[], Segment]) -> None:
        with self.durability.between_rounds():
            try:
                self._sync_active()
            except OSError as error:
                if lacks_descriptor(error):  # nothing was synced
                    reason = f"no open file to cut the log in {self.directory} back: {error.strerror}"
                    raise StorageFullError(reason) from error
                raise self.durability.fail(f"fdatasync of {self.active.path} failed: {error}") from error
            self.durability.note_synced(self.log_end)
            mark = self._announce(mark)
            try:
                active = cut()
                save_cut_mark(self._disk, self.directory, mark._replace(state=CutState.DONE))
            except OSError as error:
                reason = f"cutting the log in {self.directory} back to offset {mark.end} failed: {error}"
                raise self._cut_failure(reason, error) from error
            self._marks.clear()
            self._marks.append((mark.end, active.size))
            self.durability.tail = Tail(active, active.size, mark.end)
            self.durability.note_cut(mark.end)

    def _announce(self, mark: CutMark) -> CutMark:
        """Make it durable that the log is cut, or change nothing. Returns the mark that says so."""
        self.compaction.note_cut(mark.end)
        earlier, is_writing = None, False
        try:
            earlier = load_cut_mark(self._disk, self.directory)
            if self.durability.wal is not None:
                self.durability.wal.void(self.directory)
                self.durability.wal = None
            if earlier is not None:  # the checkpoint may not know of that one either
                mark = mark._replace(old_end=max(mark.old_end, earlier.old_end))
            is_writing = True
            save_cut_mark(self._disk, self.directory, mark)
        except PartitionOfflineError as error:
            raise self.durability.fail_with(error) from None
        except OSError as error:
            reason = f"cutting the log in {self.directory} back to offset {mark.end} failed: {error}"
            if not is_full(error):
                raise self.durability.fail(reason) from error
            if is_writing and self._may_be_marked(earlier):
                raise self._cut_failure(reason, error) from error
            raise StorageFullError(f"no room to cut the log in {self.directory} back: {error.strerror}") from error
        return mark

    def _may_be_marked(self, earlier: CutMark | None) -> bool:
        """Whether the mark may be another than the earlier one, after a write of it that failed."""
        try:
            return load_cut_mark(self._disk, self.directory) != earlier
        except PartitionOfflineError as error:
            raise self.durability.fail_with(error) from None
        except OSError as error:
            if not is_full(error):
                raise self.durability.fail(f"reading where {self.directory} is cut back failed: {error}") from error
            return True

    def _cut_failure(self, reason: str, error: OSError) -> PartitionOfflineError:
        """The log stops working in the middle of a cut. Returns the error to raise."""
        if is_full(error):
            reason += ". It is finished when the log is opened again, which is tried every few seconds"
            return self.durability.fail_with(UnfinishedCutError(reason))
        return self.durability.fail(f"{reason}. It is finished when the node is started again")

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

    def save_ordered(self, content: bytes, after: int | None = None) -> bool:
        """Write the file of the ordered producers. Returns whether it did.

        Args:
            content: Bytes of the file.
            after: `ordered_saves` when they were made; if it was written since then, it stays as it is.

        Raises:
            StorageFullError: there is no room for it; the file is as it was.
            PartitionOfflineError: an I/O error, now or earlier.
        """
        try:
            with self._ordered_lock:  # a checkpoint writes it in a thread
                if after is not None:
                    self.durability.check_well()  # another log may be in its place
                    if after != self.ordered_saves:
                        return False
                save_ordered(self._disk, self.directory, content)
                self.ordered_saves += 1
        except OSError as error:
            text = f"the file of the ordered producers in {self.directory} could not be written: {error.strerror}"
            if is_full(error):
                raise StorageFullError(text) from error
            raise self.durability.fail(text) from error
        return True

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
                raise self.durability.fail(f"closing {self.active.path} failed: {error}") from error
            self.durability.note_synced(self.log_end)
            self._flush_index(self.active.flush_index)
        self.release()

    def release(self) -> None:
        """Give the files back without a further look at them. Plans for a compaction are void from now on."""
        self.compaction.cuts += 1
        for segment in self._segments:
            self._files.forget(segment)
