"""`spark.readStream.format("liftpy")`: the source of a streaming query.

One reader plans, in a Python worker beside the driver, and lives as long as the query runs; others read, each in a
task. What is read by whom follows from the start and end of the batch, as Spark keeps them, and from nothing else.

Spark keeps no initial offset. One that depends on when it was asked for, as `latest` does, is first made the end of a
batch that is empty, so that it is kept: a query that fails before its first batch is done goes on from there.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from liftpy_spark.connections import lift
from liftpy_spark.errors import plain_errors
from liftpy_spark.options.offsets import decode, encode
from liftpy_spark.options.source import SourceOptions
from liftpy_spark.reading.planning import plan
from liftpy_spark.reading.ranges import read_ranges
from liftpy_spark.reading.schema import check_schema
from liftpy_spark.source.rate_limits import divide_bytes, divide_offsets
from liftpy_spark.source.stream_planner import StreamPlanner
from liftpy_spark.source.stream_progress import ranges_between

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from liftpy_spark.options.offsets import QueryCheckpoint
    from liftpy_spark.source.rate_limits import Backlog

__all__ = ["LiftpyStreamReader"]


class LiftpyStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a streaming query: plans beside the driver, and reads in tasks.

    Args:
        given: Options as Spark hands them over. They are checked at the first use, since Spark shows an error of its
            own where a reader can not be made.
        schema: The columns that are wanted.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(given)
        self._schema = schema
        self._planner: StreamPlanner | None = None  # of the one that plans; the others are sent to tasks
        self._is_kept = False

    @cached_property
    def _options(self) -> SourceOptions:
        check_schema(self._schema)
        return SourceOptions.read(self._given, streaming=True)

    @property
    def _plans(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = StreamPlanner(self._options, partial(lift, self._options.connection))
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (the name is of Spark)
        """Return the offsets where a new query begins; the same at each call."""
        with plain_errors():
            return _document(self._plans.begin())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (the name is of Spark)
        """Return the limits of a batch that the options set."""
        with plain_errors():
            options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (the name is of Spark)
        """End the query when it has read the records that exist now."""
        with plain_errors():
            self._plans.aim()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 (the name is of Spark)
        """Return the end of the next batch; `start` if there is nothing to read, after some waiting."""
        with plain_errors():
            begun = decode(start)
            if not self._is_kept and self._plans.begins_now(begun):
                self._is_kept = True
                return start
            end = self._plans.advance(begun, lambda backlogs: self._divided(backlogs, limit))
            return start if end.is_at(begun) else _document(end)

    def _divided(self, backlogs: Mapping[tuple[str, int], Backlog], limit: ReadLimit) -> dict[tuple[str, int], int]:
        if isinstance(limit, ReadMaxRows):
            return divide_offsets(backlogs, limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            return divide_bytes(self._plans.weighed(backlogs), limit.max_bytes)
        return {place: backlog.end for place, backlog in backlogs.items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 (the name is of Spark)
        """What there is, for the progress of the query; how far it is behind follows from that."""
        latest = self._plans.latest()
        return None if latest is None else _document(latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One task's share each of what is between `start` and `end`."""
        with plain_errors():
            self._is_kept = True
            ranges = ranges_between(decode(start), decode(end))
            tasks = plan(ranges, tasks_max=self._options.max_tasks, partitions_min=self._options.min_partitions)
            return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a share, in a task; none where Spark made up a share since there was none."""
        with plain_errors():
            yield from read_ranges(partition.value or (), self._options, self._schema, asks_nodes=True)


def _document(checkpoint: QueryCheckpoint) -> dict[str, Any]:
    return encode(checkpoint)
