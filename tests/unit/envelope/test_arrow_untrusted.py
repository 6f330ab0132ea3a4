"""Proves that Arrow from outside is either refused with `EnvelopeError` or fully valid, whatever it claims.

Hostile messages are made twice: by lying in single places of our own layout, whose positions are known, and by
damage to messages that pyarrow wrote.
"""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.arrow_untrusted import read_binary_columns
from liftpy_envelope.errors import EnvelopeError
from liftpy_envelope.ipc import encode_message, nullable_column
from support.damage import HOSTILE_NUMBERS, attempt, damaged, every_damage, truncations
from support.examples import examples
from support.records import nullable_values

VALUES = (b"abc", None, b"", b"x" * 9, b"y")
COUNT = len(VALUES)
MESSAGE = b"".join(encode_message(COUNT, [nullable_column(VALUES)]))
# positions in MESSAGE, from the diagram of the layout: one column, three buffers
METADATA_LENGTH, ROOT = 4, 8
HEADER_OFFSET, VERSION, HEADER_TYPE = 8 + 20, 8 + 32, 8 + 34
BATCH_VTABLE, ROWS, NODES_OFFSET, BUFFERS_OFFSET = 8 + 52, 8 + 56, 8 + 64, 8 + 68
NODE_COUNT, NODE_LENGTH, NULL_COUNT = 8 + 76, 8 + 80, 8 + 88
BUFFER_COUNT, VALIDITY, OFFSETS, DATA = 8 + 100, 8 + 104, 8 + 120, 8 + 136
BODY = 8 + 152


def serialized(columns, **options):
    """The message pyarrow writes for these lists of values."""
    arrays = [pa.array(values, pa.binary()) for values in columns]
    batch = pa.record_batch(arrays, names=[f"c{place}" for place in range(len(arrays))])
    return message_of(batch, **options)


