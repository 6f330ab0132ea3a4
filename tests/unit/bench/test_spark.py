"""What workloads with Spark publish, count and tell."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench import __main__ as bench_main
from bench import spark_load
from bench.report import target_of
from bench.row import Plan, Row
from bench.spark_s3a import (
    FETCH,
    PARQUET_BY_S3A,
    TABLE,
    VARIABLE,
    hadoop_version,
    jar_settings,
    s3a_settings,
    s3a_trouble,
)
from bench.spark_session import cpu_by_process, spent
from bench.spark_sources import BATCH_ROWS, ReadyBatches, values_of
from bench.spark_workloads import SPARK_WORKLOADS, _scanned, _scanned_cold, spark_trouble
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


def test_the_store_counts_though_it_is_nobodys_child():
    before = cpu_by_process(os.getppid())
    assert [kind for kind, _ in before.values()].count("store") == 1
    after = spent(before, os.getppid())
    assert list(after) == ["Python", "JVM", "store"]
    assert after["store"] >= 0


def test_rows_of_a_scan_say_what_python_could_do_at_best():
    figures = {"liftpy": [1e6, 3e6], "spark.read.parquet": [4e6, 4e6], "ready batches": [2e6, 3e6]}
    cpu = {"liftpy": [{"Python": python, "JVM": 2.5} for python in (1.0, 9.0, 0.5)], "ready batches": []}
    found = {"figures": {"aggregation": figures}, "cpu": {"aggregation": cpu}}
    (row,) = _scanned(found, "spark, cold, {}, 128 B", "spark.read.parquet", "9 objects")
    assert row.ratio == 0.5
    assert target_of(row) == ("of spark.read.parquet", 0.8)
    assert row.note.startswith("9 objects, 0.80 of ready batches (2,500,000/s); s of CPU")
    assert row.note.endswith("liftpy Python 1.0, JVM 2.5")


def scanned(**more):
    figures = {"liftpy": [2e6, 2e6], "spark.read.parquet": [4e6, 4e6]} | more | {"ready batches": [5e6, 5e6]}
    found = {"figures": {"no-op": figures}, "cpu": {"no-op": {}}}
    return {row.workload: row for row in _scanned_cold(found, "cold", "9 objects")}


def test_the_same_objects_by_s3a_are_a_peer_of_their_own_beside_local_files():
    rows = scanned(**{PARQUET_BY_S3A: [2.5e6, 2.5e6], TABLE: [2e6, 2.4e6]})
    local, ours, of_table = rows.values()
    assert [local.workload, local.peer, local.ratio] == ["spark, cold, no-op, 128 B", "spark.read.parquet", 0.5]
    assert list(local.runs) == ["liftpy", "spark.read.parquet", "ready batches"]
    assert target_of(local) == ("of spark.read.parquet", 0.55)
    assert [ours.workload, ours.peer, ours.ratio] == ["spark, cold against S3A, no-op, 128 B", PARQUET_BY_S3A, 0.8]
    assert target_of(ours) == ("of spark.read.parquet by S3A", 0.55)
    assert ours.note == "0.50 of spark.read.parquet of local files"
    assert [of_table.peer, of_table.ratio, target_of(of_table)] == [PARQUET_BY_S3A, 0.88, None]
    assert of_table.note == "0.55 of spark.read.parquet of local files"


def test_without_s3a_there_are_the_rows_of_before():
    assert list(scanned()) == ["spark, cold, no-op, 128 B"]


@pytest.fixture
def jars(tmp_path):
    """A directory with everything that S3A needs, by its name."""
    for name in (f"hadoop-aws-{hadoop_version()}", "bundle-2.35.4", "analyticsaccelerator-s3-1.3.1"):
        (tmp_path / f"{name}.jar").touch()
    return tmp_path


def test_jars_of_s3a_are_in_a_directory_or_fetched(jars):
    assert s3a_trouble(str(jars)) is None
    assert jar_settings(str(jars)) == {"spark.driver.extraClassPath": f"{jars}/*"}
    assert s3a_trouble(FETCH) is None
    (jars / "bundle-2.35.4.jar").unlink()
    (jars / f"hadoop-aws-{hadoop_version()}.jar").rename(jars / "hadoop-aws-1.0.0.jar")
    assert s3a_trouble(str(jars)) == f"{jars} has no hadoop-aws-{hadoop_version()}.jar and no bundle-*.jar"
    assert s3a_trouble(None) == "neither --s3a-jars nor LIFTPY_S3A_JARS says where its JARs are"


def test_s3a_is_set_up_as_the_documentation_says():
    page = (Path(__file__).parents[3] / "docs" / "spark" / "tables.md").read_text()
    lines = re.findall(r"^(spark\.\S+) +(\S+)$", page, re.MULTILINE)
    assert dict(lines) == jar_settings(FETCH) | s3a_settings("http://store:8333")


@pytest.mark.parametrize(("has_jars", "told"), [(True, 0), (False, 1)])
def test_that_s3a_was_left_out_is_said_in_one_line(has_jars, told, jars, monkeypatch, tmp_path, capsys):
    plans = []

    def measure(_home, _names, plan, _console):
        plans.append(plan)
        return []

    monkeypatch.setattr(bench_main, "measure", measure)
    monkeypatch.setattr(bench_main, "spark_trouble", lambda: None)
    monkeypatch.setenv(VARIABLE, str(jars if has_jars else tmp_path / "nowhere"))
    monkeypatch.setattr("sys.argv", ["bench", "--only", "spark-cold", "--results", str(tmp_path)])
    bench_main.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if "left out" in line]
    assert len(lines) == told
    assert all("spark.read.parquet by S3A and liftpy_spark.table were left out" in line for line in lines)
    assert plans[0].s3a_jars == str(jars if has_jars else tmp_path / "nowhere")


def test_goals_of_rows_with_spark_are_theirs():
    goals = {
        "spark, cold, no-op, 128 B": ("of spark.read.parquet", 0.55),
        "spark, cold against S3A, aggregation, 128 B": ("of spark.read.parquet by S3A", 0.8),
        "spark, table cold against S3A, aggregation, 128 B": None,
        "spark, all columns cold against S3A, aggregation, 128 B": None,
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
