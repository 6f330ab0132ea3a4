"""What workloads with Spark publish, count and tell."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench import spark_load
from bench.report import target_of
from bench.row import Plan, Row
from bench.spark_session import cpu_by_process, spent
from bench.spark_sources import BATCH_ROWS, ReadyBatches, values_of
from bench.spark_workloads import SPARK_WORKLOADS, _scanned, spark_trouble
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType


@pytest.mark.parametrize(("size", "rows"), [(128, 1), (128, 1_000), (1 << 20, 40)])
def test_values_have_their_size_and_differ(size, rows):
    values = values_of(size, rows)
    assert len(values) == rows
    assert {len(value.as_buffer()) for value in values} == {size}
    assert len({value.as_py() for value in values}) == min(rows, (32 << 20) // size)


def test_ready_batches_are_as_many_as_are_asked_for():
    schema = StructType(
        [StructField("offset", LongType()), StructField("topic", StringType()), StructField("value", BinaryType())]
    )
    rows = 2_000_000 + BATCH_ROWS + 1
    reader = ReadyBatches({"rows": str(rows), "size": "8"}).reader(schema)
    tasks = reader.partitions()
    assert len(tasks) == 3
    batches = [batch for task in tasks for batch in reader.read(task)]
    assert sum(batch.num_rows for batch in batches) == rows
    assert {batch.schema.names[0] for batch in batches} == {"offset"}
    assert batches[0].column("topic").null_count == 0


def test_files_to_append_hold_what_is_published(tmp_path, capsys):
    spark_load.write(str(tmp_path), 16, 250_000)
    table = pq.read_table(tmp_path)
    assert table.num_rows == 250_000
    assert table.schema.field("key").type == pa.binary()
    assert table.column("key")[-1].as_py() == b"user-00249999"
    assert "250000" in capsys.readouterr().out


def test_processes_that_have_ended_do_not_count_backwards():
    before = cpu_by_process() | {(-1, 0.0): ("Python", 1_000.0)}
    assert (os.getpid() in {pid for pid, _ in before}) is True
    after = spent(before)
    assert after["Python"] >= 0
    assert after["JVM"] == 0


def test_rows_of_a_scan_say_what_python_could_do_at_best():
    figures = {"liftpy": [1e6, 3e6], "spark.read.parquet": [4e6, 4e6], "ready batches": [2e6, 3e6]}
    found = {"figures": {"aggregation": figures}, "cpu": {"aggregation": {"liftpy": {"Python": 1.0, "JVM": 2.5}}}}
    (row,) = _scanned(found, "spark, cold, {}, 128 B", "spark.read.parquet", "9 objects")
    assert row.ratio == 0.5
    assert target_of(row) == ("of spark.read.parquet", 0.8)
    assert row.note.startswith("9 objects, 0.80 of ready batches (2,500,000/s); s of CPU")
    assert "liftpy Python 1.0, JVM 2.5" in row.note


def test_goals_of_rows_with_spark_are_theirs():
    goals = {
        "spark, cold, no-op, 128 B": ("of spark.read.parquet", 0.55),
        "spark, all columns cold, no-op, 128 B": None,
        "spark, hot, aggregation, 128 B": ("records/s", 2e6),
        "spark, sink, exactly once, 128 B": ("records/s", 5e5),
        "spark, idle query, Python": ("% of a core at most", 3.0),
        "spark, idle query, JVM": None,
        "spark, micro-batch of 10 records": None,
    }
    assert {name: target_of(Row(name, "-", "")) for name in goals} == goals
    assert all(name.startswith("spark-") for name in SPARK_WORKLOADS)
    assert Plan.quick().spark_records < Plan.full().spark_records


def test_where_there_is_no_java_that_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert spark_trouble() == "there is no Java"
