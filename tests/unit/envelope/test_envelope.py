"""Proves that envelopes of one message round-trip, and that chance is told apart from malformed beyond doubt.

Without a right checksum whatever does not open is a plain message; with one it is refused.
"""

import google_crc32c
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope import envelope as module
from liftpy_envelope.ack import AckPolicy
from liftpy_envelope.envelope import COOKIE, MessageEnvelope, decode_envelope, encode_message_envelope
from liftpy_envelope.errors import EnvelopeError, HeaderError
from liftpy_envelope.headers import PublishOptions, encode_header_block
from liftpy_envelope.limits import ACK_INBOX_BYTES_MAX, CORRELATION_ID_BYTES_MAX, MESSAGE_ID_BYTES_MAX
from support.damage import attempt, bit_flips, damaged, every_damage, truncations
from support.examples import examples
from support.sealing import sealed, unsealed

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
TOKENS = st.text("abcXYZ019_-$", min_size=1, max_size=8)
OPTIONS = {
    "ack_inbox": st.none() | st.lists(TOKENS, min_size=1, max_size=4).map(".".join),
    "ack_policy": st.none() | st.sampled_from(AckPolicy),
    "correlation_id": st.none() | TEXT,
    "expected_offset": st.none() | st.integers(0, 2**63 - 2),
}
MESSAGES = st.fixed_dictionaries(
    OPTIONS
    | {
        "value": st.none() | st.binary(max_size=50),
        "key": st.none() | st.binary(max_size=20),
        "headers": st.none() | st.dictionaries(TOKENS, TOKENS | st.lists(TOKENS, min_size=1, max_size=2), max_size=3),
        "msg_id": st.none() | st.binary(min_size=1, max_size=20),
    }
)


def expected_options(given_options, **others):
    inbox = given_options["ack_inbox"]
    return PublishOptions(
        ack_inbox=None if inbox is None else inbox.encode(),
        ack_policy=given_options["ack_policy"],
        correlation_id=given_options["correlation_id"],
        expected_offset=given_options["expected_offset"],
        **others,
    )


def opened(**fields):
    return decode_envelope(sealed(0, msgpack.packb(fields)))


def refusal(**fields):
    with pytest.raises(EnvelopeError) as caught:
        opened(**fields)
    return str(caught.value)


def test_persisted_numbers():
    assert COOKIE == b"\xc1LPY"
    assert (module.VERSION, module.FLAG_CRC) == (1, 1)
    assert (module.KIND_MESSAGE, module.KIND_BATCH, module.KIND_STAGED) == (0, 1, 2)


def test_bytes_of_an_envelope_are_stable():
    body = msgpack.packb({"key": b"k", "value": b"v", "ack_policy": "all", "expected_offset": 7})
    fixed = b"\x01\x01\x00\x0c"
    crc = google_crc32c.value(fixed + body).to_bytes(4, "little")
    found = encode_message_envelope(b"v", key=b"k", ack_policy=AckPolicy.ALL, expected_offset=7)
    assert COOKIE + fixed + crc + body == found
    assert encode_message_envelope(None).hex() == "c14c50590101000c91a09a2781a576616c7565c0"


@examples(200)
@given(MESSAGES)
def test_round_trip(fields):
    found = decode_envelope(encode_message_envelope(**fields))
    headers = fields["headers"]
    block = None if headers is None else encode_header_block(headers)
    options = expected_options(fields, key=fields["key"], message_id=fields["msg_id"])
    assert MessageEnvelope(fields["value"], block, options) == found


@examples(100)
@given(MESSAGES)
def test_an_envelope_without_a_checksum_is_opened_alike(fields):
    payload = encode_message_envelope(**fields)
    assert decode_envelope(payload) == decode_envelope(unsealed(0, payload[12:]))


def test_every_field_may_be_left_out_or_null():
    names = ("key", "value", "headers", "ack_inbox", "ack_policy", "correlation_id", "msg_id", "expected_offset")
    nothing = MessageEnvelope(None, None, PublishOptions())
    assert nothing == opened()
    assert nothing == opened(**dict.fromkeys(names))


def test_a_message_id_may_be_text():
    assert "\xe9".encode() == opened(msg_id="\xe9").options.message_id


@pytest.mark.parametrize("msg_id", [b"", ""])
def test_an_empty_message_id_is_none_as_in_the_nats_header(msg_id):
    assert opened(msg_id=msg_id).options.message_id is None


def test_an_empty_key_is_a_key():
    assert opened(key=b"").options.key == b""


@examples(300)
@given(st.binary(max_size=100))
def test_random_bytes_after_the_cookie_are_chance(rest):
    if rest[1:4:2] not in {b"\0\x08", b"\1\x0c"}:
        assert decode_envelope(COOKIE + rest) is None


