"""Tables whose history executors read by S3A from a real store, set up as docs/spark/tables.md says.

Its JARs are not on PyPI: LIFTPY_S3A_JARS names a directory that has them, or is `maven` for Spark to fetch them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from bench.spark_s3a import FETCH, VARIABLE, s3a_trouble

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.root.file import RootFile
from support import table_work
from support.spark_cluster import local_cluster
from support.spark_system import eventually, system_of

JARS = os.environ.get(VARIABLE)
TROUBLE = s3a_trouble(JARS)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(TROUBLE is not None, reason=f"no S3A: {TROUBLE}")]

PAGE = (Path(__file__).parents[2] / "docs" / "spark" / "tables.md").read_text()
PREFIX = "by-s3a"
COLUMNS = ["partition", "offset", "timestamp", "key", "value", "subject"]
PARTITIONS = 2
MERGED_S = 180.0
WITNESS = "witness"  # as the stream that is read, but nothing holds its objects


@pytest.fixture(scope="module")
def quick(tmp_path_factory, s3):
    """A node that uploads by size alone, so that the newest records stay with it, and merges and collects soon."""
    soon = {"upload_age_s": 3_600.0, "object_bytes": 2 << 20, "grace_s": 1.0}
    with system_of(tmp_path_factory.mktemp("quick"), s3, PREFIX, **soon) as made:
        yield made


def documented(endpoint):
    """The lines of the documentation, with this store in place of the one that it names, and our JARs."""
    lines = re.search(r"^```\n(spark\.jars\.packages .*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
    text = lines.replace("http://store:8333", endpoint)
    assert endpoint in text
    if JARS == FETCH:
        return text
    paths = "".join(f"spark.{who}.extraClassPath {JARS}/*\n" for who in ("driver", "executor"))
    return re.sub(r"^spark\.jars\.packages .*\n", paths, text)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, s3):
    """Executors are JVMs of their own, and have the credentials from their environment alone."""
    directory = tmp_path_factory.mktemp("s3a")
    by_name = s3.endpoint.replace("127.0.0.1", "localhost")  # a store with a name is harder to reach than one without
    (directory / "spark-defaults.conf").write_text(documented(by_name))
    with mock.patch.dict(os.environ, {"SPARK_CONF_DIR": str(directory)}), local_cluster(directory) as made:
        yield made


def create(system, name):
    system.lift.create_stream(name, subject=f"{name}.>", partitions=PARTITIONS, segment_bytes=65_536)
    return system.lift.stream_info(name).uuid.replace("-", "")


def publish(system, name, count):
    """Records of some 600 bytes: some without a key, some without a value, on two subjects."""
    numbers = range(count)
    values = pa.array([None if number % 11 == 0 else os.urandom(600) for number in numbers], pa.binary())
    keys = pa.array([None if number % 7 == 0 else b"%d" % (number % 97) for number in numbers], pa.binary())
    half = count // 2
    system.publish(f"{name}.eu", value=values[:half], key=keys[:half])
    system.publish(f"{name}.us", value=values[half:], key=keys[half:])


def leave_some(system, name):
    """Publish on until of every partition a little has been left with the node, too little for one more upload."""
    upload, little = 430, 200  # an upload is 262,144 bytes, which are more records than this

    def is_left():
        waiting = [each.high_watermark - (each.tiered_end or 0) for each in system.partitions(name)]
        if all(0 < count < little for count in waiting):
            return True
        if all(count < upload for count in waiting):
            publish(system, name, 50)
        return False

    eventually(is_left, f"of {name} some is in the bucket, and some is not")


def by_client(system, name):
    """What the client reads; its times are to the nanosecond, and Spark's to the microsecond."""
    found = system.records(name).select(COLUMNS)
    times = found.column("timestamp").cast(pa.timestamp("us", "UTC"), safe=False)
    return found.set_column(COLUMNS.index("timestamp"), "timestamp", times)


def assert_same(found, expected):
    assert found.num_rows == expected.num_rows
    for column in COLUMNS:
        assert found.column(column).to_pylist() == expected.column(column).to_pylist(), column


def objects(store, uuid):
    """Keys of the objects of their own that partitions of a stream have."""
    return {each.key for n in range(PARTITIONS) for each in store.list(f"{PartitionPath(uuid, n).directory}fragments/")}


def named(store, uuid):
    """Keys of those that the roots of now name."""
    keys = set()
    for number in range(PARTITIONS):
        path = PartitionPath(uuid, number)
        file = RootFile(store, path, new_id=lambda: "reads")
        loaded = file.load()
        if loaded is not None:
            keys |= {path.fragment(each.name) for each in file.fragments(loaded.root)}
    return keys


def test_every_record_is_read_while_objects_are_merged_and_collected(cluster, quick, request):
    store = quick.server.store(PREFIX)
    name = request.node.name[:40]
    uuids = {each: create(quick, each) for each in (name, WITNESS)}
    for each in uuids:
        publish(quick, each, 3_000)
    leave_some(quick, name)
    eventually(lambda: objects(store, uuids[WITNESS]), "the other stream has objects of its own, too")
    cold = cluster.run(table_work.hold, name, quick.options)
    try:
        held = {key for each in cold.values() for key in each.keys}
        before = by_client(quick, name)
        assert len(cold) == PARTITIONS
        assert 0 < sum(each.end for each in cold.values()) < before.num_rows, "some is cold, and some is not"
        assert cluster.run(table_work.schemes) == {
            "s3a://": sum(each.end - each.start for each in cold.values()),
            "": before.num_rows - sum(each.end - each.start for each in cold.values()),
        }
        assert_same(cluster.run(table_work.read_held, "true", COLUMNS), before)
        filtered = cluster.run(table_work.read_held, f"subject = '{name}.us' AND key IS NULL AND offset > 100", COLUMNS)
        wanted = [row for row in before.to_pylist() if row["subject"].endswith(".us") and row["key"] is None]
        assert filtered.to_pylist() == [row for row in wanted if row["offset"] > 100] != []

        first_of_witness = objects(store, uuids[WITNESS])
        for each in (*uuids, *uuids, *uuids):
            publish(quick, each, 3_000)
        eventually(
            lambda: not objects(store, uuids[WITNESS]) & first_of_witness, "what nothing holds is collected", MERGED_S
        )
        eventually(lambda: not named(store, uuids[name]) & held, "what is held was merged into other objects", MERGED_S)
        assert held <= objects(store, uuids[name]), "it is there all the same"
        assert_same(cluster.run(table_work.read_held, "true", COLUMNS), before)
    finally:
        cluster.run(table_work.let_go)
    for _ in range(3):  # the node looks for garbage when it has merged
        publish(quick, name, 3_000)
    eventually(lambda: not objects(store, uuids[name]) & held, "what nothing holds any more is collected", MERGED_S)
    cluster.run(table_work.hold, name, quick.options)
    try:
        assert_same(cluster.run(table_work.read_held, "true", COLUMNS), by_client(quick, name))
    finally:
        cluster.run(table_work.let_go)
