"""`spark.read.format("liftpy")`: plans once per DataFrame, so that all its actions see the same records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from liftpy_spark.errors import plain_errors
from liftpy_spark.reading.planning import BatchTask
from liftpy_spark.reading.ranges import read_ranges
from liftpy_spark.reading.schema import check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from liftpy_spark.options.source import SourceOptions

__all__ = ["LiftpyReader"]


class LiftpyReader(DataSourceReader):
    """Reader of a batch query. Plans once, so that all actions of a DataFrame see the same records.

    Args:
        options: Options of the source.
        schema: The columns that are wanted.

    Raises:
        SchemaError: streams have no such columns.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """What each task reads; on the driver.

        Raises:
            LiftError: the streams can not be found, or have not what the options ask for.
        """
        from liftpy_spark.source.batch_planning import plan_batch  # noqa: PLC0415 (tasks import this module as well)

        with plain_errors():
            return [InputPartition(task) for task in plan_batch(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task; on an executor. Where there is nothing to read Spark asks for None."""
        with plain_errors():
            task = partition.value or BatchTask()
            yield from read_ranges(task.ranges, self._options, self._schema, address=task.bucket)
