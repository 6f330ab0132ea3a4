"""Writes fragments: the records of one partition as Parquet, in row groups of a few MiB, so that a seek reads little.

The footer says whose they are: `liftpy.uuid`, `liftpy.partition`, `liftpy.nonce` (of the attempt that wrote it),
`liftpy.setsum`, `liftpy.hash` (of the records in it), `liftpy.epochs` (`epoch:first offset`, divided by commas),
`liftpy.tombstones` (how many there are), `liftpy.cleaned_ns` (see `liftpy_bucket.upkeep.compaction`; 0: it was not),
and `liftpy.format`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from liftpy_bucket.objects.parquet import ParquetObject
from liftpy_bucket.objects.pointers import Extent, StreamObjectPointer
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.objects.rows.schema import conform, row_schema, row_sizes
from liftpy_bucket.objects.tally import RowsTally

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from liftpy_bucket.objects.setsum import Setsum
    from liftpy_bucket.objects.sinks import ByteSink

__all__ = ["FORMATS", "PARTITION_FIELD", "ROW_GROUP_BYTES", "ObjectWriter", "RowGroupCutter", "Written"]

FORMATS: Final = {RecordHash.BLAKE2B: 2, RecordHash.XXH3: 3}
"""Format of an object, by the hash of its records: a program that does not know the hash says that it is too old."""

PARTITION_FIELD: Final = pa.field("partition", pa.int32(), nullable=False)
ROW_GROUP_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A written object: its size, records and checksums.

    Attributes:
        base: Offset of the first record; 0 where there is none.
        end: The offset after the last record; 0 where there is none.
        records: How many there are.
        extent: What must be known to read the object.
        first_timestamp: Time of the first record, ns; 0 where there is none.
        last_timestamp: Time of the last record, ns; 0 where there is none.
        setsum: Setsum of the records.
        epochs: (leader epoch, offset of its first record), oldest first.
        tombstones: How many records have a key and no value.
    """

    base: int
    end: int
    records: int
    extent: Extent
    first_timestamp: int
    last_timestamp: int
    setsum: Setsum
    epochs: tuple[tuple[int, int], ...]
    tombstones: int

    def pointer(self, name: str, *, base: int | None = None, end: int | None = None) -> StreamObjectPointer:
        """What a manifest says of it.

        Args:
            name: Name of the object.
            base: The first offset it answers for, where that is not the first record's.
            end: The offset after the last one it answers for, where that is not the one after the last record's.
        """
        return StreamObjectPointer(
            name=name,
            base=self.base if base is None else base,
            end=self.end if end is None else end,
            records=self.records,
            size=self.extent.size,
            footer=self.extent.footer,
            digest=self.extent.digest,
            first_timestamp=self.first_timestamp,
            last_timestamp=self.last_timestamp,
            setsum=self.setsum,
        )


@cache
def _object_schema(*, keeps_replies: bool) -> pa.Schema:
    return pa.schema([PARTITION_FIELD, *row_schema(keeps_replies=keeps_replies)])


