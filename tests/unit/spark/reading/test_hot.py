"""Ranges read from a node: what is left out, what comes of another stream, and of a node that says nothing."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from liftpy_client.consumer.decode import RECORDS_SCHEMA
from liftpy_client.consumer.options import ConsumeOptions
from liftpy_client.errors import NodeUnavailableError, NoStreamError
from liftpy_spark.errors import NatsError, ReadStalledError
from liftpy_spark.heads import PartitionHead, StreamHeads
from liftpy_spark.options.offsets import StreamReplacedError
from liftpy_spark.reading import hot
from liftpy_spark.reading.hot import read_hot
from liftpy_spark.reading.planning import Range
from liftpy_spark.reading.projection import Projection
from liftpy_spark.reading.record_filter import RecordFilter
from liftpy_spark.reading.schema import check_schema, source_schema

WANTED = Range("orders", "u", 3, 5, 10)


def records(*rows):
    columns = dict(zip(("offset", "timestamp", "subject", "key"), zip(*rows, strict=True), strict=True))
    count = len(rows)
    return pa.RecordBatch.from_pydict(
        columns | {"partition": [3] * count, "headers": [None] * count, "value": [b"v"] * count}, RECORDS_SCHEMA
    )


class FakeConsumer:
    """Hands out batches, and then waits until it is closed, if it is to."""

    def __init__(self, batches, hangs, uuid, waiting):
        self.batches = batches
        self.hangs = hangs
        self.uuid = uuid
        self.waiting = waiting
        self.closed = threading.Event()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __iter__(self):
        yield from self.batches
        if self.hangs:
            assert self.closed.wait(30)

    def close(self):
        self.closed.set()

    def stream_uuid(self):
        return self.uuid

    def lag(self):
        return self.waiting


class FakeLift:
    """Makes one consumer."""

    def __init__(self, batches=(), *, hangs=False, error=None, uuid="u", waiting=5):
        self.consumer = FakeConsumer(batches, hangs, uuid, {3: waiting})
        self.error = error
        self.asked = {}

    def consume_batches(self, stream, **asked):
        self.asked = asked | {"stream": stream}
        if self.error is not None:
            raise self.error
        return self.consumer


@pytest.fixture
def head(monkeypatch):
    """What is said of the stream when it is asked about; to be changed."""
    found = {"uuid": "u", "end": 10, "asked": 0}

    def heads(_, names):
        found["asked"] += 1
        return [StreamHeads(names[0], found["uuid"], {3: PartitionHead(0, found["end"])})]

    monkeypatch.setattr(hot, "heads", heads)
    monkeypatch.setattr(hot, "_COMMITTED_S", 0.0)
    return found


def read(lift, subjects=(), key=None, **options):
    chosen = RecordFilter(subjects, key)
    steps = list(read_hot(lift, WANTED, Projection(source_schema(include_headers=False)), chosen, **options))
    rows = [row for batch, _ in steps if batch is not None for row in batch.to_pylist()]
    return rows, [step.next_offset for step in steps]


def test_nanoseconds_where_a_schema_names_them():
    lift = FakeLift([records((5, 1_999, "a", b"k"), (7, 2_000, "b", None))])
    schema = StructType([StructField("timestamp_ns", LongType()), StructField("timestamp", TimestampType())])
    check_schema(schema)
    (batch,) = (batch for batch, _ in read_hot(lift, WANTED, Projection(schema), RecordFilter((), None)) if batch)
    assert batch.column("timestamp_ns").to_pylist() == [1_999, 2_000]


def test_records_in_their_columns():
    lift = FakeLift([records((5, 1_999, "a", b"k"), (7, 2_000, "b", None)), records((8, 3_000, "a", b""))])
    rows, offsets = read(lift)
    assert [(row["offset"], row["key"], row["subject"], row["timestamp"].microsecond) for row in rows] == [
        (5, b"k", "a", 1),
        (7, None, "b", 2),
        (8, b"", "a", 3),
    ]
    assert {(row["topic"], row["partition"]) for row in rows} == {("orders", 3)}
    assert offsets == [8, 9, 10]
    place = {"stream": "orders", "start": {3: 5}, "stop": 10, "partitions": [3]}
    assert lift.asked == {**place, "subjects": None, "options": ConsumeOptions()}


def test_what_is_not_wanted_is_left_out_but_was_read():
    batches = [records((5, 0, "a", b"1"), (6, 0, "a", b"2")), records((7, 0, "a", b"3"))]
    rows, offsets = read(FakeLift(batches), key=b"2")
    assert [row["offset"] for row in rows] == [6]
    assert offsets == [7, 8, 10]
    lift = FakeLift(batches)
    assert read(lift, subjects=("b.>",))[0] == []
    assert lift.asked["subjects"] == ["b.>"]


def test_another_stream_is_not_read(head):
    found = records((5, 0, "a", None))
    with pytest.raises(StreamReplacedError, match="it was u, and is v now"):
        read(FakeLift([found], uuid="v"))
    head["uuid"] = "w"
    with pytest.raises(StreamReplacedError, match="it was u, and is w now"):
        read(FakeLift([found], waiting=4))
    with pytest.raises(StreamReplacedError, match="orders was deleted:"):
        read(FakeLift(error=NoStreamError("gone")))


def test_the_stream_is_asked_about_only_when_its_log_seems_to_end_too_early(head):
    for waiting, asked in ((6, 0), (5, 0), (4, 1)):
        assert read(FakeLift([records((9, 0, "a", None))], waiting=waiting))[1] == [10, 10]
        assert head["asked"] == asked


def test_a_log_that_ends_too_early_is_told(head):
    head["end"] = 9
    with pytest.raises(NatsError, match="ends at 9; when this was planned it went to 10"):
        read(FakeLift(waiting=4))


def test_nobody_answers():
    with pytest.raises(NatsError, match=r"no node .asked by the driver"):
        read(FakeLift(error=NodeUnavailableError("no node")))
    lift = FakeLift([records((5, 0, "a", None))], hangs=True)
    with pytest.raises(ReadStalledError, match=r"nothing came for 0.2 s, though there are records up to 10"):
        read(lift, stall_s=0.2)
