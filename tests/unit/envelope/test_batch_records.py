"""Proves that the records of a batch come back as they went in, compressed or not, and that no body is misread."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.batch import (
    ATTRIBUTE_COMPRESSED,
    HEADER_SIZE,
    NO_PRODUCER,
    BatchHeader,
    check_body,
    compress_body,
    decode_records,
    encode_header,
    encode_plain_body,
    read_header,
)
from liftpy_envelope.columns import Column, schema_of
from liftpy_envelope.errors import BatchCorruptError
from support.damage import attempt, damaged, every_damage
from support.examples import examples
from support.records import built_by_pyarrow, encoded, joined, rows, sample_rows

CODECS = ("lz4", "zstd")
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def header_for(data, bitmap, count, attributes=0):
    return BatchHeader(HEADER_SIZE + len(data), 0, attributes, bitmap, 0, count - 1, count, 0, 0, 0, NO_PRODUCER, -1)


def decode(body):
    header = encode_header(body, base_offset=0, leader_epoch=0, base_timestamp=0, max_timestamp=0)
    read = read_header(header)
    check_body(read, joined(body))
    records = decode_records(read, joined(body))
    records.validate(full=True)
    return records


def compressible(bitmap=Column.SUBJECT | Column.VALUE, count=200):
    return encoded(bitmap, sample_rows(bitmap, count))


@examples(150)
@given(rows())
def test_round_trip(drawn):
    assert built_by_pyarrow(*drawn).equals(decode(encoded(*drawn)))


@pytest.mark.parametrize("codec", CODECS)
def test_every_bitmap_survives_compression(codec):
    for bitmap in range(1, 256):
        body = compress_body(compressible(bitmap), codec)
        expected = built_by_pyarrow(bitmap, sample_rows(bitmap, 200))
        assert expected.equals(decode(body))
        assert (200, bitmap, 0) == (body.record_count, body.columns, body.length % 8)


@examples(100)
@given(rows(), st.sampled_from(CODECS))
def test_round_trip_through_compression(drawn, codec):
    assert built_by_pyarrow(*drawn).equals(decode(compress_body(encoded(*drawn), codec)))


@pytest.mark.parametrize("codec", CODECS)
def test_compression_is_said_in_the_attributes_and_makes_it_smaller(codec):
    plain = compressible()
    body = compress_body(plain, codec)
    assert body.attributes == ATTRIBUTE_COMPRESSED
    assert body.length < plain.length
    assert len(joined(body)) == body.length


@pytest.mark.parametrize("codec", CODECS)
def test_a_body_that_does_not_shrink_stays_as_it_is(codec):
    plain = encode_plain_body([b"s"], [b"v"])
    assert compress_body(plain, codec) is plain


def test_records_share_memory_with_an_uncompressed_body():
    body = compressible()
    buffer = pa.py_buffer(joined(body))
    records = decode_records(header_for(buffer, body.columns, 200), buffer)
    for array in records:
        for part in filter(None, array.buffers()):
            assert buffer.address <= part.address <= buffer.address + buffer.size


@pytest.mark.parametrize("count", [1, 199, 201])
def test_another_number_of_records_is_corrupt(count):
    body = compressible()
    with pytest.raises(BatchCorruptError):
        decode_records(header_for(joined(body), body.columns, count), joined(body))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(8),
        bytes(88),
        b"\xff" * 8,
        END_OF_STREAM,
        END_OF_STREAM * 2,
        b"not an Arrow message at all",
        schema_of(Column.VALUE).serialize().to_pybytes(),
    ],
    ids=["empty", "zeros", "many zeros", "ones", "end of stream", "ends of stream", "text", "schema"],
)
def test_what_is_no_record_batch_message_is_corrupt(data):
    with pytest.raises(BatchCorruptError):
        decode_records(header_for(data, Column.SUBJECT | Column.VALUE, 1), data)


def test_more_columns_than_the_message_holds_are_corrupt():
    body = encode_plain_body([b"s"], [b"v"])
    for bitmap in range(1, 256):
        if bitmap.bit_count() > 2:
            with pytest.raises(BatchCorruptError):
                decode_records(header_for(joined(body), bitmap, 1), joined(body))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [2**40, 2**56, 2**62, 2**63 - 1, -2, -(2**63)])
def test_a_compressed_buffer_that_lies_about_its_size_is_corrupt(codec, size):
    body = compress_body(compressible(), codec)
    data = bytearray(joined(body))
    first_buffer = 8 + struct.unpack_from("<i", data, 4)[0]
    data[first_buffer : first_buffer + 8] = struct.pack("<q", size)
    with pytest.raises(BatchCorruptError):
        decode_records(header_for(data, body.columns, 200, ATTRIBUTE_COMPRESSED), bytes(data))


def readable_or_corrupt(bitmap, count):
    """A decoder that reads every value that can be read: a body is trusted only after its checksum."""

    def decode_all(data):
        records = decode_records(header_for(data, bitmap, count), data)
        try:
            records.validate(full=True)
        except pa.ArrowInvalid:
            return None
        return records.to_pylist()

    return decode_all


@pytest.mark.parametrize("bitmap", [Column.SUBJECT | Column.VALUE, 255])
def test_damage_to_a_small_body_raises_only_what_is_documented(bitmap):
    body = encoded(bitmap, sample_rows(bitmap, 3))
    for data in every_damage(joined(body)):
        attempt(readable_or_corrupt(bitmap, 3), data, BatchCorruptError)


@examples(300)
@given(damaged(rows().map(lambda drawn: joined(encoded(*drawn)))), st.integers(1, 255))
def test_damaged_bodies_raise_only_what_is_documented(data, bitmap):
    attempt(readable_or_corrupt(bitmap, 3), data, BatchCorruptError)


@examples(200)
@given(st.binary(max_size=300), st.integers(1, 255))
def test_garbage_raises_only_what_is_documented(data, bitmap):
    attempt(readable_or_corrupt(bitmap, 1), data, BatchCorruptError)
