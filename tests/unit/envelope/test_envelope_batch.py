"""Proves that batches of a publisher round-trip, and that no batch gets in that is not what its header announces."""

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.ack import AckPolicy
from liftpy_envelope.columns import Column
from liftpy_envelope.envelope import BatchEnvelope, decode_envelope, encode_batch
from liftpy_envelope.errors import EnvelopeError, HeaderError
from liftpy_envelope.headers import PublishOptions
from liftpy_envelope.limits import ENVELOPE_RECORDS_MAX
from support.damage import attempt, damaged, every_damage
from support.examples import examples
from support.records import nullable_values
from support.sealing import sealed, unsealed

PRODUCER = bytes(range(1, 17))
BITS = {"key": Column.KEY, "headers": Column.HEADERS, "value": Column.VALUE}
ALL_BITS = Column.KEY | Column.HEADERS | Column.VALUE


def arrays_of(columns):
    return {name: pa.array(values, pa.binary()) for name, values in columns.items()}


@st.composite
def batches(draw):
    count = draw(st.integers(1, 12))
    names = draw(st.sets(st.sampled_from(("key", "headers")))) | {"value"}
    return {name: draw(nullable_values(count)) for name in sorted(names)}


ARROW = pa.record_batch([pa.array([b"a", None], pa.binary())], names=["value"]).serialize().to_pybytes()


def with_header(arrow=ARROW, **fields):
    return msgpack.packb({"count": 2, "columns": Column.VALUE} | fields) + arrow


def read_fully(payload):
    """Open a payload; fails when what was accepted is not valid through and through."""
    found = decode_envelope(payload)
    if found is None:
        return None
    assert isinstance(found, BatchEnvelope)
    assert found.columns.bit_count() == len(found.arrays)
    for array in found.arrays:
        array.validate(full=True)
        assert found.count == len(array)
        array.to_pylist()
    return found


@examples(150)
@given(
    batches(),
    st.none() | st.tuples(st.binary(min_size=16, max_size=16).filter(any), st.integers(0, 2**63 - 1)),
    st.none() | st.integers(0, 1_023),
    st.none() | st.integers(0, 2**63 - 2),
)
def test_round_trip(columns, producer, partition, expected_offset):
    producer_id, sequence = producer or (None, -1)
    payload = encode_batch(
        arrays_of(columns),
        producer_id=producer_id,
        producer_sequence=sequence,
        ack_inbox="_INBOX.abc",
        ack_policy=AckPolicy.LEADER,
        correlation_id="c",
        expected_offset=expected_offset,
        partition=partition,
    )
    found = decode_envelope(payload)
    names = [name for name in BITS if name in columns]
    assert [columns[name] for name in names] == [array.to_pylist() for array in found.arrays]
    assert sum(BITS[name] for name in names) == found.columns
    assert len(columns["value"]) == found.count
    assert (producer_id, sequence, partition) == (found.producer_id, found.producer_sequence, found.partition)
    options = PublishOptions(
        ack_inbox=b"_INBOX.abc", ack_policy=AckPolicy.LEADER, correlation_id="c", expected_offset=expected_offset
    )
    assert options == found.options


@examples(100)
@given(batches())
def test_batches_whose_arrow_message_pyarrow_wrote_are_accepted(columns):
    names = [name for name in BITS if name in columns]
    arrow = pa.record_batch([arrays_of(columns)[name] for name in names], names=names).serialize().to_pybytes()
    bitmap = sum(BITS[name] for name in names)
    body = with_header(arrow, count=len(columns["value"]), columns=bitmap)
    for payload in (sealed(1, body), unsealed(1, body)):
        assert [columns[name] for name in names] == [array.to_pylist() for array in decode_envelope(payload).arrays]


def test_the_header_of_a_batch_is_stable():
    payload = encode_batch(arrays_of({"value": [b"a", None]}), producer_id=PRODUCER, producer_sequence=5, partition=3)
    header = {"producer_id": PRODUCER, "producer_sequence": 5, "count": 2, "columns": 32, "partition": 3}
    assert payload[:8] == b"\xc1LPY\x01\x01\x01\x0c"
    packed = msgpack.packb(header)
    assert packed == payload[12 : 12 + len(packed)]
    assert payload[12 + len(packed) : 16 + len(packed)] == b"\xff\xff\xff\xff"


def test_without_a_bitmap_a_batch_has_all_three_columns():
    arrow = pa.record_batch([pa.array([name], pa.binary()) for name in (b"k", b"h", b"v")], names=["k", "h", "v"])
    found = decode_envelope(sealed(1, msgpack.packb({"count": 1}) + arrow.serialize().to_pybytes()))
    assert (found.columns, [array.to_pylist() for array in found.arrays]) == (ALL_BITS, [[b"k"], [b"h"], [b"v"]])


