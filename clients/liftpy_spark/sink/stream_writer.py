"""`df.writeStream.format("liftpy")`: a streaming query that appends its micro-batches to a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter

from liftpy_spark.errors import plain_errors
from liftpy_spark.sink.decision import SinkBatch
from liftpy_spark.sink.errors import SinkModeError
from liftpy_spark.sink.options import Delivery, SinkOptions
from liftpy_spark.sink.plan import make_plan
from liftpy_spark.sink.writing import abort_rows, commit_rows, publish_rows, stage_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

__all__ = ["LiftpyStreamWriter"]

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


class LiftpyStreamWriter(DataSourceStreamArrowWriter):
    """Appends micro-batches to a stream. Spark makes one for the tasks of a micro-batch, and another for its commit.

    Args:
        options: Options, as Spark hands them over.
        schema: Schema of the DataFrame.
        overwrite: Whether each micro-batch is to replace what is there, which a log refuses.

    Raises:
        LiftError: the DataFrame can not be written as is asked for.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:  # noqa: FBT001 - Spark's
        with plain_errors():
            read = SinkOptions.read(options, streaming=True)
            self._plan = make_plan(read, schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task of a micro-batch."""
        context = TaskContext.get()
        assert context is not None, "Spark calls it in tasks"
        with plain_errors():
            if self._plan.options.delivery is Delivery.AT_LEAST_ONCE:
                return publish_rows(self._plan, iterator, context.partitionId())
            query, number = (context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
            if not query or number is None:
                raise SinkModeError(
                    f"this Spark does not tell its tasks which query and batch they are of ({_QUERY_ID}, {_BATCH_ID}); "
                    "write in foreachBatch with the options txnAppId and txnVersion, or with delivery at-least-once"
                )
            batch = SinkBatch(
                stream=self._plan.options.stream, uuid=self._plan.uuid, application=query, number=int(number)
            )
            return stage_rows(self._plan, batch, iterator, context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        """Have what all tasks of a micro-batch wrote in the stream; the tasks have told which batch it is."""
        with plain_errors():
            commit_rows(self._plan, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        """Clear up after tasks that failed."""
        with plain_errors():
            abort_rows(self._plan, messages)
