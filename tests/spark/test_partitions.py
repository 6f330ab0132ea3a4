"""However many partitions there are, and whatever becomes of them while a query runs: reads and writes are right."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from support.spark_streaming import TIMEOUT_S, Query, create, publish, stored
from support.spark_system import eventually

COUNTS = range(1, 17)
RECORDS = 64


@pytest.fixture(scope="module")
def streams(system):
    """A stream for each number of partitions, with keys, nulls and tombstones; the first half is in the bucket."""
    found = [f"p-{count}" for count in COUNTS]
    for count, name in zip(COUNTS, found, strict=True):
        system.lift.create_stream(name, subject=f"{name}.>", partitions=count)
    for first in (0, RECORDS):
        numbers = range(first, first + RECORDS)
        keys = pa.array([b"%d" % number if number % 3 else None for number in numbers], pa.binary())
        texts = [b"%d" % number if number % 5 or not number % 3 else None for number in numbers]
        for name in found:
            system.publish(f"{name}.x", key=keys, value=pa.array(texts, pa.binary()))
        for name in found if not first else ():
            system.tiered(name)
    return found


def records(table):
    """(stream, partition, offset, key, value), in order."""
    columns = [table.column(column).to_pylist() for column in ("topic", "partition", "offset", "key", "value")]
    return sorted(zip(*columns, strict=True), key=lambda row: row[:3])


def expected(system, streams):
    found = []
    for name in streams:
        table = system.records(name)
        found += records(table.append_column("topic", pa.array([name] * table.num_rows)))
    return sorted(found, key=lambda row: row[:3])


def load(spark, options):
    return spark.read.format("liftpy").options(**options).load()


def test_one_to_sixteen_partitions(spark, system, streams):
    """The options say neither where the bucket is nor where its store: the nodes do."""
    options = {"servers": system.url, "subscribePattern": "p-[0-9]+"}
    there = expected(system, streams)
    assert len(there) == len(streams) * 2 * RECORDS
    assert load(spark, options).rdd.getNumPartitions() == 64, "136 partitions are read by as many tasks as there may be"
    frame = load(spark, options | {"maxTasks": "4"})
    assert frame.rdd.getNumPartitions() == 4
    assert records(frame.toArrow()) == there


def test_many_partitions_of_a_streaming_query(spark, system, streams, tmp_path):
    some = {"subscribe": "p-1,p-5,p-16", "startingOffsets": "earliest"}
    asked = Query(spark, system, tmp_path, **some, maxTasks="4", maxOffsetsPerTrigger="250").run()
    assert asked.records() == stored(system, "p-1", "p-5", "p-16")
    assert asked.batches == [250, 134]


def test_what_is_read_is_written_again(spark, system, streams):
    """Through the sink and back, with its partitions; the nodes say where the bucket is here, too."""
    system.lift.create_stream("p-copy", subject="p-copy", partitions=16)
    rows = load(spark, {"servers": system.url, "subscribe": "p-16", "includeHeaders": "true"})
    writer = rows.select("key", "value", "headers", "partition").write.format("liftpy").mode("append")
    writer.options(servers=system.url, stream="p-copy").save()
    both = [expected(system, [name]) for name in ("p-16", "p-copy")]
    kept = [Counter((partition, key, value) for _, partition, _, key, value in found) for found in both]
    assert kept[0] == kept[1]


def running(spark, system, home, **options):
    """A query that runs until it is stopped."""
    asked = Query(spark, system, home, **options)
    return asked, asked.writer(available_now=False).start()


def test_streams_that_come_while_a_query_runs(spark, system, tmp_path):
    create(system, "later-1", partitions=1, count=10)
    options = {"subscribePattern": "later-[0-9]+", "startingOffsets": "earliest"}
    asked, query = running(spark, system, tmp_path, **options)
    try:
        query.processAllAvailable()
        create(system, "later-2", partitions=5, count=50)
        publish(system, "later-1", 10, first=10)
        eventually(lambda: len(asked.records()) == 70, "the new stream is read")
    finally:
        query.stop()
    assert asked.records() == stored(system, "later-1", "later-2")


@pytest.mark.parametrize("fails", ["true", "false"])
def test_retention_moves_the_start_while_a_query_runs(spark, system, tmp_path, fails):
    """What a batch was planned to read goes before a task reads it, and more of what the next ones would."""
    name = f"shrinks-{fails}"
    create(system, name, count=60, tier=False)
    read = []

    def each(batch, number):
        if number == 1:
            system.lift.purge_stream(name, offset=45)
        read.extend(int(row.value) for row in batch.select("value").collect())

    options = {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    given = system.options | options | {"failOnDataLoss": fails}
    frame = spark.readStream.format("liftpy").options(**given).load()
    writer = frame.writeStream.foreachBatch(each).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        if fails == "true":
            with pytest.raises(StreamingQueryException, match="the records from 20 to 40 are gone"):
                query.awaitTermination(TIMEOUT_S)
            assert sorted(read) == list(range(20))
        else:
            assert query.awaitTermination(TIMEOUT_S), "the query does not end"
            assert sorted(read) == [*range(20), *range(45, 60)]
    finally:
        query.stop()


def test_some_partitions_of_some_streams(spark, system, streams):
    assign = {"p-16": [0, 7, 15], "p-5": [4], "p-1": [0]}
    frame = load(spark, {"servers": system.url, "assign": json.dumps(assign)})
    there = [row for row in expected(system, streams) if row[1] in assign.get(row[0], ())]
    assert records(frame.toArrow()) == there
    assert {row[:2] for row in there} <= {(name, number) for name, of in assign.items() for number in of}


def test_a_view_of_sql(spark, system, streams):
    spark.sql(f"CREATE TEMPORARY VIEW of_sql USING liftpy OPTIONS (servers '{system.url}', subscribe 'p-3')")
    try:
        counted = spark.sql("SELECT partition, count(*) FROM of_sql GROUP BY partition").collect()
        assert {tuple(row) for row in counted} == set(Counter(r[1] for r in expected(system, ["p-3"])).items())
    finally:
        spark.catalog.dropTempView("of_sql")


def test_a_table_of_sql_is_refused_with_what_works_instead(spark, system):
    with pytest.raises(AnalysisException, match="make a view: CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE of_sql USING liftpy OPTIONS (servers '{system.url}', subscribe 'p-3')")