def message_of(batch, **options):
    """The record batch message of a stream that pyarrow writes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    found = [message for message in messages if message.type == "record batch"]
    return found[0].serialize().to_pybytes()


def patched(position, layout, *numbers):
    data = bytearray(MESSAGE)
    struct.pack_into(layout, data, position, *numbers)
    return bytes(data)


def read_fully(message, column_count, count):
    """The values of every column; fails when what was accepted is not valid through and through."""
    arrays = read_binary_columns(message, column_count, count)
    assert column_count == len(arrays)
    for array in arrays:
        array.validate(full=True)
        assert (pa.binary(), count) == (array.type, len(array))
    return [array.to_pylist() for array in arrays]


def refused(message, column_count=1, count=COUNT, why=None):
    with pytest.raises(EnvelopeError, match=why):
        read_binary_columns(message, column_count, count)


@st.composite
def tables(draw):
    count = draw(st.integers(1, 30))
    return [draw(nullable_values(count)) for _ in range(draw(st.integers(1, 3)))]


@examples(150)
@given(tables(), st.booleans())
def test_messages_of_pyarrow_are_read(columns, as_view):
    message = serialized(columns)
    assert columns == read_fully(memoryview(message) if as_view else message, len(columns), len(columns[0]))


@examples(100)
@given(tables())
def test_messages_of_ours_are_read(columns):
    message = b"".join(encode_message(len(columns[0]), [nullable_column(values) for values in columns]))
    assert columns == read_fully(message, len(columns), len(columns[0]))


@pytest.mark.parametrize("serialize", [message_of, lambda batch: batch.serialize().to_pybytes()])
@pytest.mark.parametrize("start", [0, 1, 8, 13])
def test_slices_written_by_pyarrow_are_read_without_their_neighbours(serialize, start):
    values = [None if row % 4 == 1 else bytes([row]) * row for row in range(20)]
    batch = pa.record_batch([pa.array(values, pa.binary())], names=["value"]).slice(start, 5)
    message = serialize(batch)
    assert [values[start : start + 5]] == read_fully(message, 1, 5)
    (array,) = read_binary_columns(message, 1, 5)
    assert array.nbytes < 200


def test_bytes_that_belong_to_no_record_are_dropped():
    data = b"before" + b"abcd" + b"after"
    offsets = struct.pack("<3i", 6, 8, 10)
    column = nullable_column([b"ab", b"cd"])._replace(buffers=(b"", offsets, data))
    (array,) = read_binary_columns(b"".join(encode_message(2, [column])), 1, 2)
    assert array.to_pylist() == [b"ab", b"cd"]
    assert array.buffers()[2].to_pybytes() == b"abcd"


def test_overlapping_buffers_do_not_make_a_small_message_large():
    column = nullable_column([b"a", None])
    validity, offsets, data = (bytes(buffer) for buffer in column.buffers)
    padded = column._replace(buffers=(validity + bytes(10_000), offsets + bytes(10_000), data + bytes(10_000)))
    (array,) = read_binary_columns(b"".join(encode_message(2, [padded])), 1, 2)
    assert array.to_pylist() == [b"a", None]
    assert [buffer.size for buffer in array.buffers()] == [1, 12, 1]


def test_arrays_share_memory_with_the_message():
    buffer = pa.py_buffer(serialized([[b"x" * 1_000, b"y"]]))
    (array,) = read_binary_columns(memoryview(buffer), 1, 2)
    assert buffer.address < array.buffers()[2].address < buffer.address + buffer.size


def test_a_claim_of_nulls_that_the_bitmap_does_not_bear_out_is_harmless():
    column = nullable_column([b"a", b"b"])._replace(null_count=2)
    message = b"".join(encode_message(2, [column._replace(buffers=(b"\xff", *column.buffers[1:]))]))
    assert read_fully(message, 1, 2) == [[b"a", b"b"]]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_message_is_refused(codec):
    refused(serialized([[b"x" * 10_000]], compression=codec), 1, 1, "must be uncompressed")


def test_a_message_that_would_expand_a_thousandfold_is_refused():
    message = serialized([[bytes(50_000_000)]], compression="zstd")
    assert len(message) < 50_000
    refused(message, 1, 1, "must be uncompressed")


@pytest.mark.parametrize("columns", [1, 3, 0, -1, 2**31])
def test_another_number_of_columns_is_refused(columns):
    refused(serialized([VALUES, VALUES]), columns)


@pytest.mark.parametrize("count", [0, 1, COUNT - 1, COUNT + 1, 2**31, 2**62, -1])
def test_another_number_of_records_is_refused(count):
    refused(MESSAGE, 1, count)


OTHER_TYPES = [
    pa.array([1, 2], pa.int64()),
    pa.array([True, False], pa.bool_()),
    pa.array([b"ab", b"cd"], pa.binary(2)),
    pa.nulls(2),
    pa.array([[b"a"], [b"b"]], pa.list_(pa.binary())),
    pa.array([{"a": b"b"}, None], pa.struct([("a", pa.binary())])),
    pa.array([b"a", b"b"], pa.binary()).dictionary_encode(),
    pa.array([b"a", b"b" * 20], pa.binary_view()),
    pa.array([b"a", b"b" * 20], pa.string_view()),
]


@pytest.mark.parametrize("array", OTHER_TYPES, ids=[str(array.type) for array in OTHER_TYPES])
def test_a_column_of_another_layout_is_refused(array):
    refused(message_of(pa.record_batch([array], names=["value"])), 1, 2)


def test_a_large_binary_column_is_refused_or_valid():
    array = pa.array([b"ab", b"cd"], pa.large_binary())
    attempt(lambda message: read_fully(message, 1, 2), message_of(pa.record_batch([array], names=["v"])), EnvelopeError)


def test_other_messages_are_refused():
    array = pa.array([b"a", b"b"], pa.binary())
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([array.dictionary_encode()], names=["value"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    assert [message.type for message in messages] == ["schema", "dictionary", "record batch"]
    for message in messages[:2]:
        refused(message.serialize().to_pybytes(), 1, 2)


POINTERS = [ROOT, HEADER_OFFSET, BATCH_VTABLE, NODES_OFFSET, BUFFERS_OFFSET]


@pytest.mark.parametrize("position", POINTERS)
@pytest.mark.parametrize("target", [2**31 - 1, 2**31, 2**32 - 1, 2**32 - 2**20, 200, 1_000, 148, 152, 153])
def test_pointers_that_leave_the_metadata_are_refused(position, target):
    refused(patched(position, "<I", target))


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 7, len(MESSAGE) - 7, len(MESSAGE), 2**31 - 1])
def test_a_lying_metadata_length_is_refused(length):
    refused(patched(METADATA_LENGTH, "<i", length))


@pytest.mark.parametrize("version", [0, 1, 2, 5, -1])
def test_other_metadata_versions_are_refused(version):
    refused(patched(VERSION, "<h", version))


@pytest.mark.parametrize("kind", [0, 1, 2, 4, 5, 255])
def test_other_kinds_of_message_are_refused(kind):
    refused(patched(HEADER_TYPE, "<B", kind))


@pytest.mark.parametrize("position", [ROWS, NODE_LENGTH])
@pytest.mark.parametrize("count", [-1, 0, COUNT - 1, COUNT + 1, 2**31, 2**62, 2**63 - 1])
def test_lying_lengths_of_batch_and_column_are_refused(position, count):
    refused(patched(position, "<q", count))


@pytest.mark.parametrize("nulls", [-1, -(2**63), COUNT + 1, 2**63 - 1])
def test_an_impossible_null_count_is_refused(nulls):
    refused(patched(NULL_COUNT, "<q", nulls))


@pytest.mark.parametrize("position", [NODE_COUNT, BUFFER_COUNT])
@pytest.mark.parametrize("count", [0, 2, 4, 2**16, 2**31, 2**32 - 1])
def test_lying_vectors_are_refused(position, count):
    refused(patched(position, "<I", count))


@pytest.mark.parametrize("place", [VALIDITY, OFFSETS, DATA])
@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (-1, 8),
        (-8, 8),
        (0, -1),
        (8, -8),
        (0, 2**31),
        (0, 2**62),
        (2**62, 8),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), 2**63 - 1),
        (len(MESSAGE) - BODY, 1),
        (len(MESSAGE) - BODY - 7, 8),
        (len(MESSAGE), 0),
    ],
)
def test_buffers_outside_the_body_are_refused(place, offset, length):
    refused(patched(place, "<qq", offset, length))


@pytest.mark.parametrize("length", [0, 1, 4, 4 * COUNT, 4 * COUNT + 3])
def test_too_few_offsets_are_refused(length):
    refused(patched(OFFSETS + 8, "<q", length))


def test_too_small_a_validity_bitmap_is_refused():
    refused(patched(VALIDITY + 8, "<q", 0))
    values = [None, *[b"v"] * 8]
    column = nullable_column(values)
    validity, offsets, data = column.buffers
    short = column._replace(buffers=(pa.py_buffer(validity).slice(0, 1), offsets, data))
    refused(b"".join(encode_message(9, [short])), 1, 9)


@pytest.mark.parametrize(
    "offsets",
    [
        (-1, 3, 3, 3, 12, 13),
        (0, -1, 3, 3, 12, 13),
        (0, 3, 2, 3, 12, 13),
        (0, 3, 3, 3, 12, 14),
        (0, 3, 3, 3, 12, 2**31 - 1),
        (0, 2**31 - 1, 3, 3, 12, 13),
        (0, 3, 3, 3, 12, -1),
        (0, 3, 3, 3, 12, -(2**31)),
        (13, 12, 3, 3, 3, 0),
        (5, 5, 5, 5, 5, 4),
        (2**30,) * 6,
        (-(2**31),) * 6,
    ],
)
def test_hostile_offsets_are_refused(offsets):
    refused(patched(BODY + 8, "<6i", *offsets))


def test_offsets_at_any_address_are_refused_or_valid():
    for shift in range(1, 8):
        data = patched(OFFSETS, "<q", 8 + shift)
        attempt(lambda message: read_fully(message, 1, COUNT), data, EnvelopeError)


def test_overlapping_buffers_are_refused_or_valid():
    size = len(MESSAGE) - BODY
    for place in (VALIDITY, OFFSETS, DATA):
        for offset in range(size):
            data = patched(place, "<qq", offset, size - offset)
            attempt(lambda message: read_fully(message, 1, COUNT), data, EnvelopeError)


@pytest.mark.parametrize(
    ("data", "columns"), [(MESSAGE, 1), (serialized([VALUES]), 1), (serialized([VALUES, VALUES[::-1]]), 2)]
)
def test_every_damage_is_refused_or_valid(data, columns):
    assert columns == len(read_fully(data, columns, COUNT))
    for message in every_damage(data):
        attempt(lambda given: read_fully(given, columns, COUNT), message, EnvelopeError)


def test_every_truncated_message_is_refused():
    end = len(MESSAGE) - 7  # the rest is padding
    for message in truncations(MESSAGE[:end]):
        refused(message)


@pytest.mark.parametrize("number", HOSTILE_NUMBERS, ids=bytes.hex)
def test_a_message_of_nothing_but_one_number_is_refused(number):
    for size in (8, 16, 64, 512):
        refused(b"\xff\xff\xff\xff" + struct.pack("<i", size) + (number * size)[:size])


@examples(300)
@given(tables(), st.data())
def test_damaged_messages_are_refused_or_valid(columns, data):
    message = data.draw(damaged(st.just(serialized(columns))))
    attempt(lambda given: read_fully(given, len(columns), len(columns[0])), message, EnvelopeError)


@examples(200)
@given(st.binary(max_size=300), st.integers(0, 3), st.integers(0, 30))
def test_garbage_is_refused(rest, columns, count):
    for data in (rest, b"\xff\xff\xff\xff" + rest):
        attempt(lambda message: read_fully(message, columns, count), data, EnvelopeError)
