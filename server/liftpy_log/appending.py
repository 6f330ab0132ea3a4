"""The end of a partition's log that grows: batches of our own, whole batches of a leader, and new segments."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pyarrow as pa

from liftpy_envelope.batch import HEADER_SIZE, NO_PRODUCER, encode_header
from liftpy_log.durability.durability import LogHealth
from liftpy_log.entries import Appended, Tail, Unsynced
from liftpy_log.epochs import EpochHistory
from liftpy_log.errors import BatchesRefusedError, StorageFullError
from liftpy_log.segments.segment import Segment
from liftpy_log.storage.disk import is_full

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from liftpy_envelope.batch import BatchBody, BatchHeader
    from liftpy_envelope.ipc import BufferLike
    from liftpy_log.entries import LogConfig
    from liftpy_log.recent import RecentTail
    from liftpy_log.storage.disk import Disk
    from liftpy_log.storage.files import FileCache

__all__ = ["LogAppending"]


class LogAppending(LogHealth):
    """The part of a log that appends.

    Attributes:
        directory: where the segments are.
        config: how the log is kept.
        epochs: which leader epoch began at which offset.
        recent: keeps the newest batches in memory, while the log leads; see `recent`.
    """

    def __init__(self, disk: Disk, files: FileCache, directory: Path, config: LogConfig) -> None:
        super().__init__()
        self.directory = directory
        self.config = config
        self.epochs = EpochHistory()
        self.recent: RecentTail | None = None
        self._disk = disk
        self._files = files
        self._segments: list[Segment] = []
        self._marks: deque[tuple[int, int]] = deque(maxlen=1_024)  # (next offset, position) of the newest batches
        self._unsynced_names: tuple[Path, ...] = ()  # directories whose names lead to the log and may not be on disk

    @property
    def active(self) -> Segment:
        """The segment that grows."""
        return self._segments[-1]

    @property
    def log_end(self) -> int:
        """Offset after the last record."""
        return self._tail.next_offset

    @property
    def last_timestamp(self) -> int:
        """Time of the last record; 0 when there never was one since the last purge."""
        return next((segment.max_timestamp for segment in reversed(self._segments) if segment.size), 0)

    def sync_names(self, synced: set[Path]) -> None:
        """Make the names durable that lead to the log, where they may not be. May be called from any thread.

        Args:
            synced: directories that were synced since those of this log were made; what is synced here is added.

        Raises:
            OSError: they may not be durable still.
        """
        for directory in self._unsynced_names:
            if directory not in synced:
                self._disk.sync_directory(directory)
                synced.add(directory)
        self._unsynced_names = ()

    def _sync_active(self) -> None:
        self.sync_names(set())
        self._files.get(self.active).sync()

    def append(
        self,
        body: BatchBody,
        *,
        leader_epoch: int,
        timestamp: int,
        producer_id: bytes = NO_PRODUCER,
        producer_sequence: int = -1,
    ) -> Appended:
        """Append one batch.

        Args:
            body: its records.
            leader_epoch: of the leader that takes them.
            timestamp: now; raised to that of the last record where the clock went back.
            producer_id: of an idempotent batch.
            producer_sequence: of an idempotent batch.

        Raises:
            StorageFullError: the disk is full; nothing of the batch is there.
            PartitionOfflineError: an I/O error, now or earlier.
        """
        if self.failure is not None:
            raise self.failure
        active, position, base_offset = self._tail
        parts, body_length, _, _, _, count = body
        length = HEADER_SIZE + body_length
        timestamp = max(timestamp, active.max_timestamp or self.last_timestamp)
        if position and self._is_over(position, active.first_timestamp, length, timestamp):
            self.roll()
            active, position, _ = self._tail
        header = encode_header(
            body,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            base_timestamp=timestamp,
            max_timestamp=timestamp,
            producer_id=producer_id,
            producer_sequence=producer_sequence,
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
        self._tail = Tail(active, position, next_offset)
        if recent is not None and whole is not None:
            recent.add(base_offset, next_offset, whole)
        return Appended(base_offset, next_offset, timestamp)

    def append_batches(self, data: BufferLike | memoryview, headers: Sequence[BatchHeader]) -> Appended:
        """Append whole batches of a leader as they are.

        Args:
            data: their bytes, one batch after the other; not to be changed until they are durable.
            headers: theirs, checked; of the bodies nothing is looked at.

        Returns:
            Where they went. When the disk became full after a segment was closed on the way, those that found room:
            `next_offset` is then below that of the last header.

        Raises:
            BatchesRefusedError: they do not continue the log; nothing of them is there.
            StorageFullError: the disk is full; nothing of them is there.
            PartitionOfflineError: an I/O error, now or earlier.
        """
        self.check_well()
        base_offset = self._tail.next_offset
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
        return Appended(base_offset, self._tail.next_offset, headers[taken - 1].max_timestamp)

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
        active, position, _ = self._tail
        born, length = active.first_timestamp, 0
        for index in range(start, len(headers)):
            header = headers[index]
            if position + length and self._is_over(position + length, born, header.length, header.max_timestamp):
                return index - start, length
            born = header.base_timestamp if born is None else born
            length += header.length
        return len(headers) - start, length

    def _append_run(self, data: pa.Buffer, headers: Sequence[BatchHeader]) -> None:
        active, position, _ = self._tail
        self._write(active, position, [data])
        next_offset, start = headers[-1].next_offset, position
        for header in headers:
            self.epochs.begin(header.leader_epoch, header.base_offset)
            active.append(header)
            position += header.length
            self._marks.append((header.next_offset, position))
        self._keep_unsynced(active, start, [data], next_offset, len(data))
        self._tail = Tail(active, position, next_offset)

    def _keep_unsynced(
        self, segment: Segment, position: int, parts: list[BufferLike], next_offset: int, length: int
    ) -> None:
        if self.config.keep_unsynced:
            self._unsynced.append(Unsynced(segment, position, parts, next_offset))
            self._unsynced_bytes += length
        else:
            self._kept_from = next_offset

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
            raise self.fail(f"opening {segment.path} failed: {error}") from error
        try:
            file.write(position, parts)
        except OSError as error:
            if not is_full(error):
                raise self.fail(f"writing {segment.path} failed: {error}") from error
            try:
                file.truncate(position)
            except OSError as worse:
                raise self.fail(f"cutting {segment.path} back failed: {worse}") from worse
            self.epochs.truncate(self.log_end)
            raise StorageFullError(f"no room on the disk of {segment.path}: {error.strerror}") from error

    def roll(self) -> None:
        """Close the newest segment and begin another, if there is anything in it.

        A segment is durable before its successor exists.

        Raises:
            StorageFullError: there is no room for another file; the old one goes on growing.
            PartitionOfflineError: an I/O error.
        """
        self.check_well()
        active = self.active
        if not active.size:
            return
        try:
            self._sync_active()
        except OSError as error:
            if is_full(error):  # no sync fails like this: a file could not be opened
                raise StorageFullError(f"{active.path} can not be opened now: {error.strerror}") from error
            raise self.fail(f"fdatasync of {active.path} failed: {error}") from error
        self._note_synced(active.next_offset)
        try:
            active.flush_index()
            segment, file = Segment.create(self._disk, self.directory, active.next_offset)
            active.drop_index()
        except OSError as error:
            if is_full(error):
                raise StorageFullError(f"no room for a new segment in {self.directory}") from error
            raise self.fail(f"creating a segment in {self.directory} failed: {error}") from error
        self._files.add(segment, file)
        self._segments.append(segment)
        self._marks.clear()
        self._marks.append((segment.base_offset, 0))
        self._tail = Tail(segment, 0, segment.base_offset)
