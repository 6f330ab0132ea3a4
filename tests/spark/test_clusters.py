"""On clusters, whose executors are processes of their own: what is read and written is right, whoever is killed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import liftpy
from support import spark_work
from support.cli import COMMAND, environment_of
from support.cluster_kit import ClusterKit
from support.spark_cluster import EXECUTORS, local_cluster, standalone_cluster
from support.spark_streaming import Query, create, publish, stored
from support.spark_system import eventually, system_of

pytestmark = pytest.mark.slow

COLUMNS = ["topic", "partition", "offset", "key", "value", "subject"]
ROWS = 3_000
SUBMIT_S = 300


@pytest.fixture(scope="module")
def lazy(tmp_path_factory, s3):
    """A system that moves things to the bucket by size alone, so that the newest records stay on the disk."""
    with system_of(tmp_path_factory.mktemp("lazy"), s3, "clusters", upload_age_s=3_600.0) as made:
        made.options = {"servers": made.url}  # where the bucket is, the nodes say
        yield made


@pytest.fixture(scope="module", params=[local_cluster, standalone_cluster], ids=["local-cluster", "standalone"])
def cluster(request, tmp_path_factory, s3):
    """One after the other. Executors have the credentials of the bucket, and nobody has told them where it is."""
    with request.param(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def name(request):
    """A name for a stream that no other test uses."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", f"c-{request.node.name}")[:100].strip("-")


@pytest.fixture
def notes(tmp_path):
    """Where tasks leave word."""
    found = tmp_path / "notes"
    found.mkdir()
    return found


def half_cold(system, name, count=8_000):
    """A stream whose history is in the bucket, and whose end is not."""
    create(system, name, partitions=4)
    values = pa.array([os.urandom(300) for _ in range(count)])
    system.publish(f"{name}.old", value=values, key=pa.array([b"%d" % number for number in range(count)]))
    system.tiered(name)
    publish(system, name, 500)
    assert all(0 < each.tiered_end < each.high_watermark for each in system.partitions(name))
    return system.options | {"subscribe": name}


def assert_same(table, system, name):
    """Record by record what the client reads."""
    found = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
    expected = system.records(name)
    expected = expected.append_column("topic", pa.array([name] * expected.num_rows))
    for column in COLUMNS:
        assert found.column(column).to_pylist() == expected.column(column).to_pylist(), column


def killed(notes):
    """Batches in which an executor was killed, and those in which a task failed."""
    said = {int(each.name): each.read_text() for each in notes.iterdir()}
    return sorted(n for n, text in said.items() if text), sorted(n for n, text in said.items() if not text)


def numbers(system, name):
    return Counter(int(value) for value in system.records(name).column("value").to_pylist())


def test_a_batch_is_what_the_client_reads_though_an_executor_is_killed(cluster, lazy, name, notes):
    options = half_cold(lazy, name)
    assert cluster.run(spark_work.writers_of, options) == EXECUTORS
    assert_same(cluster.run(spark_work.read, options, notes, (0,)), lazy, name)
    assert killed(notes) == ([0], [])


def test_a_streaming_query_has_every_record_once(cluster, lazy, name, tmp_path, notes):
    options = half_cold(lazy, name) | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "2000"}
    cluster.run(spark_work.stream_to_files, options, tmp_path, notes, (1, 3))
    assert Query(None, lazy, tmp_path).records() == stored(lazy, name)
    kills, failures = killed(notes)
    assert kills == [1, 3]
    assert failures[:2] == [0, 2], "there was trouble in every batch"


def test_every_row_is_written_once(cluster, lazy, name, tmp_path, notes):
    create(lazy, name, partitions=3)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(4):
        rows = pa.table({"value": [str(row) for row in range(number * ROWS, (number + 1) * ROWS)]})
        pq.write_table(rows, source / f"{number:04d}.parquet")
    options = lazy.options | {"stream": name, "subject": f"{name}.x"}
    cluster.run(spark_work.stream_to_stream, options, source, tmp_path, notes, (0, 2))
    assert numbers(lazy, name) == Counter(dict.fromkeys(range(4 * ROWS), 1))
    assert killed(notes) == ([0, 2], [1, 3])


