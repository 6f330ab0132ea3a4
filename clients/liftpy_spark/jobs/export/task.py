"""What a task of an export does: the records of a range become one Parquet file."""

from __future__ import annotations

import json
import re
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from liftpy_bucket.errors import ObjectMissingError
from liftpy_bucket.manifest.json import Row
from liftpy_bucket.objects.rows.schema import subject_bytes
from liftpy_spark.jobs.parts import version_of
from liftpy_spark.reading.projection import Projection
from liftpy_spark.reading.schema import arrow_schema, source_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liftpy_bucket.store.s3_settings import S3Settings
    from liftpy_spark.jobs.export.files import ExportPlace
    from liftpy_spark.jobs.parts import Part

__all__ = ["ExportTask", "ExportedFile", "MissingPiece", "export_range", "read_exported"]

_ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{0,255}")
_KEY: Final = re.compile(r"[A-Za-z0-9_./-]{1,1024}")
_TEXT: Final = re.compile(r".{0,4096}")


class ExportTask(NamedTuple):
    """What a task gets.

    Attributes:
        settings: Settings of the bucket.
        place: Where the file goes.
        name: Name of the file.
        stream: The name of the stream.
        part: What holds the range.
        start: The first offset.
        end: The offset after the last one.
        include_headers: Whether there is a column `headers`.
    """

    settings: S3Settings
    place: ExportPlace
    name: str
    stream: str
    part: Part
    start: int
    end: int
    include_headers: bool


class ExportedFile(NamedTuple):
    """A file that an export wrote.

    Attributes:
        name: Name of the file; "" where there was no record, and so there is no file.
        size: Bytes of it.
        records: How many it holds.
        statistics: Statistics of the file, as Delta tables have them.
    """

    name: str
    size: int
    records: int
    statistics: str


class MissingPiece(NamedTuple):
    """An object that is not there any more; nothing was written."""

    key: str


def export_range(task: ExportTask) -> ExportedFile | MissingPiece:
    """Write the records of a range.

    Raises:
        ObjectCorruptError: an object is damaged.
        StoreError, ExportPlaceError: something could not be read, or put where it is to go.
    """
    with TemporaryFile() as file:
        tally = _Tally()
        try:
            _write(task, file, tally)
        except ObjectMissingError as error:
            return MissingPiece(error.key)
        if not tally.records:
            return ExportedFile("", 0, 0, "")
        size = file.tell()
        task.place.put(task.name, file, uuid4().hex)
    return ExportedFile(task.name, size, tally.records, tally.statistics(task.part.root.partition))


def read_exported(plain: Any) -> ExportedFile | MissingPiece:
    """What `export_range` gave, after it has travelled: the fields in a list.

    Raises:
        ManifestCorruptError, ValueError: it is not that.
    """
    if type(plain) is list and len(plain) == len(MissingPiece._fields):
        return MissingPiece(Row("exported", "result", plain, len(plain)).text(0, _KEY))
    row = Row("exported", "result", plain, len(ExportedFile._fields))
    written = ExportedFile(row.text(0, _NAME), row.number(1), row.number(2), row.text(3, _TEXT))
    if written.records and not (written.name and type(json.loads(written.statistics)) is dict):
        raise ValueError("a file of records has no name or no statistics")
    return written


class _Tally:
    """Counts records while they pass; offsets ascend."""

    def __init__(self) -> None:
        self.records = 0
        self._first = self._last = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Count the next ones, at least one."""
        offsets = batch.column("offset")
        self._first = self._first if self.records else offsets[0].as_py()
        self._last = offsets[-1].as_py()
        self.records += batch.num_rows

    def statistics(self, partition: int) -> str:
        """Statistics of the file, in the format of Delta tables."""
        least = {"partition": partition, "offset": self._first}
        most = {"partition": partition, "offset": self._last}
        return json.dumps({"numRecords": self.records, "minValues": least, "maxValues": most})


def _write(task: ExportTask, file: IO[bytes], tally: _Tally) -> None:
    schema = arrow_schema(source_schema(task.include_headers))
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        waiting: list[pa.RecordBatch] = []
        for batch in _batches(task):
            tally.take(batch)
            waiting.append(batch)
            if sum(each.nbytes for each in waiting) >= _ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))


def _batches(task: ExportTask) -> Iterator[pa.RecordBatch]:
    """The records, in the columns of the source; a row group at a time."""
    projection = Projection(source_schema(task.include_headers))
    version = version_of(task.settings, task.part)
    for piece in task.part.pieces:
        start, end = max(piece.start, task.start), min(piece.end, task.end)
        for rows in version.reader(piece).rows(start, end, columns=list({"offset", *projection.columns})):
            columns = {name: rows.column(name) for name in projection.columns}
            columns["subject"] = subject_bytes(columns["subject"])
            yield projection.apply(columns, rows.num_rows, task.stream, task.part.root.partition)
