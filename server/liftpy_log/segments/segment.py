"""One segment: a file of record batches, and what is known about it.

<base_offset:020d>.log        record batches, one after the other
<base_offset:020d>.c<generation:08d>.log    the same after key compaction; see `liftpy_log.compaction.swap`
<base_offset:020d>.index      see `index`
<base_offset:020d>.timeindex  see `index`
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from liftpy_envelope.batch import decode_records
from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError, BatchVersionError
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.limits import INDEX_FLUSH_ENTRIES, INDEX_INTERVAL_BYTES
from liftpy_log.segments.index import OFFSET_SUFFIX, TIME_SUFFIX, SegmentIndex
from liftpy_log.segments.scan import read_batch, walk_headers
from liftpy_log.storage.disk import read_whole, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from liftpy_envelope.batch import BatchHeader
    from liftpy_log.storage.disk import Disk, File
    from liftpy_log.storage.files import FileCache

__all__ = ["Segment", "base_offset_of", "last_timestamp", "remove_newest", "remove_oldest", "segment_path"]

_NAME: Final = re.compile(r"[0-9]{20}(\.c[0-9]{8})?\.log")
_BAD: Final = (BatchTruncatedError, BatchCorruptError, BatchVersionError)


def segment_path(directory: Path, base_offset: int, generation: int = 0) -> Path:
    """The file of the segment that begins at `base_offset`, and was compacted `generation` times."""
    compacted = f".c{generation:08d}" if generation else ""
    return directory / f"{base_offset:020d}{compacted}.log"


def base_offset_of(name: str) -> int | None:
    """The base offset in a segment file's name; None when it is not one."""
    return int(name[:20]) if _NAME.fullmatch(name) else None


