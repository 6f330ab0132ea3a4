"""Proves that headers are read as their publishers mean them, and that no block can be forged or break a reader."""

import json
import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from liftpy_envelope.ack import AckPolicy
from liftpy_envelope.errors import AckErrorCode, HeaderError
from liftpy_envelope.headers import (
    Headers,
    PublishOptions,
    encode_header_block,
    read_publish_options,
    unsupported_error,
)
from liftpy_envelope.limits import CORRELATION_ID_BYTES_MAX, MESSAGE_ID_BYTES_MAX
from support.damage import attempt, damaged
from support.examples import examples

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=20)
VALUES = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=30).map(str.strip)
INTERESTING = (
    "Lift-Key",
    "Lift-Ack",
    "Lift-Correlation-Id",
    "Lift-Expected-Offset",
    "Nats-Msg-Id",
    "Nats-Expected-Last-Sequence",
    "Nats-Expected-Stream",
    "Nats-Rollup",
)


def block(*lines):
    return b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def options(*lines):
    return read_publish_options(block(*lines))


def refusal(*lines):
    with pytest.raises(HeaderError) as caught:
        options(*lines)
    return caught.value


def test_a_block_without_headers_of_ours_asks_for_nothing():
    assert PublishOptions() == options(b"Content-Type: text/plain", b"X-Lift-Key: a", b"A: Lift-Key: b")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"Lift-Key: customer 7", PublishOptions(key=b"customer 7")),
        (b"Lift-Key:", PublishOptions(key=b"")),
        (b"Lift-Key: \xff\x00", PublishOptions(key=b"\xff\x00")),
        (b"Lift-Key: a:b: c", PublishOptions(key=b"a:b: c")),
        (b"Lift-Key:  \t a \t ", PublishOptions(key=b"a")),
        (b"Lift-Ack: leader", PublishOptions(ack_policy=AckPolicy.LEADER)),
        (b"Lift-Ack: all", PublishOptions(ack_policy=AckPolicy.ALL)),
        (b"Lift-Ack:none", PublishOptions(ack_policy=AckPolicy.NONE)),
        (b"Lift-Correlation-Id: c-1", PublishOptions(correlation_id="c-1")),
        (b"Lift-Correlation-Id: \xc3\xa9\xff", PublishOptions(correlation_id="\xe9\ufffd")),
        (b"Lift-Expected-Offset: 0", PublishOptions(expected_offset=0)),
        (b"Lift-Expected-Offset: 9223372036854775806", PublishOptions(expected_offset=2**63 - 2)),
        (b"Nats-Msg-Id: id-1", PublishOptions(message_id=b"id-1")),
        (b"Nats-Msg-Id:", PublishOptions()),
        (b"Nats-Expected-Stream: orders", PublishOptions(expected_stream=b"orders")),
    ],
)
def test_headers_that_are_acted_on(line, expected):
    assert expected == options(line)
    assert expected == options(b"Before: 1", line, b"After: 2")


@pytest.mark.parametrize("sequence", [0, 1, 42, 2**63 - 2])
def test_after_the_last_sequence_n_comes_the_offset_n(sequence):
    assert PublishOptions(expected_offset=sequence) == options(b"Nats-Expected-Last-Sequence: %d" % sequence)


@pytest.mark.parametrize("name", [b"Lift-Expected-Offset", b"Nats-Expected-Last-Sequence"])
@pytest.mark.parametrize(
    "value",
    [
        b"-5",
        b"-1",
        b"+1",
        b"",
        b"1.5",
        b"1e3",
        b"0x10",
        b"1_000",
        b"1 2",
        b"many",
        b"\xd9\xa3",
        b"9" * 19,
        b"9" * 5_000,
    ],
)
def test_what_is_no_offset_is_refused(name, value):
    error = refusal(name + b": " + value)
    assert AckErrorCode.MALFORMED is error.code
    assert name.decode() in str(error)


@pytest.mark.parametrize("value", [b"", b"ALL", b"Leader", b"quorum", b"all,leader", b"\xff", b"x" * 10_000])
def test_what_is_no_ack_policy_is_refused(value):
    error = refusal(b"Lift-Ack: " + value)
    assert AckErrorCode.MALFORMED is error.code
    assert len(str(error)) < 200


@pytest.mark.parametrize(
    ("name", "limit"), [(b"Nats-Msg-Id", MESSAGE_ID_BYTES_MAX), (b"Lift-Correlation-Id", CORRELATION_ID_BYTES_MAX)]
)
def test_ids_have_a_limit(name, limit):
    assert options(name + b": " + b"i" * limit) != PublishOptions()
    assert AckErrorCode.MALFORMED is refusal(name + b": " + b"i" * (limit + 1)).code


@pytest.mark.parametrize(
    "name",
    [
        "Nats-Rollup",
        "Nats-TTL",
        "Nats-Incr",
        "Nats-Batch-Id",
        "Nats-Batch-Sequence",
        "Nats-Schedule",
        "Nats-Schedule-Target",
        "Nats-Expected-Last-Msg-Id",
        "Nats-Expected-Last-Subject-Sequence",
        "Nats-Required-Api-Level",
        "Lift-Acks",
        "Lift-Unheard-Of",
        "Lift-Key ",
    ],
)
def test_headers_that_ask_for_what_we_do_not_do_are_noticed(name):
    line = name.encode() + b": 1"
    assert PublishOptions(unsupported=name) == options(line)
    assert PublishOptions(unsupported=name, message_id=b"m") == options(b"Nats-Msg-Id: m", line)