@examples(300)
@given(st.binary(max_size=60), st.binary(min_size=4, max_size=4), st.sampled_from((0, 1, 2)))
def test_a_right_beginning_with_a_wrong_checksum_is_refused(body, crc, kind):
    if crc != sealed(kind, body)[8:12]:
        with pytest.raises(EnvelopeError, match="checksum"):
            decode_envelope(COOKIE + bytes((1, 1, kind, 12)) + crc + body)


def is_refused(payload):
    try:
        return decode_envelope(payload) is None
    except EnvelopeError:
        return True


def test_no_flipped_bit_leaves_a_sealed_envelope():
    payload = encode_message_envelope(b"value", key=b"k", headers={"A": "b"}, ack_inbox="_INBOX.x", expected_offset=5)
    assert [data.hex() for data in bit_flips(payload, 4) if not is_refused(data)] == []


def test_a_truncated_envelope_is_refused_unless_nothing_of_it_is_left():
    payload = encode_message_envelope(b"value", key=b"k", headers={"A": "b"})
    assert [decode_envelope(data) for data in truncations(payload[:8], 4)] == [None] * 4
    for data in truncations(payload, 8):
        with pytest.raises(EnvelopeError, match="cut off"):
            decode_envelope(data)


FIXED = {
    "version 0": (0, 1, 0, 12),
    "version 2": (2, 1, 0, 12),
    "version 255": (255, 1, 0, 12),
    "kind 3": (1, 1, 3, 12),
    "kind 255": (1, 1, 255, 12),
}


@pytest.mark.parametrize("fixed", FIXED.values(), ids=FIXED)
def test_versions_and_kinds_of_the_future_are_refused_under_a_right_checksum(fixed):
    body = msgpack.packb({"value": b"v"})
    crc = google_crc32c.value(bytes(fixed) + body).to_bytes(4, "little")
    with pytest.raises(EnvelopeError):
        decode_envelope(COOKIE + bytes(fixed) + crc + body)


@pytest.mark.parametrize("fixed", [(0, 0, 0, 8), (2, 0, 0, 8), (1, 0, 3, 8)])
def test_and_without_a_checksum(fixed):
    with pytest.raises(EnvelopeError, match="not known here"):
        decode_envelope(COOKIE + bytes(fixed) + msgpack.packb({"value": b"v"}))


@pytest.mark.parametrize("fixed", [(1, 0, 0, 9), (1, 0, 0, 12), (1, 1, 0, 8), (1, 2, 0, 8), (1, 0, 0, 0)])
def test_flags_that_do_not_agree_with_the_length_of_the_head_are_chance(fixed):
    assert decode_envelope(COOKIE + bytes(fixed) + msgpack.packb({"value": b"v"})) is None


NOT_BODIES = {
    "nothing": b"",
    "unused byte": b"\xc1",
    "cut off": msgpack.packb({"value": b"abcdef"})[:-1],
    "an array": msgpack.packb([b"value"]),
    "a number": b"\x07",
    "a null": b"\xc0",
    "bytes": msgpack.packb(b"value"),
    "a number for a name": msgpack.packb({1: b"v"}),
    "bytes for a name": msgpack.packb({b"value": b"v"}),
    "text that is not UTF-8": b"\x81\xa5value\xa1\xff",
    "a name that is not UTF-8": b"\x81\xa1\xff\xc0",
    "a list for a name": b"\x81\x91\x01\xc0",
    "bytes behind it": msgpack.packb({"value": b"v"}) + b"\0",
    "a second map behind it": msgpack.packb({"value": b"v"}) * 2,
    "arrays without end": b"\x81\xa5value" + b"\x91" * 100_000,
    "maps without end": b"\x81\xa5value" * 20_000,
    "an array of 4 G": b"\x81\xa5value\xdd\xff\xff\xff\xff",
    "a map of 4 G": b"\xdf\xff\xff\xff\xff",
    "bytes of 4 G": b"\x81\xa5value\xc6\xff\xff\xff\xff",
    "an extension": b"\x81\xa5value\xd4\x05\x00",
    "an impossible time": b"\x81\xa5value\xd7\xff" + b"\xff" * 8,
    "a time": b"\x81\xa5value\xd6\xff\0\0\0\0",
}


@pytest.mark.parametrize("body", NOT_BODIES.values(), ids=NOT_BODIES)
@pytest.mark.parametrize("make", [sealed, unsealed])
def test_what_is_no_body_is_refused(body, make):
    with pytest.raises(EnvelopeError):
        decode_envelope(make(0, body))


