"""`df.write.format("liftpy").mode("append")`: a DataFrame appended to a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter

from liftpy_spark.errors import plain_errors
from liftpy_spark.sink.decision import SINGLE, SinkBatch
from liftpy_spark.sink.options import Delivery, SinkOptions
from liftpy_spark.sink.plan import make_plan
from liftpy_spark.sink.writing import abort_rows, commit_rows, publish_rows, stage_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

__all__ = ["LiftpyWriter"]


class LiftpyWriter(DataSourceArrowWriter):
    """Appends a DataFrame to a stream. Made on the driver, pickled for the tasks and for the commit.

    Args:
        options: Options, as Spark hands them over.
        schema: Schema of the DataFrame.
        overwrite: Whether it is to replace what is there, which a log refuses.

    Raises:
        LiftError: the DataFrame can not be written as is asked for.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:  # noqa: FBT001 - Spark's
        with plain_errors():
            read = SinkOptions.read(options, streaming=False)
            self._plan = make_plan(read, schema, overwrite=overwrite)
        self._batch = SinkBatch(
            stream=read.stream,
            uuid=self._plan.uuid,
            application=read.application or f"{SINGLE}{uuid4().hex}",
            number=read.version or 0,
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        context = TaskContext.get()
        assert context is not None, "Spark calls it in tasks"
        with plain_errors():
            if self._plan.options.delivery is Delivery.AT_LEAST_ONCE:
                return publish_rows(self._plan, iterator, context.partitionId())
            return stage_rows(self._plan, self._batch, iterator, context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Have what all tasks wrote in the stream."""
        with plain_errors():
            commit_rows(self._plan, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Clear up after tasks that failed."""
        with plain_errors():
            abort_rows(self._plan, messages)