class Segment:
    """One segment of a partition.

    Attributes:
        path: The file of record batches.
        base_offset: Offset of the first record, or the next one while there is none.
        generation: How often it was compacted.
        size: Bytes of record batches.
        next_offset: Offset after the last record.
        first_timestamp: Time of the first batch, ns; None while there is none.
        max_timestamp: Time of the last batch, ns; 0 while there is none.
    """

    __slots__ = (
        "_disk",
        "_index",
        "_index_next_at",
        "_unflushed",
        "base_offset",
        "first_timestamp",
        "generation",
        "max_timestamp",
        "next_offset",
        "path",
        "size",
    )

    def __init__(self, disk: Disk, directory: Path, base_offset: int, generation: int = 0) -> None:
        self._disk = disk
        self.path = segment_path(directory, base_offset, generation)
        self.base_offset = base_offset
        self.generation = generation
        self.size = 0
        self.next_offset = base_offset
        self.first_timestamp: int | None = None
        self.max_timestamp = 0
        self._index: SegmentIndex | None = None
        self._index_next_at = 0
        self._unflushed = 0

    @classmethod
    def create(cls, disk: Disk, directory: Path, base_offset: int, *, durable: bool = True) -> tuple[Segment, File]:
        """A new and empty segment, whose name is on disk when this returns, unless it need not be `durable` yet."""
        segment = cls(disk, directory, base_offset)
        segment.start_over()
        file = disk.open(segment.path, create=True)
        if not durable:
            return segment, file
        try:
            disk.sync_directory(directory)
        except OSError:
            file.close()
            disk.remove(segment.path)
            raise
        return segment, file

    def extend(self, length: int, next_offset: int, base_timestamp: int, max_timestamp: int) -> None:
        """Take note of a batch of `length` bytes behind what is there."""
        position = self.size
        if position >= self._index_next_at:
            assert self._index is not None, "only an indexed segment grows"
            self._index.add(self.next_offset, position, max_timestamp)
            self._index_next_at = position + INDEX_INTERVAL_BYTES
            self._unflushed += 1
        if self.first_timestamp is None:
            self.first_timestamp = base_timestamp
        self.size = position + length
        self.next_offset = next_offset
        self.max_timestamp = max_timestamp

    def append(self, header: BatchHeader) -> None:
        """Take note of a batch that was read behind what is known so far."""
        assert header.base_offset == self.next_offset
        self.extend(header.length, header.next_offset, header.base_timestamp, header.max_timestamp)

    def start_over(self) -> None:
        """Forget everything known, before the file is scanned again from its beginning."""
        self.size = 0
        self.next_offset = self.base_offset
        self.first_timestamp = None
        self.max_timestamp = 0
        self._index = SegmentIndex(self.base_offset)
        self._index_next_at = 0
        self._unflushed = 0

    def shortened(self, file: File, position: int, last: BatchHeader | None) -> Segment:
        """What this segment is when its file is cut to `position`.

        Args:
            file: Open file of the segment, not cut yet.
            position: Where its batch `last` ends.
            last: Header of the last batch that is kept, which was located; None when none is.
        """
        other = Segment(self._disk, self.path.parent, self.base_offset, self.generation)
        other.start_over()
        if last is not None:
            index = self.index(file)
            index.keep_before(position)
            other.adopt_index(index)
            other._unflushed = len(index)
            other._index_next_at = index.last()[1] + INDEX_INTERVAL_BYTES if len(index) else 0
            other.size = position
            other.next_offset = last.next_offset
            other.first_timestamp = self.first_timestamp
            other.max_timestamp = last.max_timestamp
        return other

    def load_index(self) -> SegmentIndex | None:
        """Read the index files; None when they are missing or not well."""
        try:
            offsets = self.path.with_suffix(OFFSET_SUFFIX)
            times = self.path.with_suffix(TIME_SUFFIX)
            return SegmentIndex.decode(self.base_offset, read_whole(self._disk, offsets), read_whole(self._disk, times))
        except FileNotFoundError:
            return None

    def adopt_index(self, index: SegmentIndex) -> None:
        """Use an index that was checked against the file."""
        self._index = index
        self._unflushed = 0

    def flush_index(self, *, at_least: int = 1) -> None:
        """Write the index files, when `at_least` entries are not in them yet."""
        if self._index is None or self._unflushed < at_least:
            return
        offsets, times = self._index.encode()
        write_atomically(self._disk, self.path.with_suffix(OFFSET_SUFFIX), offsets, durable=False)
        write_atomically(self._disk, self.path.with_suffix(TIME_SUFFIX), times, durable=False)
        self._unflushed = 0

    def flush_long_index(self) -> None:
        """Write the index files when so much is missing in them that opening would take long."""
        self.flush_index(at_least=INDEX_FLUSH_ENTRIES)

    def drop_index(self) -> None:
        """Free the memory of an index that is in its files."""
        self.flush_index()
        self._index = None

    def remove(self) -> None:
        """Delete the files; the indexes first, so that none is ever left without its segment."""
        self._remove_index()
        self._disk.remove(self.path)

    def discard_index(self) -> None:
        """Delete index files that speak of batches which a crash took, for good.

        Others of the same size may take their place, and the files would fit those but for the times.
        """
        self._remove_index()
        self._disk.sync_directory(self.path.parent)
        self._unflushed = 0 if self._index is None else len(self._index)

    def _remove_index(self) -> None:
        for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
            self._disk.remove(self.path.with_suffix(suffix))

    def index(self, file: File) -> SegmentIndex:
        """The index, loaded or rebuilt when it is not in memory.

        Raises:
            SegmentCorruptError: it has to be rebuilt, and the segment is damaged.
        """
        if self._index is None:
            self._index = self.load_index()
        if self._index is None:
            self.rebuild(file, self.size)
        assert self._index is not None
        return self._index

    def rebuild(self, file: File, end: int) -> None:
        """Read every batch up to `end`, check it, and index it anew.

        Raises:
            SegmentCorruptError: a batch is damaged.
        """
        self.start_over()
        while self.size < end:
            position = self.size
            try:
                header, _ = read_batch(file, position, end)
            except _BAD as error:
                raise SegmentCorruptError(self.path, position, str(error)) from error
            self.check_chain(position, header)
            self.append(header)

    def check_chain(self, position: int, header: BatchHeader) -> None:
        """Check that a batch follows on the one before it.

        Raises:
            SegmentCorruptError: its offset is not the next one.
        """
        if header.base_offset != self.next_offset:
            raise SegmentCorruptError(
                self.path, position, f"offset {header.base_offset} stands where {self.next_offset} must"
            )

    def locate(self, file: File, offset: int) -> tuple[int, BatchHeader]:
        """Position and header of the batch that holds `offset`, which must be in the segment.

        Raises:
            SegmentCorruptError: the segment is damaged on the way.
        """
        found = self._find(file, lambda index: index.floor(offset), lambda header: header.next_offset > offset)
        if found is None:
            raise SegmentCorruptError(self.path, self.size, f"offset {offset} is not where it must be")
        return found

    def locate_time(self, file: File, timestamp: int) -> tuple[int, BatchHeader] | None:
        """Position and header of the first batch with a record not before `timestamp`; None when there is none.

        Raises:
            SegmentCorruptError: the segment is damaged on the way.
        """

        def is_wanted(header: BatchHeader) -> bool:
            return header.max_timestamp >= timestamp and header.record_count > 0

        return self._find(file, lambda index: index.before_time(timestamp), is_wanted)

    def _find(
        self, file: File, start: Callable[[SegmentIndex], tuple[int, int]], wanted: Callable[[BatchHeader], bool]
    ) -> tuple[int, BatchHeader] | None:
        for attempt in range(2):
            offset, position = start(self.index(file))
            try:
                for at, header in self.headers(file, position):
                    if at == position and header.base_offset != offset:
                        break
                    if wanted(header):
                        return at, header
                else:
                    return None
            except SegmentCorruptError:
                if attempt:
                    raise
            self.rebuild(file, self.size)  # the index lied or the segment is damaged: reading all of it tells which
        return None

    def headers(self, file: File, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches from `position`, where one must begin.

        Raises:
            SegmentCorruptError: no good header stands where one must.
        """
        next_at = position
        try:
            for at, header in walk_headers(file, position, self.size):
                next_at = at + header.length
                yield at, header
        except _BAD as error:
            raise SegmentCorruptError(self.path, next_at, str(error)) from error

    def read(self, file: File, position: int) -> tuple[BatchHeader, bytes]:
        """Header and checked body of the batch at `position`.

        Raises:
            SegmentCorruptError: it is damaged.
        """
        try:
            return read_batch(file, position, self.size)
        except _BAD as error:
            raise SegmentCorruptError(self.path, position, str(error)) from error

    def records(self, file: File, position: int) -> tuple[BatchHeader, pa.RecordBatch]:
        """Header and records of the batch at `position`; its checksum is looked at before anything of it is believed.

        Raises:
            SegmentCorruptError: it is damaged, or not what its header announces.
        """
        header, body = self.read(file, position)
        try:
            return header, decode_records(header, body)
        except BatchCorruptError as error:
            raise SegmentCorruptError(self.path, position, str(error)) from error


def last_timestamp(segments: Sequence[Segment]) -> int:
    """Time of the last record in segments, oldest first; 0 when there is none in them."""
    return next((segment.max_timestamp for segment in reversed(segments) if segment.size), 0)


def remove_oldest(disk: Disk, files: FileCache, segments: list[Segment], count: int, *, in_order: bool = False) -> None:
    """Delete the first `count` segments of a log.

    Args:
        disk: Disk that holds the files.
        files: The node's open files.
        segments: Segments of the log, oldest first; what is deleted is taken from the list.
        count: Number of segments.
        in_order: One after the other, so that no power loss brings one back whose successor is gone.

    Raises:
        OSError: those that are left in the list are still there.
    """
    for _ in range(count):
        oldest = segments[0]
        files.forget(oldest)
        oldest.remove()
        del segments[0]
        if in_order:
            disk.sync_directory(oldest.path.parent)


def remove_newest(disk: Disk, files: FileCache, segments: list[Segment], kept: Segment | None) -> None:
    """Delete the segments of a log behind `kept`, the newest first; all of them when that is None.

    Each is gone for good before the next one goes, so that a crash leaves no hole.

    Raises:
        OSError: those that are left in the list are still there.
    """
    while segments and segments[-1] is not kept:
        newest = segments[-1]
        files.forget(newest)
        newest.remove()
        disk.sync_directory(newest.path.parent)
        del segments[-1]
