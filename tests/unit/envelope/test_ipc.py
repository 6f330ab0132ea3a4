"""Proves that the hand-written Arrow IPC layout is what pyarrow reads, for every combination of columns.

Expected values come from pyarrow's own builders, never from our encoder.
"""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.columns import Column, schema_of
from liftpy_envelope.ipc import (
    ColumnBuffers,
    column_buffers,
    encode_message,
    encode_pair,
    fixed_column,
    nullable_column,
    repeated_column,
    values_column,
)
from support.examples import examples
from support.records import buffers_of, built_by_pyarrow, encoded, joined, nullable_values, rows, sample_rows

COUNTS = (1, 2, 7, 8, 9, 64, 65)


def read(message, schema):
    batch = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
    batch.validate(full=True)
    return batch


def one_column(buffers, count, kind=None):
    message = b"".join(encode_message(count, [buffers]))
    return read(message, pa.schema([("column", kind or pa.binary())])).column(0)


@pytest.mark.parametrize("bitmap", range(1, 256))
def test_pyarrow_reads_every_bitmap_back_identically(bitmap):
    for count in COUNTS:
        columns = sample_rows(bitmap, count)
        expected = built_by_pyarrow(bitmap, columns)
        found = read(joined(encoded(bitmap, columns)), schema_of(bitmap))
        assert expected.to_pydict() == found.to_pydict()
        assert expected.equals(found)
        assert [array.null_count for array in expected] == [array.null_count for array in found]


@examples(150)
@given(rows())
def test_pyarrow_reads_what_was_written(drawn):
    bitmap, columns = drawn
    found = read(joined(encoded(bitmap, columns)), schema_of(bitmap))
    assert built_by_pyarrow(bitmap, columns).equals(found)


@pytest.mark.parametrize("bitmap", range(1, 256))
def test_a_stream_reader_that_knows_nothing_of_us_reads_it(bitmap):
    columns = sample_rows(bitmap, 5)
    end_of_stream = b"\xff\xff\xff\xff\0\0\0\0"
    stream = schema_of(bitmap).serialize().to_pybytes() + joined(encoded(bitmap, columns)) + end_of_stream
    with pa.ipc.open_stream(stream) as reader:
        assert [built_by_pyarrow(bitmap, columns)] == list(reader)


def test_numbers_stand_where_the_diagram_says():
    columns = [values_column([b"orders", b"x"]), nullable_column([None, b"abc"])]
    message = b"".join(encode_message(2, columns))
    metadata_length = 80 + 2 * 16 + 8 + 6 * 16
    body_length = 16 + 8 + 8 + 16 + 8
    assert (0xFFFFFFFF, metadata_length) == struct.unpack_from("<Ii", message, 0)
    metadata = message[8 : 8 + metadata_length]
    assert struct.unpack_from("<I", metadata, 0) == (16,)
    assert (12, 32, body_length, 4, 3) == struct.unpack_from("<iIqhB", metadata, 16)
    assert struct.unpack_from("<iqII", metadata, 52) == (12, 2, 12, 48)
    assert struct.unpack_from("<I4q", metadata, 76) == (2, 2, 0, 2, 1)
    assert struct.unpack_from("<I", metadata, 116) == (6,)
    places = (0, 0, 0, 12, 16, 7, 24, 1, 32, 12, 48, 3)
    assert places == struct.unpack_from("<12q", metadata, 120)
    assert 8 + metadata_length + body_length == len(message)


def test_bytes_of_a_message_are_stable():
    expected = (
        "ffffffff98000000" + "10000000" + "0c0018001000120004000800"
        "0c000000" + "20000000" + "1800000000000000" + "0400" + "03" + "0000000000"
        "0a0014000400" + "0c001000" + "0000"
        "0c000000" + "0200000000000000" + "0c000000" + "20000000" + "00000000"
        "01000000" + "0200000000000000" + "0000000000000000"
        "00000000" + "03000000"
        "00000000000000000000000000000000" + "00000000000000000c00000000000000" + "10000000000000000300000000000000"
        "00000000" + "01000000" + "03000000" + "00000000"
        "6162630000000000"
    )
    assert expected == b"".join(encode_message(2, [values_column([b"a", b"bc"])])).hex()


@examples(100)
@given(rows())
def test_lengths_are_multiples_of_eight(drawn):
    bitmap, columns = drawn
    message = joined(encoded(bitmap, columns))
    assert len(message) % 8 == 0
    (metadata_length, body_length) = (
        struct.unpack_from("<i24xq", message, 4)[0],
        struct.unpack_from("<q", message, 32)[0],
    )
    assert metadata_length % 8 == 0
    assert len(message) == 8 + metadata_length + body_length


