"""What tasks of a streaming query ask for, without Spark."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from liftpy_spark.reading.planning import Range
from liftpy_spark.reading.schema import source_schema
from liftpy_spark.source import stream_reader
from liftpy_spark.source.stream_reader import LiftpyStreamReader


def test_tasks_of_a_query_ask_the_nodes_first(monkeypatch):
    asked = []

    def read_ranges(ranges, _options, _schema, **how):
        asked.append((ranges, how))
        yield from ()

    monkeypatch.setattr(stream_reader, "read_ranges", read_ranges)
    given = {"servers": "nats://nowhere", "subscribe": "orders"}
    reader = LiftpyStreamReader(given, source_schema(include_headers=False))
    share = (Range("orders", "u", 0, 3, 9),)
    assert list(reader.read(InputPartition(share))) == []
    assert list(reader.read(InputPartition(None))) == []
    assert asked == [(share, {"asks_nodes": True}), ((), {"asks_nodes": True})]
