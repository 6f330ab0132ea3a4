"""Proves that a record batch is what the byte diagram says, and that damage to it never passes for a batch.

The header is packed here a second time, from the diagram, so that encoder and decoder can not agree on a mistake.
"""

import struct

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.batch import (
    ATTRIBUTE_COMPRESSED,
    HEADER_SIZE,
    MAGIC,
    NO_PRODUCER,
    VERSION,
    BatchHeader,
    check_body,
    encode_body,
    encode_header,
    encode_plain_body,
    read_header,
)
from liftpy_envelope.columns import Column
from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError, BatchVersionError
from liftpy_envelope.ipc import values_column
from liftpy_envelope.limits import BATCH_BYTES_MAX
from support.damage import attempt, bit_flips, damaged, truncations
from support.examples import examples
from support.records import INT64, encoded, joined, rows

POSITIVE_INT64 = st.integers(0, 2**63 - 1)
POSITIVE_INT32 = st.integers(0, 2**31 - 1)
STAMPS = {
    "base_offset": POSITIVE_INT64,
    "leader_epoch": POSITIVE_INT32,
    "base_timestamp": INT64,
    "max_timestamp": INT64,
    "producer_id": st.binary(min_size=16, max_size=16),
    "producer_sequence": INT64,
    "producer_epoch": POSITIVE_INT32,
}
# name: position, layout, a value that is valid everywhere
DIAGRAM = {
    "magic": (0, "<I", 0x4254464C),
    "length": (4, "<I", 88 + 64),
    "header_crc": (8, "<I", 0),
    "body_crc": (12, "<I", 0x01020304),
    "version": (16, "<B", 1),
    "attributes": (17, "<B", 1),
    "columns": (18, "<H", 0x00A5),
    "base_offset": (20, "<q", 0x1112131415161718),
    "last_offset_delta": (28, "<i", 41),
    "record_count": (32, "<i", 42),
    "leader_epoch": (36, "<i", 0x21222324),
    "producer_epoch": (40, "<i", 0x61626364),
    "base_timestamp": (44, "<q", 0x3132333435363738),
    "max_timestamp": (52, "<q", 0x4142434445464748),
    "producer_id": (60, "<16s", bytes(range(16))),
    "producer_sequence": (76, "<q", 0x5152535455565758),
}


def packed(**changes):
    """A header from the diagram, with its checksum right."""
    header = bytearray(88)
    for name, (position, layout, value) in DIAGRAM.items():
        struct.pack_into(layout, header, position, changes.get(name, value))
    struct.pack_into("<I", header, 8, google_crc32c.value(bytes(header)))
    return bytes(header)


def stamped(body, **stamps):
    times = {"base_timestamp": 1_000, "max_timestamp": 2_000}
    return encode_header(body, **{"base_offset": 42, "leader_epoch": 7} | times | stamps)


def test_persisted_numbers():
    numbers = (MAGIC, VERSION, HEADER_SIZE, ATTRIBUTE_COMPRESSED, NO_PRODUCER)
    assert (0x4254464C, 1, 88, 1, bytes(16)) == numbers
    assert MAGIC.to_bytes(4, "little") == b"LFTB"


def test_checksum_is_crc32c():
    assert google_crc32c.value(b"123456789") == 0xE3069283


def test_header_is_read_from_the_positions_of_the_diagram():
    names = set(BatchHeader._fields)
    assert {name: value for name, (_, _, value) in DIAGRAM.items() if name in names} == read_header(packed())._asdict()


@pytest.mark.parametrize("name", sorted(set(DIAGRAM) - {"magic", "length", "header_crc", "version", "reserved"}))
def test_header_is_written_to_the_positions_of_the_diagram(name):
    body = encode_body(3, Column.SUBJECT | Column.VALUE, [values_column([b"a", b"b", b"c"])] * 2)
    body = body._replace(attributes=1, crc=0x01020304, record_count=42, columns=0x00A5)
    stamps = {stamp: DIAGRAM[stamp][2] for stamp in STAMPS}
    position, layout, value = DIAGRAM[name]
    assert (value,) == struct.unpack_from(layout, encode_header(body, **stamps), position)


def test_bytes_of_a_whole_batch_are_stable():
    body = encode_plain_body([b"orders"], [b"paid"])
    header = stamped(body, producer_id=bytes(range(16)), producer_sequence=9)
    expected = (
        "4c46544258010000c9fe3f0e6a37e557" + "01002400"
        "2a0000000000000000000000" + "010000000700000000000000"
        "e803000000000000d007000000000000"
        "000102030405060708090a0b0c0d0e0f" + "090000000000000000000000"
        "ffffffffd8000000"
        "100000000c00180010001200040008000c000000200000002000000000000000"
        "04000300000000000a00140004000c00100000000c0000000100000000000000"
        "0c00000030000000000000000200000001000000000000000000000000000000"
        "0100000000000000000000000000000000000000060000000000000000000000"
        "0000000000000000000000000000000008000000000000000800000000000000"
        "0600000000000000100000000000000000000000000000001000000000000000"
        "0800000000000000180000000000000004000000000000000000000006000000"
        "6f7264657273000000000000040000007061696400000000"
    )
    assert expected == (header + joined(body)).hex()