@pytest.mark.parametrize(
    "name", ["Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Service-Error"]
)
def test_headers_that_ask_for_nothing_are_passed_over(name):
    assert PublishOptions() == options(name.encode() + b": 1")


def test_names_are_matched_exactly():
    assert PublishOptions() == options(b"lift-key: a", b"LIFT-KEY: b", b"nats-msg-id: c", b"nats-rollup: all")


def test_the_refusal_of_an_unsupported_header_says_so():
    error = unsupported_error("Nats-Rollup")
    assert AckErrorCode.UNSUPPORTED is error.code
    assert "Nats-Rollup" in str(error)


def test_of_a_name_that_stands_twice_both_readers_take_the_first_value():
    twice = block(b"Lift-Key: first", b"Lift-Key: second")
    assert Headers(twice) == {"Lift-Key": "first"}
    assert PublishOptions(key=b"first") == read_publish_options(twice)
    assert PublishOptions() == options(b"Nats-Msg-Id:", b"Nats-Msg-Id: second")


@pytest.mark.parametrize("value", [b"a\nLift-Key: x", b"a\rLift-Key: x", b"a\n\rLift-Key: x"])
def test_a_bare_line_break_begins_no_header(value):
    assert PublishOptions() == options(b"Name: " + value)


@examples(150)
@given(st.dictionaries(NAMES, VALUES | st.lists(VALUES, min_size=1, max_size=3), max_size=5))
def test_round_trip(headers):
    first = {name: value if isinstance(value, str) else value[0] for name, value in headers.items()}
    block = encode_header_block(headers)
    found = Headers(block)
    assert first == found
    assert found.all_values() == {name: value[0] if len(value) == 1 else value for name, value in headers.items()}
    assert encode_header_block(found) == encode_header_block(found.all_values()) == block


def test_all_values_of_a_header():
    found = Headers(b"NATS/1.0\r\nA: 1\r\nB: 2\r\nA: 1\r\nA: 3\r\n\r\n")
    assert (found["A"], found.get_all("A"), found.get_all("B"), found.get_all("C")) == ("1", ["1", "1", "3"], ["2"], [])
    assert json.loads(json.dumps(found)) == {"A": "1", "B": "2"}
    assert pickle.loads(pickle.dumps(found)).all_values() == {"A": ["1", "1", "3"], "B": "2"}
    found["A"] = "new"
    del found["B"]
    assert (found.get_all("A"), found.all_values()) == (["new"], {"A": "new"})
    assert Headers(None) == {}


def test_bytes_of_a_block():
    assert encode_header_block({}) == b"NATS/1.0\r\n\r\n"
    assert encode_header_block({"A": "1", "B": ["x", "\xe9"]}) == b"NATS/1.0\r\nA: 1\r\nB: x\r\nB: \xc3\xa9\r\n\r\n"


def test_the_status_line_is_no_header():
    assert Headers(b"NATS/1.0 503 No: Responders\r\nA: b\r\n\r\n") == {"A": "b"}


INJECTIONS = [
    ("", "value"),
    ("A:B", "value"),
    ("A B", "value"),
    ("A ", "value"),
    ("A\t", "value"),
    ("A\r\nB", "value"),
    ("A\nB", "value"),
    ("A", "value\r\nLift-Ack: none"),
    ("A", "value\n"),
    ("A", "\rvalue"),
    ("A", ["fine", "not\r\nfine"]),
    ("A", ["fine", 7]),
    ("A", [b"bytes"]),
    ("A", b"bytes"),
    ("A", None),
    ("A", 7),
    (7, "value"),
]


@pytest.mark.parametrize(("name", "value"), INJECTIONS)
def test_what_would_forge_a_header_is_refused(name, value):
    with pytest.raises(HeaderError):
        encode_header_block({name: value})


@pytest.mark.parametrize("value", [" a", "a ", "\ta", "a\t", " "])
def test_a_value_whose_edges_would_be_lost_is_refused(value):
    with pytest.raises(HeaderError):
        encode_header_block({"A": value})


@pytest.mark.parametrize(("name", "value"), [("A", "\ud800"), ("\udfff", "a")])
def test_what_no_utf8_spells_is_refused(name, value):
    with pytest.raises(HeaderError):
        encode_header_block({name: value})


@examples(200)
@example({"0: ": "0"})
@given(st.dictionaries(st.text(max_size=6), st.text(max_size=8), max_size=3))
def test_any_text_is_refused_or_read_back(headers):
    encoded = attempt(encode_header_block, headers, HeaderError)
    if encoded is not None:
        assert headers == Headers(encoded)


@st.composite
def blocks(draw):
    lines = draw(st.lists(st.tuples(st.sampled_from(INTERESTING) | NAMES, VALUES), max_size=5))
    return block(*(f"{name}: {value}".encode() for name, value in lines))


@examples(300)
@given(st.binary(max_size=200) | blocks() | damaged(blocks()))
def test_no_bytes_break_a_reader(data):
    found = Headers(data)
    assert all(isinstance(name, str) and isinstance(value, str) for name, value in found.items())
    attempt(read_publish_options, data, HeaderError)


@pytest.mark.parametrize("piece", [b"\r\n", b"\r\nA:", b"\r\nLift-", b"\r\nLift-Key:", b" ", b"\t", b"\r", b":"])
def test_a_megabyte_of_nonsense_breaks_no_reader(piece):
    data = b"NATS/1.0" + piece * (1_000_000 // len(piece))
    Headers(data)
    attempt(read_publish_options, data, HeaderError)