class RowGroupCutter:
    """Collects rows until there are enough for a row group.

    Args:
        target: Where row groups are written.
        row_group_bytes: About how large one is, before compression.
        pool: Writes a row group while rows of the next one are collected; None: nobody else does.
    """

    def __init__(self, target: ParquetObject, row_group_bytes: int, pool: Executor | None = None) -> None:
        self._target = target
        self._bytes_max = row_group_bytes
        self._pool = pool
        self._writing: Future[None] | None = None
        self._pending: list[pa.RecordBatch] = []
        self._size = 0

    def take(self, rows: pa.RecordBatch) -> None:
        """Take the next rows; what makes a whole row group is written at once."""
        ends = np.cumsum(row_sizes(rows))
        start = taken = 0
        while start < rows.num_rows:
            stop = int(np.searchsorted(ends, taken + self._bytes_max - self._size, "right"))
            if stop == start and not self._pending:
                stop = start + 1  # a row that is larger than a row group is one
            if stop > start:
                self._pending.append(rows.slice(start, stop - start))
                self._size += int(ends[stop - 1]) - taken
                start, taken = stop, int(ends[stop - 1])
            if start < rows.num_rows:
                self.cut()

    def cut(self) -> None:
        """What comes next is in another row group."""
        if not self._pending:
            return
        rows, self._pending, self._size = self._pending, [], 0
        if self._pool is None:
            self._target.write_group(rows)
        else:
            self.settle()
            self._writing = self._pool.submit(self._target.write_group, rows)

    def finish(self) -> None:
        """Write what is left."""
        self.settle()
        self._pool = None  # there is nothing to be done meanwhile
        self.cut()

    def settle(self) -> None:
        """Wait for the row group that is being written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


class ObjectWriter:
    """Writes one fragment. It holds one row group of rows at most.

    Args:
        sink: What is written to; it stays open.
        uuid: UUID of the stream, 32 hexadecimal digits.
        partition: Number of the partition.
        nonce: Nonce of this attempt.
        keeps_replies: Whether there is a column `reply`.
        record_hash: Hash of the partition.
        row_group_bytes: About how large a row group is, before compression.
        cleaned_ns: See `liftpy_bucket.upkeep.compaction`.
        pool: Writes a row group while rows of the next one come; None: nobody else does. With it, who does not get to
            `finish` calls `abandon`.
    """

    def __init__(
        self,
        sink: ByteSink,
        *,
        uuid: str,
        partition: int,
        nonce: str,
        keeps_replies: bool,
        record_hash: RecordHash,
        row_group_bytes: int = ROW_GROUP_BYTES,
        cleaned_ns: int = 0,
        pool: Executor | None = None,
    ) -> None:
        self._about = {"liftpy.uuid": uuid, "liftpy.partition": str(partition), "liftpy.nonce": nonce}
        self._about["liftpy.cleaned_ns"] = str(cleaned_ns)
        self._partition = pa.scalar(partition, pa.int32())
        self._keeps_replies = keeps_replies
        self._schema = _object_schema(keeps_replies=keeps_replies)
        self._parquet = ParquetObject(sink, self._schema, is_alike=True)
        self._cutter = RowGroupCutter(self._parquet, row_group_bytes, pool)
        self._tally = RowsTally(record_hash)

    @property
    def setsum(self) -> Setsum:
        """Setsum of the rows written so far."""
        return self._tally.setsum

    def write(self, rows: pa.RecordBatch) -> None:
        """Write the next rows.

        Raises:
            ValueError: they do not follow on those before, or have replies that have no place.
            OSError: the sink could not take them.
        """
        rows = conform(rows, keeps_replies=self._keeps_replies)
        self._tally.take(rows)
        partition = pa.repeat(self._partition, rows.num_rows)
        self._cutter.take(pa.RecordBatch.from_arrays([partition, *rows.columns], schema=self._schema))

    def abandon(self) -> None:
        """Nothing is written to the sink any more when this returns."""
        with suppress(Exception):  # whoever gives up has an error already
            self._cutter.settle()

    def finish(self) -> Written:
        """Write what is left, and the footer.

        Raises:
            OSError: the sink could not take it.
        """
        self._cutter.finish()
        tally = self._tally
        extent = self._parquet.finish(
            {
                **self._about,
                "liftpy.format": str(FORMATS[tally.record_hash]),
                "liftpy.hash": tally.record_hash,
                "liftpy.setsum": tally.setsum.hex(),
                "liftpy.epochs": ",".join(f"{epoch}:{start}" for epoch, start in tally.epochs),
                "liftpy.tombstones": str(tally.tombstones),
            }
        )
        return Written(
            base=tally.base,
            end=tally.end,
            records=tally.records,
            extent=extent,
            first_timestamp=tally.first_timestamp,
            last_timestamp=tally.last_timestamp,
            setsum=tally.setsum,
            epochs=tally.epochs,
            tombstones=tally.tombstones,
        )
