"""What tests of streaming queries share: streams of numbers, and a query that writes what it reads to files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TIMEOUT_S", "Query", "create", "publish", "stored", "values"]

TIMEOUT_S = 90


def publish(system, stream, count, *, first=0):
    """Records whose keys are numbers."""
    numbers = pa.array([b"%d" % number for number in range(first, first + count)], pa.binary())
    system.publish(f"{stream}.x", value=numbers, key=numbers)


def create(system, stream, *, partitions=1, count=0, **settings):
    system.lift.create_stream(stream, subject=f"{stream}.>", partitions=partitions, **settings)
    publish(system, stream, count)


class Query:
    """A streaming query into Parquet files; each start of it runs until it has read what there is.

    Args:
        spark: the session.
        system: what it reads from.
        home: where its checkpoint and what it wrote are.
        options: of the source.
    """

    def __init__(self, spark, system, home: Path, **options):
        self.spark, self.system, self.home = spark, system, home
        self.options = system.options | options
        self.progress: list[dict] = []

    def writer(self, *, available_now=True):
        frame = self.spark.readStream.format("liftpy").options(**self.options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.home / "checkpoint"))
        writer = writer.trigger(availableNow=True) if available_now else writer
        return writer.option("path", str(self.home / "out"))

    def run(self):
        query = self.writer().start()
        try:
            assert query.awaitTermination(TIMEOUT_S), f"the query does not end: {query.lastProgress}"
        finally:
            query.stop()
        self.progress = [json.loads(each.json) for each in query.recentProgress]
        return self

    @property
    def batches(self):
        """How many rows each batch of the last run had."""
        return [each["numInputRows"] for each in self.progress]

    def offsets(self, batch):
        """What the checkpoint has of a batch."""
        return json.loads((self.home / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[-1])

    def records(self):
        """(topic, partition, offset, value) of all that was written, in order."""
        log = sorted((self.home / "out" / "_spark_metadata").glob("[0-9]*"))
        # every tenth batch says again what those before it have written
        paths = {json.loads(line)["path"] for each in log for line in each.read_text().splitlines()[1:]}
        found = []
        for path in paths:
            table = pq.read_table(path.removeprefix("file://"), columns=["topic", "partition", "offset", "value"])
            found += zip(*(table.column(column).to_pylist() for column in table.column_names), strict=True)
        return sorted(found)


def stored(system, *streams):
    """(stream, partition, offset, value) of all there is, as the client reads it."""
    found = []
    for stream in streams:
        table = system.lift.to_arrow(stream, columns=["partition", "offset", "value"])
        found += [(stream, *row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
    return sorted(found)


def values(records):
    return sorted(int(record[3]) for record in records)
