"""Proves that frames come out as they went in wherever the bytes are split, and that no peer can break a reader."""

import struct
import tracemalloc
from itertools import pairwise

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.bodies import pack_body
from liftpy_envelope.errors import ErrorCode, FrameError, FrameTooLargeError
from liftpy_envelope.frames import Request, RequestReader, ResponseReader, encode_request, encode_response
from liftpy_envelope.limits import (
    REQUEST_FRAME_BYTES_MAX,
    RESPONSE_BODY_BYTES_MAX,
    RESPONSE_HEADER_BYTES_MAX,
    STRANGER_FRAME_BYTES_MAX,
)
from support.damage import attempt, damaged, every_damage
from support.examples import examples

NUMBERS = st.integers(0, 2**63 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
REQUESTS = st.builds(Request, NUMBERS, NUMBERS, NUMBERS, VALUES)
# correlation id, result, error, message, body
RESPONSES = st.tuples(
    NUMBERS, VALUES, st.sampled_from(ErrorCode), st.text(max_size=20), st.just(b"") | st.binary(max_size=60)
)
SAMPLE_REQUESTS = [Request(1, 2, 1, [b"uuid", 0, None]), Request(2, 0, 1, None), Request(2**63 - 1, 4, 1, {"a": [1.5]})]
SAMPLE_RESPONSES = [
    (1, ["node", 7], ErrorCode.NONE, "", b""),
    (2, None, ErrorCode.NOT_LEADER, "ask another node", b""),
    (3, [], ErrorCode.NONE, "", b"record batches"),
]


def on_wire(messages, at):
    """The messages with what stands at a place of each as it is on the wire."""
    return [(*message[:at], pack_body(message[at]), *message[at + 1 :]) for message in messages]


def request_bytes(requests):
    return b"".join(encode_request(*request) for request in requests)


def response_bytes(responses):
    return b"".join(
        encode_response(correlation_id, result, error=error, message=message, body_length=len(body)) + body
        for correlation_id, result, error, message, body in responses
    )


def chunks(data, cuts):
    """`data`, cut at the given positions."""
    return [
        data[start:stop] for start, stop in pairwise([0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)])
    ]


def read_requests(pieces):
    """What a reader makes of the pieces; bodies as they are on the wire."""
    reader = RequestReader()
    reader.admit()
    return [(*request[:3], bytes(request.body)) for piece in pieces for request in reader.feed(piece)]


def read_responses(pieces):
    """What a reader makes of the pieces, in the shape of `RESPONSES`."""
    reader = ResponseReader()
    found = []
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            target = reader.buffer().cast("B")
            assert len(target) > 0
            size = min(len(target), len(rest))
            target[:size] = rest[:size]
            rest = rest[size:]
            for response in reader.filled(size):
                correlation_id, error, message, result, body = response
                found.append((correlation_id, bytes(result), error, message, body.to_pybytes()))
    return found


def test_bytes_of_a_request_are_stable():
    assert encode_request(7, 2, 1, ["a", b"b"]) == b"\x0a\0\0\0" + b"\x94\x07\x02\x01\x92\xa1a\xc4\x01b"


def test_bytes_of_a_response_are_stable():
    expected = b"\x07\0\0\0" + b"\x09\0\0\0\0\0\0\0" + b"\x94\x07\x06\xa1m\x91\xc3"
    assert expected == encode_response(7, [True], error=ErrorCode.NOT_LEADER, message="m", body_length=9)
    assert b"\x05\0\0\0" + bytes(8) + b"\x94\x07\0\xa0\xc0" == encode_response(7)


@examples(150)
@given(st.lists(REQUESTS, max_size=4), st.lists(st.integers(0, 10_000), max_size=6))
def test_requests_round_trip_however_they_are_split(requests, cuts):
    assert on_wire(requests, 3) == read_requests(chunks(request_bytes(requests), cuts))


@examples(150)
@given(st.lists(RESPONSES, max_size=4), st.lists(st.integers(0, 10_000), max_size=6))
def test_responses_round_trip_however_they_are_split(responses, cuts):
    assert on_wire(responses, 1) == read_responses(chunks(response_bytes(responses), cuts))


def test_requests_are_read_at_every_pair_of_splits():
    data = request_bytes(SAMPLE_REQUESTS)
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            assert read_requests([data[:first], data[first:second], data[second:]]) == on_wire(SAMPLE_REQUESTS, 3)


