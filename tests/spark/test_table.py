"""A stream as one DataFrame: the pinned objects read as Parquet, and what is behind them through the source."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.pins.held import load_pins
from liftpy_spark.errors import BucketError, NoSuchStreamError
from liftpy_spark.options.values import OptionError
from liftpy_spark.table.frame import table
from support.spark_system import PREFIX, eventually


@pytest.fixture
def name(request):
    """A name for a stream that no other test uses."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", f"t-{request.node.name}")[:100].strip("-")


@pytest.fixture
def download(system, tmp_path):
    """Maps the key of an object to a local file with what is in it: the JVM of the tests reads no S3."""
    store = system.server.store(PREFIX)

    def locate(key):
        path = tmp_path / key.replace("/", "_")
        path.write_bytes(store.get(key).body)
        return str(path)

    return locate


def history(system, stream, **settings):
    """A stream with 2,000 records in two partitions, large enough that they get objects of their own."""
    usual = {"partitions": 2, "segment_bytes": 65_536}
    system.lift.create_stream(stream, subject=f"{stream}.>", **usual | settings)
    publish(system, stream, 2_000)
    uuid = system.lift.stream_info(stream).uuid.replace("-", "")
    store = system.server.store(PREFIX)

    def has_objects():
        return all(any(store.list(f"streams/{uuid}/{number}/fragments/")) for number in range(2))

    system.tiered(stream)
    eventually(has_objects, f"partitions of {stream} have objects of their own")
    return uuid


def publish(system, stream, count, first=0):
    numbers = range(first, first + count)
    columns = {"value": [b"%0600d" % number for number in numbers], "key": [b"%d" % number for number in numbers]}
    system.publish(f"{stream}.x", **{name: pa.array(values) for name, values in columns.items()})


def rows(frame):
    columns = ("topic", "partition", "offset", "key", "value", "subject")
    return [tuple(row) for row in frame.orderBy("partition", "offset").select(*columns).collect()]


def stored(system, stream):
    found = system.records(stream).select(["partition", "offset", "key", "value", "subject"]).to_pylist()
    return [(stream, *row.values()) for row in found]


def test_both_parts_are_the_stream_and_stay_so(spark, system, download, name):
    uuid = history(system, name)
    with table(spark, name, locate=download, **system.options) as made:
        source = spark.read.format("liftpy").options(**system.options, subscribe=name).load()
        assert made.frame.schema == source.schema
        before = stored(system, name)
        assert rows(made.frame) == rows(source) == before
        assert sum(each.end for each in made.cold.values()) > 0, "Spark reads some of it by itself"
        paths = [PartitionPath(uuid, number) for number in range(2)]
        store = system.server.store(PREFIX)
        assert [[pin.dropped for pin in load_pins(store, path)] for path in paths] == [[False], [False]]
        publish(system, name, 500, first=2_000)
        assert rows(made.frame) == before, "what comes later is not in it"
    assert [[pin.dropped for pin in load_pins(store, path)] for path in paths] == [[True], [True]]
    with table(spark, name, locate=download, **system.options) as made:
        assert rows(made.frame) == stored(system, name)


def test_what_is_published_before_the_first_use_is_not_in_it(spark, system, download, name):
    history(system, name)
    before = stored(system, name)
    with table(spark, name, locate=download, **system.options) as made:
        publish(system, name, 500, first=2_000)
        assert rows(made.frame) == before


def test_a_partition_without_records_is_empty(spark, system, download, name):
    system.lift.create_stream(name, subject=f"{name}.>", partitions=2)
    with table(spark, name, locate=download, **system.options) as made:
        assert rows(made.frame) == []


def test_what_is_wrong_is_said_in_words_and_nothing_stays_pinned(spark, system, name):
    uuid = history(system, name)
    with pytest.raises(OptionError, match="unknown option 'startingOffsets'"):
        table(spark, name, **system.options, startingOffsets="earliest")
    with pytest.raises(OptionError, match="no time"):
        table(spark, name, hold_s=0, **system.options)
    with pytest.raises(NoSuchStreamError, match="no stream 'nothing'"):
        table(spark, "nothing", **system.options)
    with pytest.raises(BucketError, match="has no catalog of liftpy"):
        table(spark, name, **system.options | {"bucket": system.server.url("elsewhere")})

    def lost(_key):
        raise RuntimeError("it can not be fetched")

    with pytest.raises(RuntimeError, match="fetched"):
        table(spark, name, locate=lost, **system.options)
    pins = load_pins(system.server.store(PREFIX), PartitionPath(uuid, 0))
    assert [pin.dropped for pin in pins] == [True]


def test_objects_are_addressed_below_the_bucket(spark, system, name, monkeypatch):
    history(system, name)
    seen = []

    class SeenError(Exception):
        pass

    def parquet(_reader, *paths):
        seen.extend(paths)
        raise SeenError

    monkeypatch.setattr("pyspark.sql.readwriter.DataFrameReader.parquet", parquet)
    for options in (system.options, {k: v for k, v in system.options.items() if k != "bucket"}):
        with pytest.raises(SeenError):
            table(spark, name, scheme="s3", **options)
        assert all(path.startswith(f"{system.bucket_url}/streams/") for path in seen)
        seen.clear()