@examples(150)
@given(rows(), st.fixed_dictionaries(STAMPS))
def test_header_round_trip(drawn, stamps):
    body = encoded(*drawn)
    data = encode_header(body, **stamps)
    header = read_header(data)
    count = body.record_count
    said = {"length": HEADER_SIZE + body.length, "last_offset_delta": count - 1, "record_count": count}
    held = {"body_crc": body.crc, "attributes": 0, "columns": drawn[0]}
    assert stamps | said | held == header._asdict()
    assert stamps["base_offset"] + count == header.next_offset
    check_body(header, joined(body))


@examples(50)
@given(st.binary(max_size=100), st.binary(max_size=100), st.booleans())
def test_header_is_read_wherever_it_stands(before, after, as_view):
    data = before + packed() + after
    assert read_header(packed()) == read_header(memoryview(data) if as_view else data, len(before))


def test_no_flipped_bit_of_a_header_goes_unnoticed():
    for data in bit_flips(packed()):
        with pytest.raises(BatchCorruptError):
            read_header(data)


@pytest.mark.parametrize("position", [0, 3])
def test_every_truncated_header_is_truncated(position):
    for data in truncations(bytes(position) + packed(), start=position):
        with pytest.raises(BatchTruncatedError):
            read_header(data, position)


def test_a_newer_version_is_told_apart_from_damage():
    with pytest.raises(BatchVersionError):
        read_header(packed(version=2))


CONTRADICTIONS = [
    ("length", 0),
    ("length", 88),
    ("length", 88 + 63),
    ("length", BATCH_BYTES_MAX + 8),
    ("length", 2**32 - 8),
    ("record_count", 0),
    ("record_count", -1),
    ("record_count", 43),
    ("last_offset_delta", -1),
    ("last_offset_delta", 40),
    ("base_offset", -1),
    ("leader_epoch", -1),
    ("columns", 0x0100),
    ("columns", 0x8000),
    ("attributes", 4),
    ("attributes", 0x80),
]


@pytest.mark.parametrize(("name", "value"), CONTRADICTIONS)
def test_a_header_that_contradicts_itself_is_corrupt_in_spite_of_its_checksum(name, value):
    with pytest.raises(BatchCorruptError):
        read_header(packed(**{name: value}))


def test_attributes_are_told_apart():
    for attributes, told in ((0, (False, False)), (1, (True, False)), (2, (False, True)), (3, (True, True))):
        header = read_header(packed(attributes=attributes))
        assert (header.is_compressed, header.is_compacted) == told


def test_compaction_leaves_fewer_records_than_offsets():
    header = read_header(packed(record_count=5, last_offset_delta=99, base_offset=1_000))
    assert (header.record_count, header.next_offset) == (5, 1_100)


@examples(300)
@given(st.binary(max_size=200) | damaged(st.just(packed())), st.integers(0, 100))
def test_garbage_raises_only_what_is_documented(data, position):
    attempt(lambda given: read_header(given, position), data, BatchTruncatedError, BatchVersionError, BatchCorruptError)


@examples(50)
@given(rows())
def test_no_flipped_bit_of_a_body_goes_unnoticed(drawn):
    body = encoded(*drawn)
    header, data = read_header(stamped(body)), joined(body)
    for position in range(0, len(data), 13):
        for flipped in bit_flips(data, position, position + 1):
            with pytest.raises(BatchCorruptError):
                check_body(header, flipped)


def test_every_truncated_body_is_truncated():
    body = encode_plain_body([b"orders"], [b"paid"])
    header = read_header(stamped(body))
    for data in truncations(joined(body)):
        with pytest.raises(BatchTruncatedError):
            check_body(header, data)


@examples(100)
@given(st.lists(st.tuples(st.binary(max_size=100), st.binary(max_size=20_000)), min_size=1, max_size=5))
def test_plain_body_is_the_very_body_of_encode_body(rows):
    subjects, values = map(list, zip(*rows, strict=True))
    check_plain_body(subjects, values)


@pytest.mark.parametrize("size", [8_000, 8_192, 8_193, 100_001])
@pytest.mark.parametrize("count", [1, 2])
def test_plain_body_is_the_same_on_both_sides_of_the_joining_limit(count, size):
    check_plain_body([b"s"] * count, [b"v" * (size // count)] * count)


def check_plain_body(subjects, values):
    columns = [values_column(subjects), values_column(values)]
    general = encode_body(len(values), Column.SUBJECT | Column.VALUE, columns)
    plain = encode_plain_body(subjects, values)
    assert joined(general) == joined(plain)
    assert general._replace(parts=[]) == plain._replace(parts=[])


@pytest.mark.parametrize("size", [10, 100_000])
def test_length_and_checksum_are_those_of_the_joined_parts(size):
    columns = [values_column([b"a", b"b"]), values_column([b"x" * size, b"y"])]
    body = encode_body(2, Column.SUBJECT | Column.VALUE, columns)
    data = joined(body)
    assert (len(data), google_crc32c.value(data)) == (body.length, body.crc)
    assert sum(len(part) for part in body.parts) == body.length


def test_a_body_may_be_any_read_only_memory():
    body = encode_plain_body([b"orders"], [b"paid"])
    check_body(read_header(stamped(body)), pa.py_buffer(joined(body)))
