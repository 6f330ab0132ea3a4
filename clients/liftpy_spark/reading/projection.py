"""From columns of records, as the bucket and the nodes have them, to the record batches that Spark takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from liftpy_spark.reading.header_lists import header_lists
from liftpy_spark.reading.schema import LOG_APPEND_TIME, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

__all__ = ["Projection", "subject_strings"]

_OF_RECORDS: Final = (
    *("offset", "timestamp", "timestamp_ns", "subject", "key", "headers", "value"),
    *("message_id", "leader_epoch"),
)


class Projection:
    """Makes the columns of a schema. Any number of threads may use it.

    Args:
        schema: Schema that was checked.

    Attributes:
        columns: Columns of records that are needed for it.
    """

    def __init__(self, schema: StructType) -> None:
        self._schema = arrow_schema(schema)
        self.columns = tuple(name for name in _OF_RECORDS if name in self._schema.names)
        self._repeated: dict[str | int, pa.Array] = {}

    def apply(self, columns: Mapping[str, pa.Array], rows: int, stream: str, partition: int) -> pa.RecordBatch:
        """Some records.

        Args:
            columns: Those of `columns` at least; subjects as bytes, and times to the microsecond.
            rows: How many records.
            stream: Name of the stream.
            partition: Number of the partition.
        """
        constants: dict[str, str | int] = {"topic": stream, "partition": partition, "timestampType": LOG_APPEND_TIME}
        arrays = []
        for field in self._schema:
            if field.name in constants:
                array = self._constant(constants[field.name], rows)
            elif field.name == "headers":
                array = header_lists(columns["headers"], field.type)
            elif field.name == "subject":
                array = subject_strings(columns["subject"])
            else:
                array = columns[field.name]
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, value: str | int, rows: int) -> pa.Array:
        """A column in which every row has the same value; made once, and anew only when more rows come."""
        column = self._repeated.get(value)
        if column is None or len(column) < rows:
            column = self._repeated[value] = _repeated(value, rows)
        return column.slice(0, rows)


def _repeated(value: str | int, rows: int) -> pa.Array:
    """Made of buffers, since pyarrow imports pandas to make a scalar: that takes longer than reading a row group."""
    if isinstance(value, int):
        return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(np.full(rows, value, np.int32))])
    text = value.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(text * rows)])


def subject_strings(subjects: pa.Array) -> pa.Array:
    """Subjects as text; what is no text in them is replaced, as the client does it."""
    try:
        return subjects.cast(pa.string())
    except pa.ArrowInvalid:  # NATS does not insist on UTF-8
        return pa.array([name.decode("utf-8", "replace") for name in subjects.to_pylist()], pa.string())
