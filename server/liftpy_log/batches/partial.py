"""One batch made of records that stay of several: offsets are kept, and those that are missing leave holes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from liftpy_envelope.batch import ATTRIBUTE_COMPACTED, NO_PRODUCER, BatchBody, compress_body, encode_body, encode_header
from liftpy_envelope.columns import Column, column_names, columns_in, is_binary
from liftpy_envelope.ipc import ColumnBuffers, column_buffers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from liftpy_envelope.batch import BatchHeader
    from liftpy_envelope.ipc import BufferLike
    from liftpy_log.batches.stored import StoredBatch

__all__ = ["EncodedBatch", "PartialBatch"]

_DELTA_MAX: Final = 2**31 - 1
_BINARY: Final = pa.binary()
_OF_LOG: Final = Column.TIMESTAMP | Column.OFFSET_DELTA


class EncodedBatch(NamedTuple):
    """A whole batch as it goes to a file or a socket; `times` (ns) are of its first and last record."""

    parts: list[BufferLike]
    length: int
    record_count: int
    next_offset: int
    times: tuple[int, int]


class _Kept(NamedTuple):
    """What is left of a batch."""

    records: pa.RecordBatch
    offsets: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]


class PartialBatch:
    """Collects what stays of batches of one epoch that follow on one another.

    A batch of an idempotent producer loses the producer's id here.

    Args:
        header: Header of the first batch.
        is_compacted: Key compaction makes it; it counts as such also where one of those that it is made of does.

    Attributes:
        size: About how many bytes the batch will have.
    """

    def __init__(self, header: BatchHeader, *, is_compacted: bool = False) -> None:
        self._epoch = header.leader_epoch
        self._base_offset = header.base_offset
        self._next_offset = header.base_offset
        self._first_timestamp = header.base_timestamp
        self._max_timestamp = header.max_timestamp
        self._kept: list[_Kept] = []
        self._columns = 0
        self._is_compressed = False
        self._is_compacted = is_compacted
        self.size = 0

    @property
    def is_empty(self) -> bool:
        """Whether no record has stayed so far."""
        return not self._kept

    def can_take(self, header: BatchHeader) -> bool:
        """Whether what stays of this batch can be in the same one."""
        return self._epoch == header.leader_epoch and header.next_offset - self._base_offset <= _DELTA_MAX

    def take(
        self, batch: StoredBatch, mask: npt.NDArray[np.bool_] | None, records: pa.RecordBatch | None = None
    ) -> None:
        """Take the next batch.

        Args:
            batch: The batch.
            mask: Says which of its records stay; None is all of them.
            records: Records of the batch, when they are decoded already.
        """
        header = batch.header
        self._is_compacted |= header.is_compacted
        staying = header.record_count if mask is None else int(mask.sum())
        if staying:
            records = batch.records if records is None else records
            offsets, times = batch.offsets(records), batch.times(records)
            if mask is not None:
                records, offsets, times = records.filter(pa.array(mask)), offsets[mask], times[mask]
            self._kept.append(_Kept(records, offsets, times))
            self._columns |= header.columns & ~_OF_LOG
            self._is_compressed |= header.is_compressed
            self.size += header.length * staying // header.record_count
        self._next_offset = header.next_offset
        self._max_timestamp = header.max_timestamp

    def encode(self, codec: str) -> EncodedBatch:
        """The batch; compressed with `codec` (`lz4` or `zstd`) when one of those that it was made of was."""
        body = self._body()
        if self._is_compressed:
            body = compress_body(body, codec)
        if self._is_compacted:
            body = body._replace(attributes=body.attributes | ATTRIBUTE_COMPACTED)
        times = self._times
        header = encode_header(
            body,
            base_offset=self._base_offset,
            leader_epoch=self._epoch,
            base_timestamp=times[0],
            max_timestamp=times[1],
            producer_id=NO_PRODUCER,
            last_offset_delta=self._next_offset - self._base_offset - 1,
        )
        return EncodedBatch(
            [header, *body.parts], len(header) + body.length, body.record_count, self._next_offset, times
        )

    @property
    def _times(self) -> tuple[int, int]:
        """Of the first and last record; of what was dropped when nothing is left."""
        if not self._kept:
            return self._first_timestamp, self._max_timestamp
        return int(self._kept[0].times[0]), int(self._kept[-1].times[-1])

    def _body(self) -> BatchBody:
        if not self._kept:
            nothing = ColumnBuffers(0, (b"", bytes(4), b""))
            return encode_body(0, Column.OFFSET_DELTA | Column.SUBJECT, [ColumnBuffers(0, (b"", b"")), nothing])
        offsets = np.concatenate([kept.offsets for kept in self._kept])
        times = np.concatenate([kept.times for kept in self._kept])
        count, bitmap = len(offsets), self._columns
        columns: list[ColumnBuffers] = []
        if times[0] != times[-1]:
            bitmap |= Column.TIMESTAMP
            columns.append(ColumnBuffers(0, (b"", times.astype("<i8").tobytes())))
        if count != self._next_offset - self._base_offset:
            bitmap |= Column.OFFSET_DELTA
            columns.append(ColumnBuffers(0, (b"", (offsets - self._base_offset).astype("<i4").tobytes())))
        for bit, name in zip(columns_in(bitmap), column_names(bitmap), strict=True):
            if is_binary(bit):
                columns.append(column_buffers(_joined(self._kept, name)))
        return encode_body(count, bitmap, columns)


def _joined(kept: Sequence[_Kept], name: str) -> pa.BinaryArray:
    pieces = [
        each.records.column(name) if name in each.records.schema.names else pa.nulls(each.records.num_rows, _BINARY)
        for each in kept
    ]
    return pa.concat_arrays(pieces) if len(pieces) > 1 else pieces[0]