def test_responses_are_read_at_every_pair_of_splits():
    data = response_bytes(SAMPLE_RESPONSES)
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            assert read_responses([data[:first], data[first:second], data[second:]]) == on_wire(SAMPLE_RESPONSES, 1)


def test_both_are_read_byte_by_byte():
    requests, responses = request_bytes(SAMPLE_REQUESTS), response_bytes(SAMPLE_RESPONSES)
    assert read_requests([bytes([byte]) for byte in requests]) == on_wire(SAMPLE_REQUESTS, 3)
    assert read_responses([bytes([byte]) for byte in responses]) == on_wire(SAMPLE_RESPONSES, 1)


def test_a_request_comes_out_with_its_last_byte_and_not_before():
    data = request_bytes(SAMPLE_REQUESTS[:1])
    reader = RequestReader()
    assert reader.feed(data[:-1]) == []
    assert reader.feed(b"") == []
    assert [request.correlation_id for request in reader.feed(data[-1:])] == [1]
    assert reader.feed(b"") == []


def test_a_large_body_is_handed_on_without_a_copy():
    reader = ResponseReader()
    frame = encode_response(1, body_length=100_000) + b"some"
    reader.buffer()[: len(frame)] = frame
    assert reader.filled(len(frame)) == []
    target = reader.buffer().cast("B")
    assert len(target) == 100_000 - 4
    target[:] = b"x" * len(target)
    (response,) = reader.filled(len(target))
    target[:] = b"y" * len(target)
    assert response.body.to_pybytes() == b"some" + b"y" * len(target)


def test_a_body_does_not_change_when_more_comes():
    reader = ResponseReader()
    for body in (b"x" * 100, b"y" * 100):
        frame = encode_response(1, body_length=100) + body
        reader.buffer()[: len(frame)] = frame
        (response,) = reader.filled(len(frame))
        if body[:1] == b"x":
            first = response.body
    assert first.to_pybytes() == b"x" * 100


def test_a_header_may_be_larger_than_what_is_received_at_once():
    result = [b"x" * 9_000, b"y" * 90_000]
    data = encode_response(7, result, body_length=50_000) + b"b" * 50_000
    for size in (100, 20_000, len(data)):
        found = read_responses([data[at : at + size] for at in range(0, len(data), size)] * 2)
        assert found == [(7, pack_body(result), 0, "", b"b" * 50_000)] * 2


def test_requests_have_a_limit():
    body = b"x" * (REQUEST_FRAME_BYTES_MAX - 9)
    assert [(1, 2, 1, pack_body(body))] == read_requests([encode_request(1, 2, 1, body)])
    with pytest.raises(FrameTooLargeError):
        encode_request(1, 2, 1, body + b"x")