def test_a_batch_is_written_once(cluster, lazy, name, notes):
    create(lazy, name, partitions=3)
    options = lazy.options | {"stream": name, "subject": f"{name}.x", "txnAppId": "job", "txnVersion": "1"}
    cluster.run(spark_work.write, options, ROWS, notes, (0,))
    cluster.run(spark_work.write, options, ROWS, notes, ())
    assert numbers(lazy, name) == Counter(dict.fromkeys(range(ROWS), 1))
    assert killed(notes) == ([0], [])


def test_a_leader_that_is_killed_in_a_batch_is_followed(cluster, tmp_path, name, notes):
    count = 60_000  # more than a task fetches ahead
    (tmp_path / "nodes").mkdir()
    kit = ClusterKit(tmp_path / "nodes")
    try:
        kit.start()
        with liftpy.connect_sync(kit.url, timeout_s=10.0) as lift:
            lift.create_stream(name, subject=f"{name}.>", replicas=3, min_isr=2)
            values = [b"%d" % number + bytes(1_000) for number in range(count)]
            with lift.publisher() as publisher:
                publisher.publish_batch(f"{name}.x", {"value": pa.array(values)})
            reading = cluster.submit(spark_work.read_held, {"servers": kit.url, "subscribe": name}, notes)
            eventually(lambda: (notes / "reading").exists() or reading.done(), "a task reads", 120)
            kit.kill(lift.stream_info(name).partitions[0].leader)
            (notes / "go").touch()
            table = reading.result(SUBMIT_S)
        assert table.column("offset").to_pylist() == list(range(count))
        assert table.column("value").to_pylist() == values
    finally:
        kit.close()


SCRIPT = """
import json, os, sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
options = json.loads(sys.argv[1])
orders = spark.read.format("liftpy").options(**options, subscribe=sys.argv[2]).load()
copy = orders.selectExpr("key", "value", "partition")
copy.write.format("liftpy").mode("append").options(**options, stream=sys.argv[3], subject=sys.argv[3]).save()
python = udf(lambda _: os.environ.get("OF_THE_ARCHIVE", "no"))
print("PYTHON", [row.p for row in orders.select(python("offset").alias("p")).distinct().collect()])
print("MASTER", spark.sparkContext.master)
spark.stop()
"""


@pytest.mark.parametrize("cluster", [standalone_cluster], ids=["standalone"], indirect=True)
def test_a_script_is_submitted_with_its_archive(cluster, lazy, tmp_path, name):
    half_cold(lazy, name)
    lazy.lift.create_stream("copies", subject="copies", partitions=4)
    shim = tmp_path / "python"
    shim.write_text(f'#!/bin/sh\nOF_THE_ARCHIVE=yes exec {shlex.quote(sys.executable)} "$@"\n')
    shim.chmod(0o755)
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz") as archive:
        archive.add(shim, "bin/python")
    (tmp_path / "job.py").write_text(SCRIPT)
    settings = ("spark.driver.host=127.0.0.1", "spark.cores.max=2", "spark.executor.memory=512m")
    options = [word for each in settings for word in ("--conf", each)]
    script = ("job.py", json.dumps(lazy.options), name, "copies")
    command = [*COMMAND, "spark", "submit", "--master", cluster.master, "--archive", "environment.tar.gz"]
    here = {"SPARK_HOME": str(cluster.home), "SPARK_LOCAL_IP": "127.0.0.1"}
    ended = subprocess.run(
        [*command, *options, *script],
        cwd=tmp_path,
        env=environment_of(tmp_path, **here),
        capture_output=True,
        text=True,
        timeout=SUBMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3_000:]
    assert "PYTHON ['yes']" in ended.stdout
    assert f"MASTER {cluster.master}" in ended.stdout
    copied = [lazy.records(each).select(["partition", "key", "value"]) for each in (name, "copies")]
    rows = [Counter(zip(*(column.to_pylist() for column in each.columns), strict=True)) for each in copied]
    assert rows[0] == rows[1]
