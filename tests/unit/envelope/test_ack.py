"""Proves that acks are what JetStream clients parse, come back whole, and that nothing else passes for one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js.api import PubAck
from nats.js.errors import APIError, BadRequestError, ServiceUnavailableError

from liftpy_envelope.ack import (
    Ack,
    AckPolicy,
    AckUnreadableError,
    PublishRefusedError,
    decode_ack,
    encode_ack,
    encode_error_ack,
)
from liftpy_envelope.errors import AckErrorCode
from support.damage import attempt, bit_flips, damaged, truncations
from support.examples import examples

NAMES = st.text("abcxyzABCXYZ019_-", min_size=1, max_size=128)
OFFSETS = st.integers(0, 2**63 - 2)
ACKS = st.builds(
    Ack,
    stream=NAMES,
    offset=OFFSETS,
    partition=st.integers(0, 1_023),
    epoch=st.integers(0, 2**31 - 1),
    count=st.integers(1, 1_000_000),
    duplicate=st.booleans(),
    correlation_id=st.none() | st.text(max_size=30),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def answer(data):
    try:
        return decode_ack(data)
    except PublishRefusedError as refused:
        return refused


def is_text_or_none(value):
    return value is None or isinstance(value, str)


def readable(data):
    """Read an ack or a refusal, and check that every field of it is of its type."""
    found = answer(data)
    assert is_text_or_none(found.stream)
    assert is_text_or_none(found.correlation_id)
    if isinstance(found, PublishRefusedError):
        assert type(found.code) is int
        return
    assert found.stream is not None
    assert all(type(number) is int for number in (found.offset, found.partition, found.epoch, found.count))
    assert type(found.duplicate) is bool


@examples(200)
@given(ACKS)
def test_round_trip(ack):
    assert ack == decode_ack(encode_ack(ack))


def test_bytes_of_acks_are_stable():
    plain = b'{"stream":"orders","seq":43,"offset":42,"partition":1,"epoch":7,"count":3'
    ack = {"stream": "orders", "offset": 42, "partition": 1, "epoch": 7, "count": 3}
    assert plain + b"}" == encode_ack(Ack(**ack))
    full = plain + b',"duplicate":true,"correlation_id":"a\\"b"}'
    assert full == encode_ack(Ack(**ack, duplicate=True, correlation_id='a"b'))


def test_bytes_of_a_refusal_are_stable():
    expected = {
        "type": "io.nats.jetstream.api.v1.pub_ack_response",
        "error": {"code": 400, "err_code": 10071, "description": "wrong expected offset"},
        "stream": "orders",
        "correlation_id": "c",
    }
    code = AckErrorCode.WRONG_EXPECTED_OFFSET
    assert expected == json.loads(encode_error_ack(code, "wrong expected offset", "orders", "c"))


def test_policies_are_spelled_as_in_headers():
    assert [policy.value for policy in AckPolicy] == ["leader", "all", "none"]


@examples(100)
@given(ACKS)
def test_a_jetstream_client_reads_an_ack(ack):
    response = json.loads(encode_ack(ack))
    assert "error" not in response
    found = PubAck.from_response(response)
    assert (ack.stream, ack.offset + 1, ack.count) == (found.stream, found.seq, found.batch_size)
    assert (ack.duplicate or None) == found.duplicate


@pytest.mark.parametrize("code", list(AckErrorCode))
def test_a_jetstream_client_reads_a_refusal(code):
    response = json.loads(encode_error_ack(code, "the reason", "orders", "c"))
    kind = ServiceUnavailableError if code.http_status == 503 else BadRequestError
    with pytest.raises(kind) as caught:
        raise APIError.from_error(response["error"])
    error = caught.value
    assert (code.http_status, int(code), "the reason") == (error.code, error.err_code, error.description)


@examples(100)
@given(
    st.sampled_from(AckErrorCode),
    st.text(max_size=30),
    st.none() | NAMES,
    st.none() | st.text(max_size=30),
)
def test_round_trip_of_a_refusal(code, description, stream, correlation_id):
    with pytest.raises(PublishRefusedError) as caught:
        decode_ack(encode_error_ack(code, description, stream, correlation_id))
    error = caught.value
    assert (code, description) == (error.code, str(error))
    assert (stream, correlation_id) == (error.stream, error.correlation_id)
    assert (code is AckErrorCode.OUTCOME_UNKNOWN) == error.may_be_stored


def test_the_ack_of_jetstream_itself_is_read():
    assert Ack(stream="ORDERS", offset=41) == decode_ack(b'{"stream":"ORDERS","domain":"hub","seq":42}')
    with pytest.raises(PublishRefusedError) as caught:
        decode_ack(b'{"error":{"code":400,"err_code":10060,"description":"no"},"stream":"ORDERS","seq":0}')
    assert (caught.value.code, caught.value.stream) == (10060, "ORDERS")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"+ACK",
        b"ok",
        b"null",
        b"7",
        b'"text"',
        b"[]",
        b"{}",
        b'{"stream":"a"}',
        b'{"seq":1}',
        b'{"stream":"a","seq":null}',
        b'{"stream":"a","seq":"many"}',
        b'{"stream":"a","seq":[1]}',
        b'{"stream":"a","seq":1',
        b'{"error":"text"}',
        b'{"error":{}}',
        b'{"error":{"err_code":"many"}}',
        b'{"error":[]}',
        b"\xff\xfe",
        b"\x80",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"9" * 10_000,
        b'{"stream":"a","seq":1,"more":[' + b"[]," * 100_000 + b"0]}",
        b'{"stream":"a","seq":' + b"9" * 10_000 + b"}",
    ],
)
def test_what_is_no_ack_is_unreadable(data):
    with pytest.raises(AckUnreadableError):
        decode_ack(data)


@pytest.mark.parametrize("number", [b"Infinity", b"-Infinity", b"NaN", b"1e999"])
@pytest.mark.parametrize("field", [b"seq", b"offset", b"partition", b"epoch", b"count"])
def test_numbers_that_are_not_finite_are_unreadable(field, number):
    with pytest.raises(AckUnreadableError):
        decode_ack(b'{"stream":"a","seq":1,"%b":%b}' % (field, number))


def test_an_error_code_that_is_not_finite_is_unreadable():
    with pytest.raises(AckUnreadableError):
        decode_ack(b'{"error":{"err_code":1e999}}')


@pytest.mark.parametrize(
    "data",
    [
        b'{"stream":null,"seq":1}',
        b'{"stream":["a"],"seq":1}',
        b'{"stream":"a","seq":1,"correlation_id":[1]}',
        b'{"stream":"a","seq":1,"correlation_id":7}',
        b'{"stream":7,"error":{"err_code":1}}',
        b'{"correlation_id":{},"error":{"err_code":1}}',
    ],
)
def test_text_fields_that_hold_no_text_are_unreadable(data):
    with pytest.raises(AckUnreadableError):
        decode_ack(data)


@pytest.mark.parametrize("number", [b"1.0", b"1.5", b"true", b'"1"', b"null", b"[]"])
@pytest.mark.parametrize("field", [b"seq", b"offset", b"partition", b"epoch", b"count"])
def test_numbers_that_are_not_whole_are_unreadable(field, number):
    with pytest.raises(AckUnreadableError):
        decode_ack(b'{"stream":"a","seq":1,"%b":%b}' % (field, number))


@pytest.mark.parametrize("sequence", [0, -1, -(2**63)])
def test_a_sequence_that_counts_from_below_one_is_unreadable(sequence):
    with pytest.raises(AckUnreadableError):
        decode_ack(b'{"stream":"a","seq":%d}' % sequence)


def test_every_flipped_bit_and_truncation_is_readable_or_unreadable():
    for data in (
        encode_ack(Ack(stream="orders", offset=42, duplicate=True, correlation_id="c")),
        encode_error_ack(AckErrorCode.PAUSED, "paused", "orders", "c"),
    ):
        for given_data in (*bit_flips(data), *truncations(data)):
            attempt(readable, given_data, AckUnreadableError)


@examples(200)
@given(st.binary(max_size=100) | damaged(ACKS.map(encode_ack)))
def test_garbage_is_readable_or_unreadable(data):
    attempt(readable, data, AckUnreadableError)


@examples(200)
@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("stream", "seq", "offset", "count", "duplicate", "error", "correlation_id"), JSON)
    )
)
def test_json_of_other_makes_is_readable_or_unreadable(body):
    attempt(readable, json.dumps(body).encode(), AckUnreadableError)
