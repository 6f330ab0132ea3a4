"""The records that key compaction keeps, in a new segment file beside those that it replaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_log.batches.partial import PartialBatch
from liftpy_log.compaction.state import CleanedSegment
from liftpy_log.segments.index import OFFSET_SUFFIX, TIME_SUFFIX
from liftpy_log.segments.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from liftpy_envelope.ipc import BufferLike
    from liftpy_log.batches.stored import StoredBatch
    from liftpy_log.storage.disk import Disk

__all__ = ["SegmentWriter"]

_BATCH_BYTES: Final = 256 * 1024  # batches are merged up to this size
_WHOLE_BYTES_MIN: Final = 64 * 1024  # larger ones of which all records stay are copied as they are
_SYNC_BYTES: Final = 8 * 1024 * 1024  # so that no sync of somebody else has to wait for much of this file
_TEMPORARY: Final = ".tmp"


class SegmentWriter:
    """Writes one compacted segment.

    A batch of an idempotent producer that is merged with others loses the producer's id: what is compacted is older
    than the deduplication window. So each batch that is not a copy is marked as compacted.

    Args:
        disk: Disk that holds the files.
        directory: Directory of the partition.
        base_offset: Base offset of the segment.
        generation: Generation of the segment.
        codec: Codec with which batches are compressed that were made of compressed ones: `lz4` or `zstd`.
    """

    def __init__(self, disk: Disk, directory: Path, base_offset: int, generation: int, codec: str) -> None:
        self._disk = disk
        self._codec = codec
        self._segment = Segment(disk, directory, base_offset, generation)
        self._segment.start_over()
        self._path = self._segment.path.with_name(self._segment.path.name + _TEMPORARY)
        disk.remove(self._path)
        self._file = disk.open(self._path, create=True)
        self._is_open = True
        self._unsynced = 0
        self._records = 0
        self._run: PartialBatch | None = None

    def take(self, batch: StoredBatch, mask: npt.NDArray[np.bool_] | None) -> None:
        """Take the next batch; `mask` says which of its records stay, None is all of them.

        Raises:
            OSError: it could not be written.
        """
        header = batch.header
        run = self._run
        if (
            mask is None
            and header.length >= _WHOLE_BYTES_MIN
            and (run is None or not run.is_empty or not run.can_take(header))
        ):
            self._flush()
            self._write([batch.data], header.length, header.next_offset, (header.base_timestamp, header.max_timestamp))
            self._records += header.record_count
            return
        staying = header.record_count if mask is None else int(mask.sum())
        size = header.length * staying // max(1, header.record_count)
        if run is None or not run.can_take(header) or (not run.is_empty and staying and run.size + size > _BATCH_BYTES):
            self._flush()
            run = self._run = PartialBatch(header, is_compacted=True)
        run.take(batch, mask)

    def finish(self) -> CleanedSegment:
        """Make the file durable, and write its index.

        Raises:
            OSError: that failed.
        """
        self._flush()
        self._file.sync()
        self._close()
        segment = self._segment
        segment.flush_index()
        assert segment.first_timestamp is not None, "a segment has at least one batch"
        return CleanedSegment(
            path=self._path,
            base_offset=segment.base_offset,
            next_offset=segment.next_offset,
            size=segment.size,
            generation=segment.generation,
            first_timestamp=segment.first_timestamp,
            max_timestamp=segment.max_timestamp,
            records=self._records,
        )

    def discard(self) -> None:
        """Remove what was written, unless it got the name of a segment; then only its index, which is a cache.

        Raises:
            OSError: it could not be removed; opening the log does.
        """
        self._close()
        for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
            self._disk.remove(self._segment.path.with_suffix(suffix))
        self._disk.remove(self._path)

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._file.close()

    def _flush(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        encoded = run.encode(self._codec)
        self._write(encoded.parts, encoded.length, encoded.next_offset, encoded.times)
        self._records += encoded.record_count

    def _write(self, parts: Sequence[BufferLike], length: int, next_offset: int, times: tuple[int, int]) -> None:
        self._file.write(self._segment.size, parts)
        self._segment.extend(length, next_offset, *times)
        self._unsynced += length
        if self._unsynced >= _SYNC_BYTES:
            self._file.sync()
            self._unsynced = 0
