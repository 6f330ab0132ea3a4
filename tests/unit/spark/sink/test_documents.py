"""Decisions, staged objects, options and columns: what is written can be read, and what is wrong is told."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType

from liftpy_bucket.errors import StagingDamagedError
from liftpy_bucket.staging.section import RowChunk, Section
from liftpy_bucket.staging.source import load_section
from liftpy_bucket.store.memory import MemoryStore
from liftpy_spark.options.values import OptionError
from liftpy_spark.sink import staging
from liftpy_spark.sink.decision import Decision
from liftpy_spark.sink.errors import SinkSchemaError
from liftpy_spark.sink.options import Delivery, SinkOptions
from liftpy_spark.sink.place import BucketPlace
from liftpy_spark.sink.schema import check_columns
from liftpy_spark.sink.staging import stage
from support.sink_kit import batch_of

NUMBER = st.integers(0, 2**62)
SUBJECTS = st.lists(st.sampled_from(["s.x", "s.y", "s.ü"]), max_size=5).map(tuple)
SECTIONS = st.lists(
    st.builds(Section, st.sampled_from(["a", "b"]), st.integers(0, 2), *[NUMBER] * 5, subjects=SUBJECTS).map(
        lambda section: section._replace(chunks=len(section.subjects)) if section.subjects else section
    ),
    max_size=6,
)
TOLD = Section("k", 1, 0, 8, 3, 3, 5, ("s.x", "s.y", "s.y"))


@settings(deadline=None)
@given(SECTIONS, st.tuples(NUMBER, NUMBER, NUMBER))
def test_a_decision_reads_back(sections, ends):
    decision = Decision(batch=batch_of(7), ends=ends, sections=tuple(sections))
    assert Decision.decode(batch_of(7), decision.encode()) == decision
    for partition in decision.partitions():
        chunk = 0
        for section, first_chunk in decision.share(partition):
            assert (section.partition, first_chunk) == (partition, chunk)
            chunk += section.chunks


def test_the_sum_of_another_kind_is_not_compared():
    decision = Decision(batch=batch_of(), ends=(1, 2), sections=(Section("k", 1, 0, 8, 1, 1, 5),), contents=7)
    plain = json.loads(decision.encode())
    assert Decision.decode(batch_of(), json.dumps(plain).encode()).contents == 7
    plain["contents"] = plain.pop("rows_sum")
    assert Decision.decode(batch_of(), json.dumps(plain).encode()).contents is None


@settings(deadline=None)
@given(st.binary(max_size=80) | st.dictionaries(st.text(), st.integers()).map(lambda plain: json.dumps(plain).encode()))
def test_what_is_no_decision(body):
    with pytest.raises(StagingDamagedError, match="batch 0 of app into stream s: its decision spark/commits/"):
        Decision.decode(batch_of(), body)


def test_decisions_that_do_not_fit():
    good = json.loads(Decision(batch=batch_of(), ends=(1, 2), sections=(Section("k", 1, 0, 8, 1, 1, 5),)).encode())
    for change, words in (
        ({"version": 4}, "has version 4; this liftpy reads versions 2 and 3"),
        ({"batch": 3}, "another batch"),
        ({"ends": [1]}, "partitions that have no end"),
        ({"ends": [1, -2]}, "not whole numbers"),
        ({"objects": []}, "can not be read"),
    ):
        with pytest.raises(StagingDamagedError, match=words):
            Decision.decode(batch_of(), json.dumps(good | change).encode())


def test_a_decision_of_an_older_liftpy_tells_no_subjects():
    document = json.loads(Decision(batch=batch_of(), ends=(1, 2), sections=(TOLD,)).encode())
    assert document["subjects"] == ["s.x", "s.y"]
    assert document["subjects_of_sections"] == [[0, 1, 1, 2]]
    del document["subjects"], document["subjects_of_sections"]
    found = Decision.decode(batch_of(), json.dumps(document).encode())
    assert found.sections == (TOLD._replace(subjects=()),)


def test_subjects_that_are_too_long_for_a_decision_are_left_out():
    subjects = tuple(f"{number}{'x' * 4_000}" for number in range(1_500))
    section = TOLD._replace(chunks=len(subjects), subjects=subjects)
    body = Decision(batch=batch_of(), ends=(1, 2), sections=(section, TOLD)).encode()
    assert len(body) < 1_000
    assert [each.subjects for each in Decision.decode(batch_of(), body).sections] == [(), ()]


@pytest.mark.parametrize(
    "change",
    [
        {"subjects": [1, "s.y"]},
        {"subjects": ["s.x", "y" * 5_000]},
        {"subjects": ["s.x"]},
        {"subjects_of_sections": []},
        {"subjects_of_sections": [[0, 1]]},
        {"subjects_of_sections": [[0, 1, 1]]},
        {"subjects_of_sections": [[0, 1, 1, 2, 0, -1]]},
        {"subjects_of_sections": [[0, 1, 1, 2**40]], "sections": [[0, 1, 0, 8, 3, 2**40 + 1, 5]]},
    ],
)
def test_subjects_of_a_decision_that_do_not_fit(change):
    document = json.loads(Decision(batch=batch_of(), ends=(1, 2), sections=(TOLD,)).encode())
    with pytest.raises(StagingDamagedError, match="can not be read"):
        Decision.decode(batch_of(), json.dumps(document | change).encode())


@pytest.mark.parametrize("version", [1, 4])
def test_a_decision_of_another_version_is_refused(version):
    decision = Decision(batch=batch_of(), ends=(1, 2), sections=(Section("k", 1, 0, 8, 1, 1, 5),))
    document = json.loads(decision.encode())
    with pytest.raises(StagingDamagedError, match=f"version {version}; this liftpy reads versions 2 and 3"):
        Decision.decode(batch_of(), json.dumps(document | {"version": version}).encode())


def test_producers_are_told_apart():
    ids = {batch_of(number, application).producer_id(p) for number in (0, 1) for application in "ab" for p in (0, 1)}
    assert len(ids) == 8
    assert {len(each) for each in ids} == {16}
    assert batch_of().producer_id(0).hex() == "7ef67bf5bbd167090c3cc6eed3a54858", "nodes know chunks by it"


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.none() | st.binary(max_size=20), min_size=1)), min_size=1))
def test_staged_chunks_read_back(shares):
    chunks = [
        RowChunk(partition, f"s.ü{number}", pa.record_batch({"value": pa.array(values, pa.binary())}))
        for number, (partition, values) in enumerate(sorted(shares, key=lambda share: share[0]))
    ]
    store = MemoryStore()
    sections = stage(BucketPlace(store), "key", chunks, "nonce")
    assert [chunk for section in sections for chunk in load_section(BucketPlace(store), section)] == chunks
    assert sum(section.rows for section in sections) == sum(chunk.records.num_rows for chunk in chunks)


@pytest.mark.parametrize("limit", ["_SECTION_BYTES", "_PLAIN_BYTES"])
def test_a_section_has_no_more_than_leaders_read(monkeypatch, limit):
    monkeypatch.setattr(staging, limit, 10_000)
    values = [random.Random(number).randbytes(3_000) for number in range(9)]
    chunks = [RowChunk(number // 7, "s.x", pa.record_batch({"value": [value]})) for number, value in enumerate(values)]
    store = MemoryStore()
    sections = stage(BucketPlace(store), "key", iter(chunks), "nonce")
    assert [(section.partition, section.chunks) for section in sections] == [(0, 4), (0, 3), (1, 2)]
    assert [section.start for section in sections[1:]] == [section.start + section.length for section in sections[:-1]]
    assert [chunk for section in sections for chunk in load_section(BucketPlace(store), section)] == chunks


def test_subjects_of_small_chunks_are_not_told():
    """The messages that say where they are would be as large as they are."""
    chunks = [
        RowChunk(partition, f"s.{number}", pa.record_batch({"value": [random.Random(number).randbytes(size)]}))
        for partition, size in ((0, 5_000), (1, 3_000))
        for number in range(4)
    ]
    large, small = stage(BucketPlace(MemoryStore()), "key", chunks, "nonce")
    assert large.subjects == ("s.0", "s.1", "s.2", "s.3")
    assert small.subjects == ()


def test_a_section_with_other_chunks_than_were_decided():
    store = MemoryStore()
    (section,) = stage(BucketPlace(store), "key", [RowChunk(0, "s.x", pa.record_batch({"value": [b"v"]}))], "nonce")
    with pytest.raises(StagingDamagedError, match=r"staged object key, .* it has 1 chunks, and 2 were decided"):
        list(load_section(BucketPlace(store), section._replace(chunks=2)))


def read(streaming=False, **options):
    return SinkOptions.read({"servers": "nats://n", "stream": "s"} | options, streaming=streaming)


def test_options():
    plain = read()
    assert (plain.delivery, plain.application, plain.version) == (Delivery.EXACTLY_ONCE, None, None)
    assert read(delivery="At-Least-Once").delivery is Delivery.AT_LEAST_ONCE
    assert read(txnappid="a.b", txnversion="3").version == 3
    assert read(streaming=True, checkpointlocation="/somewhere").stream == "s"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stream": "a b"}, "'stream'"),
        ({"subject": "a.*"}, "wildcard"),
        ({"delivery": "twice"}, "neither exactly-once nor at-least-once"),
        ({"txnappid": "a"}, "'txnVersion': txnAppId alone"),
        ({"txnversion": "1"}, "'txnAppId': txnVersion alone"),
        ({"txnappid": "a/b", "txnversion": "1"}, "'a/b' is not 1 to 128"),
        ({"txnappid": "a", "txnversion": "1", "delivery": "at-least-once"}, "keeps no account"),
        ({"streaming": True, "txnappid": "a", "txnversion": "1"}, "foreachBatch"),
        ({"stagingbytes": "5"}, "'5' is not between 65536 and 1073741824"),
        ({"stagingbytes": "1073741825"}, "'1073741825' is not between 65536 and 1073741824"),
        ({"subscribe": "s"}, "unknown option 'subscribe'; what to write to is said by 'stream'"),
        ({"startingoffsets": "earliest"}, "unknown option 'startingoffsets'; it is of reading: spark.read and"),
        ({"failondataloss": "false"}, "unknown option 'failondataloss'; it is of reading"),
        ({"outputmode": "append"}, "it is no option: df.writeStream.outputMode"),
        ({"checkpointlocation": "/somewhere"}, "unknown option"),
        ({"subjekt": "a"}, "did you mean 'subject'"),
    ],
)
def test_options_that_mean_nothing(options, words):
    with pytest.raises(OptionError, match=words):
        read(**options)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("key binary", "there is no column value"),
        ("value binary, key long", "column key is bigint; it has to be binary or string"),
        ("value binary, partition long", "has to be int"),
        ("value binary, headers array<string>", "headers is array<string>; it has to be array<struct"),
        ("value binary, offset long", "column 'offset' is none of a record's"),
        ("value binary, subjct string", "did you mean subject"),
        ("VALUE binary", "did you mean value"),
        ("value binary, Value binary", "columns value and Value differ in upper and lower case alone; leave one out"),
        ("Key binary, value binary, key binary", "columns Key and key differ in upper and lower case alone"),
        ("value string, value binary", "there twice"),
    ],
)
def test_columns_that_are_none(columns, words):
    with pytest.raises(SinkSchemaError, match=words):
        check_columns(_schema(columns))


def test_columns():
    full = "value string, key binary, headers array<struct<key:string,value:binary>>, subject string, partition int"
    assert check_columns(_schema(full)) == {"value", "key", "headers", "subject", "partition"}


def _schema(columns):
    """A schema from what `DDL` says, without a session."""
    headers = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
    kinds = {
        "binary": BinaryType(),
        "string": StringType(),
        "int": IntegerType(),
        "long": LongType(),
        "array<string>": ArrayType(StringType()),
        "array<struct<key:string,value:binary>>": headers,
    }
    pairs = [column.split(" ", 1) for column in columns.split(", ")]
    return StructType([StructField(name, kinds[kind]) for name, kind in pairs])