@examples(100)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30))
def test_values_column_is_a_binary_column_without_nulls(values):
    assert pa.array(values, pa.binary()).equals(one_column(values_column(values), len(values)))


@examples(100)
@given(st.integers(1, 40).flatmap(nullable_values))
def test_nullable_column_keeps_its_nulls(values):
    assert pa.array(values, pa.binary()).equals(one_column(nullable_column(values), len(values)))


@examples(100)
@given(st.binary(max_size=40), st.integers(1, 70) | st.integers(250, 900))
def test_repeated_column_is_the_values_column_of_the_same_values(value, count):
    assert values_column([value] * count) == repeated_column(value, count)


@pytest.mark.parametrize("size", [1, 7, 1_024, 1_025])
@pytest.mark.parametrize("count", [257, 511, 512, 513, 3_000, 65_535, 65_536, 65_537])
def test_repeated_column_of_many(size, count):
    null_count, (validity, offsets, data) = repeated_column(b"x" * size, count)
    assert (null_count, validity, len(data)) == (0, b"", size * count)
    assert bytes(offsets) == struct.pack(f"<{count + 1}i", *range(0, size * count + 1, size))


@pytest.mark.parametrize(("typecode", "kind", "bits"), [("q", pa.int64(), 63), ("i", pa.int32(), 31)])
def test_fixed_column_holds_every_integer_of_its_width(typecode, kind, bits):
    values = [-(2**bits), -1, 0, 1, 2**bits - 1]
    assert pa.array(values, kind).equals(one_column(fixed_column(values, typecode), len(values), kind))


@pytest.mark.parametrize("offset", range(12))
@pytest.mark.parametrize("length", range(1, 10))
def test_any_slice_of_an_array_is_written_as_its_own_values(offset, length):
    values = [None if row % 3 == 1 else bytes([row]) * row for row in range(21)]
    part = pa.array(values, pa.binary()).slice(offset, length)
    assert values[offset : offset + length] == one_column(column_buffers(part), length).to_pylist()


@pytest.mark.parametrize("null", [None, b"null"])
@pytest.mark.parametrize("offset", [0, 1, 50, 98])
def test_a_slice_carries_no_bytes_of_its_neighbours(offset, null):
    values = [bytes([row]) * 1_000 if row % 2 else null for row in range(100)]
    part = pa.array(values, pa.binary()).slice(offset, 2)
    message = b"".join(encode_message(2, [column_buffers(part)]))
    assert len(b"".join(encode_message(2, [nullable_column(part.to_pylist())]))) == len(message)


def test_an_array_that_begins_amid_its_data_carries_only_its_own():
    offsets = pa.array([3, 5, 6], pa.int32()).buffers()[1]
    part = pa.BinaryArray.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"...abc...")])
    assert values_column([b"ab", b"c"]) == ColumnBuffers(0, tuple(map(bytes, column_buffers(part).buffers)))


def test_an_array_without_nulls_has_no_validity_buffer():
    buffers = column_buffers(pa.array([b"a", None, b"b"], pa.binary()).slice(2, 1))
    assert (buffers.null_count, buffers.buffers[0]) == (0, b"")


def test_an_array_of_nulls_alone_is_written():
    column = one_column(column_buffers(pa.nulls(9, pa.binary())), 9)
    assert column.to_pylist() == [None] * 9


def test_a_pair_of_columns_is_the_message_of_encode_message_for_every_padding():
    for first in range(17):
        for second in range(17):
            for count in (1, 2, 3):
                firsts = [b"s" * first] * count
                seconds = [b"v" * (second + number) for number in range(count)]
                columns = [values_column(firsts), values_column(seconds)]
                assert b"".join(encode_message(count, columns)) == encode_pair(firsts, seconds)


@examples(100)
@given(st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=3_000)), min_size=1, max_size=20))
def test_a_pair_of_columns_is_read_back_by_pyarrow(rows):
    subjects, values = map(list, zip(*rows, strict=True))
    found = read(encode_pair(subjects, values), schema_of(Column.SUBJECT | Column.VALUE))
    assert {"subject": subjects, "value": values} == found.to_pydict()


def test_buffers_are_handed_on_without_a_copy():
    value = b"v" * 10_000
    parts = encode_message(1, [values_column([value])])
    assert any(part is value for part in parts)


def test_column_buffers_says_how_many_values_are_null():
    assert ColumnBuffers(2, buffers_of(Column.KEY, [None, None, b"k"]).buffers) == nullable_column([None, None, b"k"])
