"""Rows become chunks: in the right partition, on the right subject, in order, none lost, none too large."""

from __future__ import annotations

from unittest import mock

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.envelope import decode_envelope, encode_batch
from liftpy_envelope.headers import Headers, encode_header_block
from liftpy_envelope.partitioner import partition_of
from liftpy_spark.sink.errors import SinkRowError
from liftpy_spark.sink.hashing import checksums, partitions_of
from liftpy_spark.sink.headers import header_blocks
from liftpy_spark.sink.rows import flushes
from support.examples import examples
from support.sink_kit import layout_of

KEYS = st.lists(st.none() | st.binary(max_size=150), max_size=60)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=8)


@examples(100)
@given(KEYS, st.integers(0, 5), st.integers(1, 1_000))
def test_hashes_are_those_of_publishers(keys, first, partitions):
    column = pa.array(keys, pa.binary()).slice(first)
    keys = keys[first:]
    assert checksums(column).tolist() == [google_crc32c.value(key or b"") for key in keys]
    assert partitions_of(column, partitions).tolist() == [
        -1 if key is None else partition_of(key, partitions) for key in keys
    ]


def test_hashes_of_many_keys_of_one_length():
    keys = [b"user-%011d" % number for number in range(40_000)]
    assert checksums(pa.array(keys)).tolist() == [google_crc32c.value(key) for key in keys]


@examples(100)
@given(st.lists(st.none() | st.lists(st.tuples(TEXT, st.none() | TEXT), max_size=3), max_size=8), st.integers(0, 3))
def test_header_blocks_are_those_of_publishers(rows, first):
    plain = [row and [{"key": key, "value": value and value.encode()} for key, value in row] for row in rows]
    blocks = header_blocks(pa.array(plain, HEADERS).slice(first)).to_pylist()
    for row, block in zip(rows[first:], blocks, strict=True):
        if not row:
            assert block is None
        elif len(dict(row)) == len(row):
            headers = {key: value or "" for key, value in row}
            assert block == encode_header_block(headers)
            assert Headers(block) == headers


@pytest.mark.parametrize("name", ["a b", "a:", "", None, "a\n", "a\u00a0"])
def test_names_that_are_none_of_headers(name):
    with pytest.raises(SinkRowError, match="column headers: name"):
        header_blocks(pa.array([[{"key": "fine", "value": b""}, {"key": name, "value": b"v"}]], HEADERS))


@pytest.mark.parametrize("value", [b" a", b"a\t", b"a\r\nb", b"\n"])
def test_values_that_are_none_of_headers(value):
    with pytest.raises(SinkRowError, match="column headers: value"):
        header_blocks(pa.array([[{"key": "name", "value": value}]], HEADERS))


ROW = st.tuples(
    st.none() | st.binary(max_size=40),
    st.none() | st.binary(max_size=6),
    st.sampled_from(["s.a", "s.b", "s.c", None]),
    st.none() | st.integers(0, 3),
)


@examples(150)
@given(
    st.lists(st.lists(ROW, max_size=25), max_size=4),
    st.integers(1, 4),
    st.integers(0, 9),
    st.integers(64, 2_000),
    st.sampled_from([1, 300, 1 << 20]),
)
def test_every_row_is_in_one_chunk(batches, partitions, first_row, flush_bytes, taken_bytes):
    layout = layout_of(partitions, record_bytes_max=150)
    rows = [row for batch in batches for row in batch]
    given_partitions = all(row[3] is None or row[3] < partitions for row in rows)
    tables = [
        pa.record_batch(
            {
                "partition": pa.array([row[3] for row in batch], pa.int32()),
                "value": pa.array([row[0] for row in batch], pa.binary()),
                "key": pa.array([row[1] for row in batch], pa.binary()),
                "subject": pa.array([row[2] for row in batch], pa.string()),
            }
        )
        for batch in batches
    ]
    if not given_partitions:
        with pytest.raises(SinkRowError, match="is not a partition of stream s"):
            list(flushes(tables, layout, flush_bytes, first_row))
        return
    found = {}
    with mock.patch("liftpy_spark.sink.rows._TAKEN_BYTES", taken_bytes):
        flushed = [list(chunks) for chunks in flushes(tables, layout, flush_bytes, first_row)]
    for chunks in flushed:
        assert [chunk.partition for chunk in chunks] == sorted(chunk.partition for chunk in chunks)
        for chunk in chunks:
            records = chunk.records.to_pydict()
            assert chunk.records.nbytes <= 150 or chunk.records.num_rows == 1
            keys = records.get("key", [None] * chunk.records.num_rows)
            found.setdefault((chunk.partition, chunk.subject), []).extend(zip(records["value"], keys, strict=True))
            assert decode_envelope(
                encode_batch(dict(zip(chunk.records.schema.names, chunk.records.columns, strict=True)))
            )
    wanted = {}
    for number, (value, key, subject, partition) in enumerate(rows, first_row):
        if partition is None:
            partition = number % partitions if key is None else partition_of(key, partitions)  # noqa: PLW2901
        wanted.setdefault((partition, subject or "s.x"), []).append((value, key))
    assert found == wanted, "and in the order of rows"


def test_chunks_are_the_same_for_the_same_rows():
    rows = pa.record_batch({"value": [b"v%d" % n for n in range(100)], "key": [b"k%d" % (n % 9) for n in range(100)]})
    layout = layout_of(3, record_bytes_max=300)
    once, again = ([list(chunks) for chunks in flushes([rows], layout, 1 << 20)] for _ in range(2))
    assert once == again


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"value": [b"a", bytes(500)], "key": [b"a", b"large-one"]}, r"record of 525 bytes \(key b'large-one'\)"),
        ({"value": [bytes(500)]}, r"without a key\) is over what stream s takes"),
        ({"value": [b"a"], "subject": ["s.*"]}, "is a wildcard"),
        ({"value": [b"a"], "subject": ["t.a"]}, r"none that stream s stores: those match 's\.>'"),
        ({"value": [b"a"], "partition": [-1]}, "-1 is not a partition of stream s, which has 0 to 1"),
    ],
)
def test_rows_that_are_none(columns, words):
    with pytest.raises(SinkRowError, match=words):
        list(flushes([pa.record_batch(columns)], layout_of(2, record_bytes_max=200), 1 << 20))


def test_a_row_without_subject_where_none_is_usual():
    rows = pa.record_batch({"value": [b"a"], "subject": pa.array([None], pa.string())})
    with pytest.raises(SinkRowError, match="a row has none"):
        list(flushes([rows], layout_of(subject=None), 1 << 20))


def test_text_counts_as_bytes():
    rows = pa.record_batch({"value": ["grüße"], "key": ["k"]})
    ((chunk,),) = flushes([rows], layout_of(), 1 << 20)
    assert chunk.records.to_pydict() == {"value": ["grüße".encode()], "key": [b"k"]}


@pytest.mark.parametrize("count", [1, 99, 100, 101, 1_000])
def test_pieces_are_about_one_size(count):
    rows = pa.record_batch({"value": [b"v" * 100] * count})
    layout = layout_of(1, record_bytes_max=11_600)  # 100 records with what they need
    ((*chunks,),) = flushes([rows], layout, 1 << 20)
    assert len(chunks) == -(-count // 100)
    sizes = [chunk.records.num_rows for chunk in chunks]
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= len(chunks)