def test_a_slice_of_a_larger_array_carries_only_its_own_records():
    values = pa.array([bytes([row]) * 1_000 for row in range(100)], pa.binary())
    payloads = [encode_batch({"value": values.slice(start, 1)}) for start in (0, 1, 99)]
    assert [len(payload) // 1_000 * 1_000 for payload in payloads] == [1_000] * 3


TEXT = pa.array(["a", "b"])
BINARY = pa.array([b"a", b"b"], pa.binary())
WRONG_RECORDS = {
    "nothing": {},
    "no value": {"key": BINARY},
    "unknown column": {"value": BINARY, "colour": BINARY},
    "no records": {"value": BINARY.slice(0, 0)},
    "too many records": {"value": pa.nulls(ENVELOPE_RECORDS_MAX + 1, pa.binary())},
    "two lengths": {"value": BINARY, "key": BINARY.slice(1)},
    "text": {"value": TEXT},
    "large binary": {"value": BINARY.cast(pa.large_binary())},
    "in chunks": {"value": pa.chunked_array([BINARY])},
    "a list": {"value": [b"a"]},
}


@pytest.mark.parametrize("records", WRONG_RECORDS.values(), ids=WRONG_RECORDS)
def test_records_that_no_node_would_take_are_refused(records):
    with pytest.raises(EnvelopeError) as caught:
        encode_batch(records)
    assert len(str(caught.value)) < 200


WRONG_FIELDS = [
    *[("count", value) for value in (None, 0, -1, 1, 3, ENVELOPE_RECORDS_MAX + 1, 2**64 - 1, "2", 2.0, True, b"2")],
    *[("columns", value) for value in (0, 8, 16, 24, 33, 36, 255, 2**40, -1, "32", 32.0, True)],
    *[("columns", value) for value in (40, 48, 56)],  # allowed, but not what the Arrow message holds
    *[("producer_id", value) for value in (b"", bytes(16), PRODUCER[:15], PRODUCER + b"x", "x" * 16, 7, True)],
    *[("producer_sequence", value) for value in (None, -1, 2**63, "5", 5.0, True)],
    *[("partition", value) for value in (-1, -(2**63), "3", 3.0, True, b"3", [3])],
    *[("expected_offset", value) for value in (-5, -1, 2**63 - 1, 7.0, True)],
    *[("ack_inbox", value) for value in ("a b", "a\r\nb", "*", "a.>", "", 7)],
    *[("ack_policy", value) for value in ("quorum", 7, b"all")],
    *[("key", b"k"), ("value", b"v"), ("headers", {}), ("msg_id", b"i"), ("unknown", None)],
]


@pytest.mark.parametrize(("name", "value"), WRONG_FIELDS)
@pytest.mark.parametrize("make", [sealed, unsealed])
def test_a_wrong_field_is_refused(name, value, make):
    body = with_header(**{"producer_id": PRODUCER, "producer_sequence": 5} | {name: value})
    with pytest.raises(EnvelopeError):
        decode_envelope(make(1, body))


def test_a_sequence_without_a_producer_is_refused():
    with pytest.raises(EnvelopeError):
        decode_envelope(sealed(1, with_header(producer_sequence=5)))


@pytest.mark.parametrize("arrow", [b"", b"\xff\xff\xff\xff", b"not Arrow at all", ARROW[:-8], ARROW[:100], bytes(300)])
@pytest.mark.parametrize("make", [sealed, unsealed])
def test_what_is_no_arrow_message_is_refused(arrow, make):
    with pytest.raises(EnvelopeError):
        decode_envelope(make(1, with_header(arrow)))


def test_a_compressed_batch_is_refused():
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([pa.array([bytes(10_000)] * 2, pa.binary())], names=["value"])
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    arrow = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))[1].serialize().to_pybytes()
    with pytest.raises(EnvelopeError):
        decode_envelope(sealed(1, with_header(arrow)))


@pytest.mark.parametrize("make", [sealed, unsealed])
def test_hostile_offsets_are_refused(make):
    arrow = bytearray(ARROW)
    place = arrow.rindex(b"\0\0\0\0\x01\0\0\0\x01\0\0\0")
    for hostile in (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\0\0\0\x80"):
        arrow[place + 8 : place + 12] = hostile
        with pytest.raises(EnvelopeError):
            decode_envelope(make(1, with_header(bytes(arrow))))


@pytest.mark.parametrize("make", [sealed, unsealed])
def test_every_damage_that_a_checksum_does_not_tell_is_refused_or_valid(make):
    for body in every_damage(with_header(producer_id=PRODUCER, producer_sequence=5)):
        attempt(read_fully, make(1, body), EnvelopeError, HeaderError)


@examples(300)
@given(damaged(batches().map(lambda columns: encode_batch(arrays_of(columns))[12:])) | st.binary(max_size=100))
def test_damaged_batches_are_refused_or_valid(body):
    attempt(read_fully, sealed(1, body), EnvelopeError, HeaderError)
    attempt(read_fully, unsealed(1, body), EnvelopeError, HeaderError)
