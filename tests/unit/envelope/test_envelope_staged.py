"""Proves that messages about staged batches round-trip, and that none gets in that does not say all that it must."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.ack import AckPolicy
from liftpy_envelope.envelope import StagedEnvelope, StagedSection, decode_envelope, encode_staged
from liftpy_envelope.errors import EnvelopeError, HeaderError
from liftpy_envelope.headers import PublishOptions
from support.damage import attempt, damaged, every_damage
from support.examples import examples
from support.sealing import sealed, unsealed

PRODUCER = bytes(range(1, 17))
KIND = 2
FIELDS = {
    "key": "spark/staging/k",
    "start": 4,
    "length": 1_000,
    "chunks": 3,
    "crc": 2**32 - 1,
    "chunk": 2,
    "stream": "orders",
    "producer_id": PRODUCER,
    "producer_sequence": 7,
}
SECTIONS = st.builds(
    StagedSection,
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(1, 2**31 - 1),
    st.integers(0, 2**32 - 1),
    st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
)


@examples(150)
@given(
    SECTIONS,
    st.data(),
    st.binary(min_size=16, max_size=16).filter(any),
    st.integers(0, 2**63 - 1),
    st.none() | st.integers(0, 2**31),
    st.none() | st.sampled_from(AckPolicy),
)
def test_round_trip(section, data, producer, sequence, partition, policy):
    chunk = data.draw(st.integers(0, section.chunks - 1))
    payload = encode_staged(
        *(section, chunk),
        stream="orders",
        producer_id=producer,
        producer_sequence=sequence,
        ack_inbox="_INBOX.a",
        ack_policy=policy,
        partition=partition,
    )
    options = PublishOptions(ack_inbox=b"_INBOX.a", ack_policy=policy, expected_stream=b"orders")
    assert decode_envelope(payload) == StagedEnvelope(section, chunk, producer, sequence, partition, options)


def test_bytes_are_stable():
    section = StagedSection("spark/staging/k", 4, 1_000, 3, 2**32 - 1)
    found = encode_staged(section, 2, stream="orders", producer_id=PRODUCER, producer_sequence=7)
    assert found[:8] == b"\xc1LPY\x01\x01\x02\x0c"
    assert msgpack.unpackb(found[12:]) == FIELDS


@pytest.mark.parametrize("make", [sealed, unsealed])
@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_needed(name, make):
    fields = {other: value for other, value in FIELDS.items() if other != name}
    with pytest.raises(EnvelopeError, match=name):
        decode_envelope(make(KIND, msgpack.packb(fields)))


WRONG_FIELDS = [
    *[("key", value) for value in ("", b"k", 7, "k" * 513)],
    *[("directory", value) for value in (b"/d", 7)],
    *[("stream", value) for value in ("", b"orders", "s" * 129)],
    *[(name, value) for name in ("start", "length", "chunks", "crc", "chunk") for value in (-1, 2**63, "1", True, 1.0)],
    *[("chunk", 3), ("crc", 2**32)],
    *[("producer_id", value) for value in (bytes(16), bytes(15), "p")],
    *[("producer_sequence", value) for value in (-1, 2**63, "7")],
    *[("partition", value) for value in (-1, "1")],
    *[("ack_inbox", "a.>"), ("ack_policy", "some"), ("correlation_id", 7)],
    *[("value", b"v"), ("producer_epoch", 1), ("count", 1), ("columns", 4)],
]


@pytest.mark.parametrize("make", [sealed, unsealed])
@pytest.mark.parametrize(("name", "value"), WRONG_FIELDS)
def test_a_wrong_field_is_refused_and_named(name, value, make):
    with pytest.raises(EnvelopeError) as caught:
        decode_envelope(make(KIND, msgpack.packb(FIELDS | {name: value})))
    assert name in str(caught.value)
    assert len(str(caught.value)) < 400


def test_nothing_follows_the_fields():
    with pytest.raises(EnvelopeError, match="4 bytes follow"):
        decode_envelope(sealed(KIND, msgpack.packb(FIELDS) + b"more"))


def test_every_damage_under_a_right_checksum_is_refused_or_opened():
    for data in every_damage(msgpack.packb(FIELDS)):
        attempt(decode_envelope, sealed(KIND, data), EnvelopeError, HeaderError)


@examples(300)
@given(damaged(st.just(msgpack.packb(FIELDS))) | st.binary(max_size=60))
def test_damaged_bodies_are_refused_or_opened(body):
    attempt(decode_envelope, sealed(KIND, body), EnvelopeError, HeaderError)
