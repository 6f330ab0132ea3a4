"""Where results are: a compacted stream and Delta tables, each of which takes a micro-batch once."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, NamedTuple

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # Spark brings it, without types
from pyspark.errors import PySparkException

import liftpy
from error_words import in_words
from flight_delays import as_records, from_records
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from flight_delays import Grouping

__all__ = ["DelaySink", "Results", "ResultsError", "make_stream"]

_DEDUPE_WINDOW_S: Final = 120.0
_START_TIMEOUT_S: Final = 120.0


class ResultsError(LiftError):
    """Results can not be read or written."""


class Results(NamedTuple):
    """Where the results of all groupings are.

    Attributes:
        options: how NATS and the bucket are reached, as Spark's format takes it.
        stream: the compacted stream.
        home: the directory with the Delta tables and the checkpoints, which belong together.
    """

    options: Mapping[str, str]
    stream: str
    home: Path

    def subject(self, grouping: Grouping) -> str:
        """Of the records of a grouping."""
        return f"{self.stream}.{grouping.name}"

    def table_path(self, grouping: Grouping) -> Path:
        """Of its Delta table."""
        return self.home / "tables" / grouping.name

    def checkpoint(self, grouping: Grouping) -> Path:
        """Of its query."""
        return self.home / "checkpoints" / grouping.name

    def from_stream(self, spark: SparkSession, grouping: Grouping) -> DataFrame:
        """The rows of a grouping, from the stream."""
        options = {**self.options, "subscribe": self.stream, "subject": self.subject(grouping)}
        return from_records(spark.read.format("liftpy").options(**options).load())

    def from_table(self, spark: SparkSession, grouping: Grouping) -> DataFrame:
        """The rows of a grouping, from its Delta table.

        Raises:
            ResultsError: there is none, or it can not be read.
        """
        path = self.table_path(grouping)
        if not DeltaTable.is_deltatable(str(path)):
            raise ResultsError(f"there is no Delta table at {path}; streaming.py writes it, with the same --home")
        try:
            return spark.createDataFrame(DeltaTable(str(path)).to_pyarrow_table())
        except (DeltaError, OSError) as error:
            raise ResultsError(f"the Delta table {path} can not be read: {error}") from None


def make_stream(servers: str, source: str, stream: str) -> None:
    """Make the stream of results, compacted by key, where it is not there yet; with as many replicas as the source has.

    Raises:
        LiftError: the source does not exist, or the cluster does not answer.
    """
    with liftpy.connect_sync(servers) as lift:
        there = {each.name: each for each in lift.streams()}
        if source not in there:
            raise ResultsError(f"there is no stream {source}; liftpy stream ls shows those that there are")
        if stream not in there:
            replicas = len(there[source].partitions[0].replicas) or 1
            lift.create_stream(
                stream,
                subject=f"{stream}.*",
                compact=True,
                replicas=replicas,
                dedupe_window_s=_DEDUPE_WINDOW_S,
            )


class DelaySink:
    """Takes the micro-batches of one query, for `foreachBatch`.

    A batch comes again when the driver was killed before Spark wrote down that it was done. Stream and table each know
    by application and number what they have, so it does not matter between which of these steps that was. The
    application is the query, which its checkpoint makes: a new one begins anew, and needs a new table.

    Args:
        results: where to write to.
        grouping: what the rows are of.

    Attributes:
        query_id: to be set when the query has started; the first batch waits for it.
        rows: how many were written.
    """

    def __init__(self, results: Results, grouping: Grouping) -> None:
        self.query_id: Future[str] = Future()
        self.rows = 0
        self._results = results
        self._grouping = grouping

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write a micro-batch to the stream, then to the table.

        Raises:
            ResultsError: that failed. Spark is not given tracebacks: it can not cope with long ones.
        """
        try:
            self._write(batch, number)
        except (DeltaError, LiftError, OSError, Py4JJavaError, PySparkException) as error:
            raise ResultsError(f"batch {number} by {self._grouping.name}: {in_words(error)}") from None

    def _write(self, batch: DataFrame, number: int) -> None:
        batch.persist()  # both get the same rows, which are computed once
        try:
            count = batch.count()
            if count:
                application = f"{self._grouping.name}-{self.query_id.result(_START_TIMEOUT_S)}"
                self._write_to_stream(batch, application, number)
                self._write_to_table(batch, application, number)
                self.rows += count
        finally:
            batch.unpersist()

    def _write_to_stream(self, batch: DataFrame, application: str, number: int) -> None:
        records = as_records(batch, self._grouping, self._results.subject(self._grouping))
        transaction = {"txnAppId": application, "txnVersion": str(number)}
        options = {**self._results.options, "stream": self._results.stream, **transaction}
        records.write.format("liftpy").mode("append").options(**options).save()

    def _write_to_table(self, batch: DataFrame, application: str, number: int) -> None:
        """The driver writes it: results are small. Delta refuses the second one of two that write the same batch."""
        path = str(self._results.table_path(self._grouping))
        if DeltaTable.is_deltatable(path):
            last = DeltaTable(path).transaction_version(application)
            if last is not None and last >= number:
                return
        transaction = Transaction(application, number, time.time_ns() // 10**6)
        properties = CommitProperties(app_transactions=[transaction])
        write_deltalake(path, batch.toArrow(), mode="append", commit_properties=properties)
