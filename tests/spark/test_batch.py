"""A batch reads exactly the records that were published, wherever they are and however the work is divided."""

from __future__ import annotations

import json
import random
import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.testing import assertDataFrameEqual

from liftpy_envelope.headers import Headers, encode_header_block
from liftpy_spark.options.source import SourceOptions
from liftpy_spark.reading.planning import Range
from liftpy_spark.reading.ranges import ReadCounts, read_ranges
from liftpy_spark.reading.schema import source_schema
from support.spark_system import eventually, system_of

COLUMNS = ["partition", "offset", "key", "value", "subject"]
COUNT = 600


@pytest.fixture(scope="module")
def lazy(tmp_path_factory, s3):
    """A system that moves things to the bucket by size alone, so that the newest records stay on the disk."""
    with system_of(tmp_path_factory.mktemp("lazy"), s3, "lazy", upload_age_s=3_600.0) as made:
        yield made


@pytest.fixture
def name(request):
    """A name for a stream that no other test uses."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", f"b-{request.node.name}")[:100].strip("-")


def load(spark, system, stream, schema=None, **options):
    reader = spark.read.format("liftpy").options(**system.options, **options)
    reader = reader if set(options) & {"subscribePattern", "assign"} else reader.option("subscribe", stream)
    return (reader if schema is None else reader.schema(schema)).load()


def sorted_rows(frame):
    return frame.toArrow().sort_by([("partition", "ascending"), ("offset", "ascending")])


def sorted_rows_by_offset(frame):
    return frame.toArrow().sort_by("offset")


def assert_same(frame, system, stream, **where):
    """The records of a frame are those that the client reads, column by column."""
    found, expected = sorted_rows(frame), system.records(stream, **where)
    for column in COLUMNS:
        assert found.column(column).to_pylist() == expected.column(column).to_pylist(), column
    times = expected.column("timestamp").cast(pa.timestamp("us", "UTC"), safe=False)
    assert found.column("timestamp").to_pylist() == times.to_pylist()
    assert set(found.column("topic").to_pylist()) <= {stream}
    assert set(found.column("timestampType").to_pylist()) <= {1}
    if "headers" in found.column_names:
        blocks = expected.column("headers").to_pylist()
        said = [{pair["key"]: pair["value"] for pair in pairs or ()} for pairs in found.column("headers").to_pylist()]
        assert said == [
            {key: value.encode() for key, value in Headers(block).items()} if block else {} for block in blocks
        ]
    return found


def publish_mixed(system, stream, first=0, count=COUNT):
    """Records with and without keys, values and headers, on seven subjects."""
    rng = random.Random(first)
    for subject in range(7):
        numbers = range(first + subject, first + count, 7)
        keys = [b"key-%d" % (number % 50) if number % 3 else None for number in numbers]
        values = [
            rng.choice([b"", b"%d" % number, b"%d" % number * 9, None if key else b"x"])
            for number, key in zip(numbers, keys, strict=True)
        ]
        headers = [encode_header_block({"Number": str(n), "Odd": "yes"}) if n % 2 else None for n in numbers]
        system.publish(
            f"{stream}.{subject}",
            key=pa.array(keys, pa.binary()),
            value=pa.array(values, pa.binary()),
            headers=pa.array(headers, pa.binary()),
        )


@pytest.mark.parametrize("partitions", [1, 3, 16])
def test_all_columns_of_all_records(spark, system, name, partitions):
    system.lift.create_stream(name, subject=f"{name}.>", partitions=partitions)
    publish_mixed(system, name)
    frame = load(spark, system, name, includeHeaders="true")
    found = assert_same(frame, system, name)
    assert found.num_rows == COUNT
    assert found.column("key").null_count
    assert found.column("value").null_count
    system.tiered(name)
    many = load(spark, system, name, minPartitions="20", includeHeaders="true")
    assert_same(many, system, name)
    assert many.rdd.getNumPartitions() == 20
    assert load(spark, system, name, cold="false", maxTasks="2").count() == COUNT


def test_message_ids_and_leader_epochs_where_a_schema_names_them(spark, system, name):
    system.lift.create_stream(name, subject=f"{name}.>")
    for number in range(20):
        system.lift.publish(f"{name}.{number % 3}", b"v", message_id=f"id-{number}")
    system.publish(f"{name}.4", value=pa.array([b"v"] * 20))
    schema = "offset long, message_id binary, leader_epoch int"
    hot = sorted_rows_by_offset(load(spark, system, name, schema, cold="false"))
    assert hot.column("message_id").to_pylist() == [*(b"id-%d" % number for number in range(20)), *[None] * 20]
    assert set(hot.column("leader_epoch").to_pylist()) == {system.lift.stream_info(name).partitions[0].leader_epoch}
    some = sorted_rows_by_offset(load(spark, system, name, schema, cold="false", subject=f"{name}.1"))
    assert some.column("message_id").to_pylist() == [b"id-%d" % number for number in range(1, 20, 3)]
    system.tiered(name)
    assert sorted_rows_by_offset(load(spark, system, name, schema)).equals(hot)


def test_one_frame_is_used_again_and_again(spark, system, name):
    system.lift.create_stream(name, subject=f"{name}.>", partitions=2)
    publish_mixed(system, name)
    frame = load(spark, system, name)
    total = frame.count()
    assert total == COUNT
    first = frame.where("partition = 0").count()
    second = frame.where("partition = 1").count()
    assert 0 < first < total
    assert first + second == total
    publish_mixed(system, name, COUNT)
    assert frame.count() == total, "a frame stays as it was planned"
    assert frame.union(frame).count() == 2 * total
    both = frame.where("partition = 0").union(frame.where("partition = 1"))
    assertDataFrameEqual(both.select("partition", "offset"), frame.select("partition", "offset"))
    assert load(spark, system, name).count() == 2 * COUNT


def test_the_seam_between_bucket_and_disk_is_not_noticed(spark, lazy, name):
    lazy.lift.create_stream(name, subject=f"{name}.>", partitions=2)
    rng = random.Random(7)
    for at in range(2):  # each time one batch per partition, and each of them is enough for an upload
        values = pa.array([rng.randbytes(200) for _ in range(4_000)])
        lazy.publish(f"{name}.{at}", value=values, key=pa.array([b"%d" % n for n in range(4_000)]))
    lazy.tiered(name)
    publish_mixed(lazy, name)
    parts = lazy.partitions(name)
    assert all(0 < each.tiered_end < each.high_watermark for each in parts)
    frame = load(spark, lazy, name, includeHeaders="true", minPartitions="5")
    assert assert_same(frame, lazy, name).num_rows == 8_000 + COUNT
    seam = {str(each.partition): each.tiered_end for each in parts}
    around = {"start": {n: at - 3 for n, at in seam.items()}, "end": {n: at + 2 for n, at in seam.items()}}
    offsets = {side: json.dumps({name: of}) for side, of in around.items()}
    rows = sorted_rows(load(spark, lazy, name, startingOffsets=offsets["start"], endingOffsets=offsets["end"]))
    expected = [(int(n), at + step) for n, at in seam.items() for step in range(-3, 2)]
    assert list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)) == expected

    counts = ReadCounts()
    options = SourceOptions.read(lazy.options | {"subscribe": name}, streaming=False)
    uuid = lazy.lift.stream_info(name).uuid
    ranges = [Range(name, uuid, each.partition, 0, each.high_watermark) for each in parts]
    rows = sum(batch.num_rows for batch in read_ranges(ranges, options, source_schema(False), counts))
    assert rows == counts.cold_rows + counts.hot_rows == 8_000 + COUNT
    assert counts.cold_rows == sum(seam.values())


def test_what_compaction_has_left(spark, system, name):
    system.lift.create_stream(
        name, subject=f"{name}.>", compact=True, segment_bytes=65_536, dedupe_window_s=0.0, min_dirty_ratio=0.1
    )
    keys = pa.array([b"key-%d" % (number % 40) for number in range(4_000)])
    values = pa.array([None if number > 3_990 else b"%d" % number * 10 for number in range(4_000)], pa.binary())
    for at in range(0, 4_000, 500):
        system.publish(f"{name}.x", key=keys.slice(at, 500), value=values.slice(at, 500))

    def has_gaps():
        return system.records(name).num_rows < 3_000

    eventually(has_gaps, "the stream is compacted")
    system.tiered(name)
    frame = load(spark, system, name)
    latest = dict(zip(keys.to_pylist(), values.to_pylist(), strict=True))
    for cold in ("true", "false"):
        rows = sorted_rows(load(spark, system, name, cold=cold))
        offsets = rows["offset"].to_pylist()
        assert offsets == sorted(set(offsets))
        assert all(keys[offset].as_py() == key for offset, key in zip(offsets, rows["key"].to_pylist(), strict=True))
        assert all(values[at].as_py() == value for at, value in zip(offsets, rows["value"].to_pylist(), strict=True))
        assert dict(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)) == latest
    assert frame.where("value is null").count() == 9


def test_exactly_the_range_that_is_asked_for(spark, system, name):
    system.lift.create_stream(name, subject=f"{name}.>", partitions=2)
    publish_mixed(system, name)
    system.tiered(name)
    ends = {each.partition: each.high_watermark for each in system.partitions(name)}
    some = load(
        spark,
        system,
        name,
        startingOffsets=json.dumps({name: {"0": 7, "1": -2}}),
        endingOffsets=json.dumps({name: {"0": 9, "1": ends[1] - 1}}),
    )
    rows = sorted_rows(some)
    expected = [(0, 7), (0, 8), *((1, at) for at in range(ends[1] - 1))]
    assert list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)) == expected
    assigned = load(spark, system, name, assign=json.dumps({name: [1]}))
    assert assigned.where("partition = 0").count() == 0
    assert assigned.count() == ends[1]
    nothing = json.dumps({name: {"0": 5, "1": 5}})
    assert load(spark, system, name, startingOffsets=nothing, endingOffsets=nothing).count() == 0
    assert load(spark, system, name, subscribePattern="no-stream-is-like-this").count() == 0


def test_several_streams(spark, system, name):
    for at in range(2):
        system.lift.create_stream(f"{name}-{at}", subject=f"{name}-{at}.>")
        system.publish(f"{name}-{at}.x", value=pa.array([b"1", b"2"]))
    named = load(spark, system, f"{name}-0, {name}-1")
    like = load(spark, system, name, subscribePattern=f"{name}-.*")
    assert sorted(row.topic for row in named.select("topic").collect()) == [f"{name}-0"] * 2 + [f"{name}-1"] * 2
    assertDataFrameEqual(named, like)


def test_by_time(spark, system, name):
    system.lift.create_stream(name, subject=f"{name}.>", partitions=2)
    for number in range(6):
        system.lift.publish(f"{name}.x", b"%d" % number, key=b"%d" % number)
    rows = system.records(name)
    times = sorted(rows["timestamp"].cast(pa.int64()).to_pylist())
    cut_ms = times[3] // 1_000_000
    later = pc.greater_equal(rows["timestamp"].cast(pa.int64()), cut_ms * 1_000_000)
    expected = sorted(rows.filter(later)["value"].to_pylist())
    begins = load(spark, system, name, startingTimestamp=str(cut_ms), startingOffsetsByTimestampStrategy="latest")
    ends = load(spark, system, name, endingTimestamp=str(cut_ms))
    assert sorted(row.value for row in begins.collect()) == expected
    assert sorted(row.value for row in ends.collect()) == sorted(set(rows["value"].to_pylist()) - set(expected))


def test_only_the_columns_that_are_named(spark, system, name):
    system.lift.create_stream(name, subject=f"{name}.>")
    publish_mixed(system, name)
    system.tiered(name)
    pruned = load(spark, system, name, "offset long not null, partition int, topic string")
    assert pruned.columns == ["offset", "partition", "topic"]
    assert [tuple(row) for row in pruned.orderBy("offset").collect()] == [(n, 0, name) for n in range(COUNT)]
    constants = load(spark, system, name, "timestampType int, partition int")
    assert constants.count() == COUNT
    assert constants.distinct().count() == 1


@pytest.mark.parametrize("cold", ["true", "false"])
def test_subjects_and_keys(spark, system, name, cold):
    system.lift.create_stream(name, subject=f"{name}.>", partitions=2)
    publish_mixed(system, name)
    if cold == "true":
        system.tiered(name)
    of_subject = load(spark, system, name, subject=f"{name}.3, {name}.5", cold=cold)
    assert_same(of_subject, system, name, subjects=[f"{name}.3", f"{name}.5"])
    assert of_subject.count() > 0
    rows = system.records(name)
    of_key = load(spark, system, name, keyEquals="key-7", cold=cold)
    expected = rows.filter(pc.equal(rows["key"], b"key-7"))
    assert sorted_rows(of_key)["offset"].to_pylist() == expected["offset"].to_pylist()
    assert expected.num_rows > 3
    assert load(spark, system, name, keyEquals="nobody", cold=cold).count() == 0


def test_what_is_left_out_is_not_fetched(lazy, name):
    lazy.lift.create_stream(name, subject=f"{name}.>")
    rng = random.Random(5)
    for subject in ("eu", "us", "za"):
        values = pa.array([rng.randbytes(128) for _ in range(6_000)])
        keys = pa.array([b"%s-%05d" % (subject.encode(), number) for number in range(6_000)])
        lazy.publish(f"{name}.{subject}", value=values, key=keys)
    (partition,) = lazy.partitions(name)
    eventually(lambda: (lazy.partitions(name)[0].tiered_end or 0) >= 13_000, "most of it is in the bucket")
    (partition,) = lazy.partitions(name)
    ranges = [Range(name, lazy.lift.stream_info(name).uuid, 0, 0, partition.tiered_end)]

    def fetched(*columns, **options):
        given = SourceOptions.read(lazy.options | {"subscribe": name} | options, streaming=False)
        schema = source_schema(False)
        wanted = type(schema)([field for field in schema.fields if not columns or field.name in columns])
        counts = ReadCounts()
        rows = sum(batch.num_rows for batch in read_ranges(ranges, given, wanted, counts))
        assert (counts.hot_rows, counts.cold_rows) == (0, rows)
        return rows, counts.bytes

    fetched("partition")  # footers are kept by the process
    rows, everything = fetched()
    assert rows == partition.tiered_end
    assert everything > rows * 128
    assert fetched("partition", "topic")[0] == rows
    assert fetched("partition", "topic")[1] < everything / 100
    assert fetched("offset")[1] < everything / 20
    assert fetched("key")[1] < everything / 10
    rows, size = fetched(subject=f"{name}.us")
    assert rows == 6_000
    assert size < everything * 0.6
    assert fetched(subject=f"{name}.nowhere") < (1, everything / 100)
    rows, size = fetched(keyEquals="us-03000")
    assert rows == 1
    assert size < everything * 0.6
