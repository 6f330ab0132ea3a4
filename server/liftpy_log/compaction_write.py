"""The records that key compaction keeps, in a new segment file beside those that it replaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from liftpy_envelope.batch import NO_PRODUCER, BatchBody, compress_body, encode_body, encode_header
from liftpy_envelope.columns import Column, column_names, columns_in, is_binary
from liftpy_envelope.ipc import ColumnBuffers, column_buffers
from liftpy_log.compaction_state import CleanedSegment
from liftpy_log.index import OFFSET_SUFFIX, TIME_SUFFIX
from liftpy_log.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from liftpy_envelope.batch import BatchHeader
    from liftpy_envelope.ipc import BufferLike
    from liftpy_log.compaction_read import StoredBatch
    from liftpy_log.disk import Disk

__all__ = ["SegmentWriter"]

_BATCH_BYTES: Final = 256 * 1024  # batches are merged up to this size
_WHOLE_BYTES_MIN: Final = 64 * 1024  # larger ones of which all records stay are copied as they are
_SYNC_BYTES: Final = 8 * 1024 * 1024  # so that no sync of somebody else has to wait for much of this file
_DELTA_MAX: Final = 2**31 - 1
_TEMPORARY: Final = ".tmp"
_BINARY: Final = pa.binary()
_OF_LOG: Final = Column.TIMESTAMP | Column.OFFSET_DELTA


class _Kept(NamedTuple):
    """What is left of a batch."""

    records: pa.RecordBatch
    offsets: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]


class _Run:
    """A range of offsets of one epoch that becomes one batch."""

    def __init__(self, header: BatchHeader) -> None:
        self.epoch = header.leader_epoch
        self.base_offset = header.base_offset
        self.next_offset = header.base_offset
        self.first_timestamp = header.base_timestamp
        self.max_timestamp = header.max_timestamp
        self.kept: list[_Kept] = []
        self.columns = 0
        self.size = 0
        self.is_compressed = False

    @property
    def times(self) -> tuple[int, int]:
        """Of the first and last record; of what was dropped when nothing is left."""
        if not self.kept:
            return self.first_timestamp, self.max_timestamp
        return int(self.kept[0].times[0]), int(self.kept[-1].times[-1])


class SegmentWriter:
    """Writes one segment.

    A batch of an idempotent producer that is merged with others loses the producer's id: what is compacted is older
    than the deduplication window.

    Args:
        disk: where.
        directory: of the partition.
        base_offset: of the segment.
        generation: of the segment.
        codec: with which batches are compressed that were made of compressed ones: `lz4` or `zstd`.
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
        self._run: _Run | None = None

    def take(self, batch: StoredBatch, mask: npt.NDArray[np.bool_] | None) -> None:
        """Take the next batch; `mask` says which of its records stay, None is all of them.

        Raises:
            OSError: it could not be written.
        """
        header = batch.header
        run = self._run
        if mask is None and header.length >= _WHOLE_BYTES_MIN and (run is None or run.kept or self._ends(run, header)):
            self._flush()
            self._write([batch.data], header.length, header.next_offset, (header.base_timestamp, header.max_timestamp))
            self._records += header.record_count
            return
        staying = header.record_count if mask is None else int(mask.sum())
        size = header.length * staying // max(1, header.record_count)
        if run is None or self._ends(run, header) or (run.kept and staying and run.size + size > _BATCH_BYTES):
            self._flush()
            run = self._run = _Run(header)
        if staying:
            records = batch.records
            offsets, times = batch.offsets(records), batch.times(records)
            if mask is not None:
                records, offsets, times = records.filter(pa.array(mask)), offsets[mask], times[mask]
            run.kept.append(_Kept(records, offsets, times))
            run.columns |= header.columns & ~_OF_LOG
            run.is_compressed |= bool(header.attributes)
            run.size += size
        run.next_offset = header.next_offset
        run.max_timestamp = header.max_timestamp

    @staticmethod
    def _ends(run: _Run, header: BatchHeader) -> bool:
        return run.epoch != header.leader_epoch or header.next_offset - run.base_offset > _DELTA_MAX

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
        body = _encode(run)
        if run.is_compressed:
            body = compress_body(body, self._codec)
        times = run.times
        header = encode_header(
            body,
            base_offset=run.base_offset,
            leader_epoch=run.epoch,
            base_timestamp=times[0],
            max_timestamp=times[1],
            producer_id=NO_PRODUCER,
            last_offset_delta=run.next_offset - run.base_offset - 1,
        )
        self._write([header, *body.parts], len(header) + body.length, run.next_offset, times)
        self._records += body.record_count

    def _write(self, parts: Sequence[BufferLike], length: int, next_offset: int, times: tuple[int, int]) -> None:
        self._file.write(self._segment.size, parts)
        self._segment.extend(length, next_offset, *times)
        self._unsynced += length
        if self._unsynced >= _SYNC_BYTES:
            self._file.sync()
            self._unsynced = 0


def _encode(run: _Run) -> BatchBody:
    """The records of a run, as the body of one batch."""
    if not run.kept:
        nothing = ColumnBuffers(0, (b"", bytes(4), b""))
        return encode_body(0, Column.OFFSET_DELTA | Column.SUBJECT, [ColumnBuffers(0, (b"", b"")), nothing])
    offsets = np.concatenate([kept.offsets for kept in run.kept])
    times = np.concatenate([kept.times for kept in run.kept])
    count, bitmap = len(offsets), run.columns
    columns: list[ColumnBuffers] = []
    if times[0] != times[-1]:
        bitmap |= Column.TIMESTAMP
        columns.append(ColumnBuffers(0, (b"", times.astype("<i8").tobytes())))
    if count != run.next_offset - run.base_offset:
        bitmap |= Column.OFFSET_DELTA
        columns.append(ColumnBuffers(0, (b"", (offsets - run.base_offset).astype("<i4").tobytes())))
    for bit, name in zip(columns_in(bitmap), column_names(bitmap), strict=True):
        if is_binary(bit):
            columns.append(column_buffers(_joined(run.kept, name)))
    return encode_body(count, bitmap, columns)


def _joined(kept: Sequence[_Kept], name: str) -> pa.BinaryArray:
    pieces = [
        each.records.column(name) if name in each.records.schema.names else pa.nulls(each.records.num_rows, _BINARY)
        for each in kept
    ]
    return pa.concat_arrays(pieces) if len(pieces) > 1 else pieces[0]