WRONG_FIELDS = [
    *[("value", value) for value in ("text", 7, True, [], {}, 1.5)],
    *[("key", value) for value in ("text", 7, False, [b"k"], {})],
    *[("msg_id", value) for value in (7, True, [], {})],
    *[("headers", value) for value in ([], "A: b", b"A: b", 7, {"A": 7}, {"A": None}, {"A": b"b"}, {"A": {"b": "c"}})],
    *[("ack_policy", value) for value in ("quorum", "", "ALL", 1, b"all", True, ["all"], "x" * 17)],
    *[("correlation_id", value) for value in (7, b"c", True, [])],
    *[("expected_offset", value) for value in (-5, -1, 2**63 - 1, 2**64 - 1, "7", 7.0, True, [7], b"7")],
    *[("ack_inbox", value) for value in (7, b"inbox", True, ["inbox"], {})],
    *[
        ("ack_inbox", value)
        for value in ("", ".", "a.", ".a", "a..b", "a b", " a", "a ", "a\r\nPUB b 0", "a\nb", "a\tb")
    ],
    *[("ack_inbox", value) for value in ("*", ">", "a.*", "a.>", "a.*.b", "a\0b", "a\x7fb", "a\xa0b", "a\u2028b")],
    ("unknown", None),
    ("Value", b"v"),
    ("", b""),
]


@pytest.mark.parametrize(("name", "value"), WRONG_FIELDS)
@pytest.mark.parametrize("make", [sealed, unsealed])
def test_a_wrong_field_is_refused_and_named(name, value, make):
    body = msgpack.packb({"value": b"v"} | {name: value})
    with pytest.raises(EnvelopeError) as caught:
        decode_envelope(make(0, body))
    assert name in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_type_that_is_wanted_is_named():
    body = msgpack.packb({"value": b"v", "correlation_id": b"c"})
    with pytest.raises(EnvelopeError, match="field correlation_id is of type bin, where str is wanted"):
        decode_envelope(unsealed(0, body))
    with pytest.raises(EnvelopeError, match="field msg_id is of type int, where bin or str is wanted"):
        decode_envelope(unsealed(0, msgpack.packb({"msg_id": 7})))


@pytest.mark.parametrize(
    "headers", [{"A\r\nB": "c"}, {"A": "b\r\nC: d"}, {"": "a"}, {"A:": "b"}, {"A": ["b", "c\n"]}, {"A": ["b", 7]}]
)
def test_headers_that_would_forge_others_are_refused(headers):
    body = msgpack.packb({"value": b"v", "headers": headers})
    for make in (sealed, unsealed):
        with pytest.raises((HeaderError, EnvelopeError)):
            decode_envelope(make(0, body))


LIMITS = [
    ("msg_id", MESSAGE_ID_BYTES_MAX),
    ("correlation_id", CORRELATION_ID_BYTES_MAX),
    ("ack_inbox", ACK_INBOX_BYTES_MAX),
]


@pytest.mark.parametrize(("name", "limit"), LIMITS)
def test_fields_have_a_limit(name, limit):
    assert opened(**{name: "x" * limit}) is not None
    assert name in refusal(**{name: "x" * (limit + 1)})


@pytest.mark.parametrize(("name", "limit"), LIMITS)
def test_limits_are_in_bytes_and_not_in_characters(name, limit):
    assert name in refusal(**{name: "\u20ac" * (limit // 3 + 1)})


def test_the_message_id_has_a_limit_as_bytes_too():
    assert "msg_id" in refusal(msg_id=bytes(MESSAGE_ID_BYTES_MAX + 1))


def test_every_unknown_field_is_named_but_not_at_length():
    assert "'colour', 'flavour'" in refusal(flavour=1, colour=2)
    assert len(refusal(**{"x" * 100_000: 1})) < 400


def reject_none(payload):
    found = decode_envelope(payload)
    assert found is not None
    return found


def test_every_damage_under_a_right_checksum_is_refused_or_opened():
    body = encode_message_envelope(
        b"value", key=b"k", headers={"A": ["b", "c"]}, ack_inbox="a.b", msg_id=b"i", expected_offset=2**40
    )[12:]
    for data in every_damage(body):
        attempt(reject_none, sealed(0, data), EnvelopeError, HeaderError)


@examples(300)
@given(damaged(MESSAGES.map(lambda fields: encode_message_envelope(**fields)[12:])) | st.binary(max_size=60))
def test_damaged_bodies_are_refused_or_opened(body):
    attempt(reject_none, sealed(0, body), EnvelopeError, HeaderError)
    attempt(decode_envelope, unsealed(0, body), EnvelopeError, HeaderError)


@examples(200)
@given(damaged(MESSAGES.map(lambda fields: encode_message_envelope(**fields))))
def test_damaged_payloads_are_refused_or_opened(payload):
    attempt(decode_envelope, COOKIE + payload[4:], EnvelopeError, HeaderError)
