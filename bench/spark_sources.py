"""What a Python data source of Spark costs when it has nothing to do: a source of ready Arrow batches, and a sink."""

from __future__ import annotations

import os
import time
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

__all__ = ["BATCH_ROWS", "ReadyBatches", "values_of"]

BATCH_ROWS = 32_768
_POOL_BYTES = 32 << 20
_ROWS_PER_TASK = 1_000_000  # as many as of a stream


class ReadyBatches(DataSource):
    """Yields one Arrow batch again and again, and counts what is written to it; options `rows` and `size`."""

    @classmethod
    def name(cls):
        return "ready-batches"

    def schema(self):
        return "offset long, timestamp timestamp, value binary"

    def reader(self, schema):
        return _Reader(schema, int(self.options["rows"]), int(self.options["size"]))

    def streamReader(self, schema):  # noqa: N802 - the name is of Spark
        return _StreamReader(schema, int(self.options["size"]))

    def writer(self, schema, overwrite):  # noqa: ARG002 - the signature of Spark
        return _Counter()


class _Reader(DataSourceReader):
    def __init__(self, schema, rows, size):
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._rows = rows
        self._size = size

    def partitions(self):
        tasks = -(-self._rows // _ROWS_PER_TASK)
        edges = [self._rows * at // tasks for at in range(tasks + 1)]
        return [InputPartition(end - start) for start, end in pairwise(edges)]

    def read(self, partition):
        batch = _batch(self._schema, self._size)
        left = partition.value
        while left:
            taken = batch.slice(0, min(left, batch.num_rows))
            yield taken
            left -= taken.num_rows


class _StreamReader(DataSourceStreamReader):
    """Ten records every second, as the source that counts time has them."""

    def __init__(self, schema, size):
        self._reader = _Reader(schema, 10, size)
        self._began_s = int(time.time())

    def initialOffset(self):  # noqa: N802
        return {"s": self._began_s}  # Spark keeps none, and asks more than once

    def latestOffset(self, start, limit):  # noqa: N802, ARG002
        return {"s": int(time.time())}

    def partitions(self, start, end):
        return [InputPartition(10 * (end["s"] - start["s"]))]

    def read(self, partition):
        yield from self._reader.read(partition)


class _Counter(DataSourceArrowWriter):
    def write(self, iterator):
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages):
        pass


def _batch(schema, size):
    now = time.time_ns() // 1_000
    made = {
        "offset": lambda: pa.array(range(BATCH_ROWS), pa.int64()),
        "timestamp": lambda: pa.array(range(now, now + BATCH_ROWS), pa.int64()).cast(pa.timestamp("us", "UTC")),
        "value": lambda: values_of(size, BATCH_ROWS),
        "key": lambda: values_of(16, BATCH_ROWS),
    }
    constants = {"topic": "scan", "subject": "scan", "partition": 0, "timestampType": 1}
    arrays = [
        made[field.name]()
        if field.name in made
        else pa.repeat(pa.scalar(constants[field.name], field.type), BATCH_ROWS)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def values_of(size, rows):
    """Values drawn by chance; beyond some MiB of them they repeat, farther apart than anything that compresses sees."""
    distinct = min(rows, _POOL_BYTES // size)
    offsets = pa.py_buffer(memoryview(pa.array(range(0, size * (distinct + 1), size), pa.int32()).buffers()[1]))
    values = pa.Array.from_buffers(pa.binary(), distinct, [None, offsets, pa.py_buffer(os.urandom(size * distinct))])
    if distinct == rows:
        return values
    times, rest = divmod(rows, distinct)
    return pa.concat_arrays([*[values] * times, values.slice(0, rest)])
