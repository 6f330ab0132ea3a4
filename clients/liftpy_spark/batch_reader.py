"""`spark.read.format("liftpy")`: plans once per DataFrame, so that all its actions see the same records."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from liftpy_spark.bounds import assigned, batch_ranges, ends, starts
from liftpy_spark.connections import lift
from liftpy_spark.errors import plain_errors
from liftpy_spark.heads import find_streams, heads, offsets_at_time
from liftpy_spark.planning import plan
from liftpy_spark.range_reading import read_ranges
from liftpy_spark.schema import check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from liftpy_spark.options import SourceOptions

__all__ = ["LiftpyReader"]


class LiftpyReader(DataSourceReader):
    """See the module.

    Args:
        options: of the source.
        schema: the columns that are wanted.

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
        with plain_errors():
            options, connection = self._options, lift(self._options.connection)
            found = assigned(heads(connection, find_streams(connection, options)), options.assign)
            at_time = partial(offsets_at_time, connection)
            assert options.ending is not None, "a batch ends somewhere"
            ranges = batch_ranges(
                starts(options.starting, found, at_time, late_is_latest=options.late_is_latest),
                ends(options.ending, found, at_time),
                found,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            tasks = plan(ranges, tasks_max=options.max_tasks, partitions_min=options.min_partitions)
            return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task; on an executor. Where there is nothing to read Spark asks for None."""
        with plain_errors():
            yield from read_ranges(partition.value or (), self._options, self._schema)