@pytest.mark.parametrize("length", [REQUEST_FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_an_announced_request_beyond_the_limit_is_refused_at_once(length):
    with pytest.raises(FrameTooLargeError):
        read_requests([struct.pack("<I", length)])


def test_a_stranger_asks_for_little():
    whole = struct.pack("<I", STRANGER_FRAME_BYTES_MAX + 1) + bytes(STRANGER_FRAME_BYTES_MAX + 1)
    for frame in (whole, whole[:4]):
        with pytest.raises(FrameTooLargeError):
            RequestReader().feed(frame)


@pytest.mark.parametrize(
    ("header_length", "body_length"),
    [
        (0, 0),
        (RESPONSE_HEADER_BYTES_MAX + 1, 0),
        (2**32 - 1, 0),
        (5, RESPONSE_BODY_BYTES_MAX + 1),
        (5, 2**63),
        (5, 2**64 - 1),
    ],
)
def test_an_announced_response_beyond_the_limits_is_refused_at_once(header_length, body_length):
    with pytest.raises(FrameTooLargeError):
        read_responses([struct.pack("<IQ", header_length, body_length)])


NOT_REQUESTS = [
    b"",
    b"\xc1",
    b"\x94\x01\x02\x03",
    b"\x94\x01\x02\x03\x04\x05",
    msgpack.packb([1, 2, 3]),
    msgpack.packb([1, 2, 3, 4, 5]),
    msgpack.packb({"a": 1, "b": 2, "c": 3, "d": 4}),
    msgpack.packb("abcd"),
    msgpack.packb(None),
    msgpack.packb([-1, 2, 1, None]),
    msgpack.packb([2**63, 2, 1, None]),
    msgpack.packb([1, -2, 1, None]),
    msgpack.packb([1, 2, -1, None]),
    msgpack.packb([True, 2, 1, None]),
    msgpack.packb([1, 2.0, 1, None]),
    msgpack.packb([1, 2, "1", None]),
    msgpack.packb([None, 2, 1, None]),
    b"\x94\x01\x02\x01" + b"\x91" * 100_000 + b"\xc0",
    b"\x94\x01\x02\x01\xdd\xff\xff\xff\xff",
    b"\x94\x01\x02\x01\xdf\xff\xff\xff\xff",
    b"\x94\x01\x02\x01\xdb\xff\xff\xff\xff",
    b"\x94\x01\x02\x01\xc6\xff\xff\xff\xff",
]


@pytest.mark.parametrize("packed", NOT_REQUESTS, ids=lambda packed: packed[:12].hex())
def test_what_is_no_request_is_refused(packed):
    with pytest.raises(FrameError):
        read_requests([struct.pack("<I", len(packed)) + packed])


NOT_RESPONSES = [
    b"\xc1",
    msgpack.packb([1, 0, ""]),
    msgpack.packb([1, 0, "", None, None]),
    msgpack.packb({}),
    msgpack.packb(["1", 0, "", None]),
    msgpack.packb([True, 0, "", None]),
    msgpack.packb([1, None, "", None]),
    msgpack.packb([1, 0.0, "", None]),
    msgpack.packb([1, 0, b"", None]),
    msgpack.packb([1, 0, None, None]),
    b"\x94\x01\x00\xa1\xff\xc0",
    b"\x94\x01\x00\xa0" + b"\x91" * 100_000 + b"\xc0",
]


@pytest.mark.parametrize("packed", NOT_RESPONSES, ids=lambda packed: packed[:12].hex())
@pytest.mark.parametrize("body", [b"", b"body"])
def test_what_is_no_response_is_refused(packed, body):
    with pytest.raises(FrameError):
        read_responses([struct.pack("<IQ", len(packed), len(body)) + packed + body])


def nested_arrays(size, levels=500):
    """`size` bytes of msgpack: arrays in arrays, each of which claims as many items as the limits of msgpack let it."""
    head = b"\xdd" + struct.pack(">I", size)
    return head * levels + b"\xc0" * (size - len(head) * levels)


@pytest.mark.parametrize(
    ("read", "prefix"),
    [(read_requests, struct.pack("<I", 65_536)), (read_responses, struct.pack("<IQ", 65_536, 0))],
    ids=["request", "response"],
)
def test_arrays_that_lie_about_their_lengths_take_little_memory(read, prefix):
    frame = prefix + nested_arrays(65_536)
    tracemalloc.start()
    try:
        attempt(lambda data: read([data]), frame, FrameError)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024 * 1024  # believed, they would take four times as much


def test_every_damage_to_requests_is_refused_or_read():
    for data in every_damage(request_bytes(SAMPLE_REQUESTS)):
        attempt(lambda given: read_requests([given]), data, FrameError)


def test_every_damage_to_responses_is_refused_or_read():
    for data in every_damage(response_bytes(SAMPLE_RESPONSES)):
        attempt(lambda given: read_responses([given]), data, FrameError)


@examples(300)
@given(st.binary(max_size=200) | damaged(st.lists(REQUESTS, min_size=1, max_size=3).map(request_bytes)))
def test_garbage_breaks_no_request_reader(data):
    attempt(lambda given: read_requests([given]), data, FrameError)


@examples(300)
@given(st.binary(max_size=200) | damaged(st.lists(RESPONSES, min_size=1, max_size=3).map(response_bytes)))
def test_garbage_breaks_no_response_reader(data):
    attempt(lambda given: read_responses([given]), data, FrameError)


@examples(200)
@given(st.binary(min_size=1, max_size=100))
def test_garbage_in_a_frame_of_the_right_length_is_refused_or_read(packed):
    attempt(lambda data: read_requests([data]), struct.pack("<I", len(packed)) + packed, FrameError)
    attempt(lambda data: read_responses([data]), struct.pack("<IQ", len(packed), 0) + packed, FrameError)


@examples(100)
@given(
    damaged(st.lists(REQUESTS, min_size=1, max_size=3).map(request_bytes)), st.lists(st.integers(0, 999), max_size=4)
)
def test_splits_do_not_change_whether_requests_are_refused(data, cuts):
    whole = attempt(lambda given: read_requests([given]), data, FrameError)
    assert repr(whole) == repr(attempt(lambda given: read_requests(chunks(given, cuts)), data, FrameError))
