"""What a message asks for is read from headers and envelope, checked, and answered where it may be answered."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.ack import AckPolicy
from liftpy_envelope.envelope import StagedSection, decode_envelope, encode_batch, encode_staged
from liftpy_envelope.errors import AckErrorCode
from liftpy_envelope.limits import KEY_BYTES_MAX
from liftpy_envelope.partitioner import partition_of
from liftpy_envelope.stream_config import StreamConfig
from liftpy_log.errors import PartitionOfflineError, StorageFullError
from liftpy_server.messages.incoming import read_message, refusal_of, with_batch
from liftpy_server.messages.runs import Message
from support.envelopes import CHANCE, MALFORMED, PRODUCER, batch, envelope, idempotent
from support.examples import examples
from support.nats_frames import header_block, replies, tokens, values

CONFIG = StreamConfig(name="orders", subject="orders.>", message_bytes_max=1_000)


def config(**settings):
    return StreamConfig.from_plain(CONFIG.to_plain() | settings)


def read(value=b"v", headers=None, *, reply=b"r", stream=CONFIG, skip=0, subject=b"orders.a"):
    return read_message(Message(subject, reply, headers, value), stream, skip)


def code_of(incoming):
    return None if incoming.refusal is None else incoming.refusal.code


def test_plain_message():
    incoming = read()
    assert incoming[:5] == (b"orders.a", None, b"v", b"r", b"r")
    assert (incoming.batch, incoming.is_lookalike, incoming.refusal) == (None, False, None)


def test_prefix_of_the_subject_is_not_stored():
    assert read(subject=b"lift.2.orders.a", skip=7).subject == b"orders.a"


def test_headers_that_mean_nothing_here_are_kept():
    block = header_block(Traceparent="00-1", X="Nats-Msg-Id: 5")
    incoming = read(headers=block)
    assert (block, None, None) == (incoming.headers, incoming.options.message_id, incoming.refusal)


def test_headers_that_are_understood():
    block = header_block(
        Lift_Key="k", Nats_Msg_Id="m", Lift_Ack="leader", Lift_Correlation_Id="c", Lift_Expected_Offset="42"
    )
    options = read(headers=block).options
    assert (options.key, options.message_id, options.ack_policy) == (b"k", b"m", AckPolicy.LEADER)
    assert (options.correlation_id, options.expected_offset) == ("c", 42)


def test_a_plain_message_deletes_its_key_by_a_header():
    block = header_block(Lift_Key="k", Lift_Tombstone="true")
    incoming = read(b"", block)
    assert (incoming.options.key, incoming.value, incoming.headers, incoming.refusal) == (b"k", None, block, None)
    assert read(b"", header_block(Lift_Key="k")).value == b"", "an empty payload is a value"


def test_an_envelope_deletes_its_key_by_a_value_of_nil():
    incoming = read(envelope(None, key=b"k"))
    assert (incoming.options.key, incoming.value, incoming.refusal) == (b"k", None, None)


@pytest.mark.parametrize(
    ("value", "headers", "told"),
    [
        (b"v", {"Lift_Key": "k", "Lift_Tombstone": "true"}, "empty payload"),
        (b"", {"Lift_Tombstone": "true"}, "no key"),
        (b"", {"Lift_Key": "k", "Lift_Tombstone": "1"}, "not true"),
        (b"", {"Lift_Key": "k", "Lift_Tombstone": "false"}, "not true"),
        (batch([b"1"]), {"Lift_Key": "k", "Lift_Tombstone": "true"}, "empty payload"),
    ],
)
def test_what_can_be_no_tombstone_is_refused(value, headers, told):
    incoming = read(value, header_block(**headers))
    assert code_of(incoming) is AckErrorCode.MALFORMED
    assert told in incoming.refusal.description


def test_keys_may_be_a_mebibyte_long_and_no_longer():
    stream = config(message_bytes_max=64 * 1024 * 1024)
    longest, longer = b"k" * KEY_BYTES_MAX, b"k" * (KEY_BYTES_MAX + 1)
    assert read(envelope(b"v", key=longest), stream=stream).refusal is None
    keyed = pa.array([b"a", longest, None], pa.binary())
    values_of_it = pa.array([b"1", b"2", b"3"], pa.binary())
    assert read(encode_batch({"key": keyed, "value": values_of_it}), stream=stream).refusal is None
    keyed = pa.array([b"a", longer, None], pa.binary())
    for message in (envelope(b"v", key=longer), encode_batch({"key": keyed, "value": values_of_it})):
        incoming = read(message, stream=stream)
        assert code_of(incoming) is AckErrorCode.TOO_LARGE
        assert f"key of {KEY_BYTES_MAX + 1} bytes" in incoming.refusal.description


def test_expected_last_sequence_is_the_next_offset():
    assert read(headers=header_block(Nats_Expected_Last_Sequence="42")).options.expected_offset == 42


@pytest.mark.parametrize("name", ["Nats-Expected-Last-Sequence", "Lift-Expected-Offset"])
@pytest.mark.parametrize("value", ["-5", "x", "", "1.5", "99999999999999999999", "+1"])
def test_offset_that_is_none(name, value):
    incoming = read(headers=header_block(**{name: value}))
    assert (code_of(incoming), incoming.destination) == (AckErrorCode.MALFORMED, b"r")
    assert name in incoming.refusal.description


def test_expected_stream():
    assert code_of(read(headers=header_block(Nats_Expected_Stream="orders"))) is None
    assert code_of(read(headers=header_block(Nats_Expected_Stream="other"))) == AckErrorCode.WRONG_STREAM


def test_message_envelope():
    value = envelope(
        b"inner", key=b"k", headers={"A": "b"}, ack_inbox="inbox.1", ack_policy=AckPolicy.LEADER, msg_id=b"m"
    )
    incoming = read(value)
    assert (
        incoming.headers,
        incoming.value,
        incoming.destination,
    ) == (b"NATS/1.0\r\nA: b\r\n\r\n", b"inner", b"inbox.1")
    assert (
        incoming.options.key,
        incoming.options.message_id,
        incoming.options.ack_policy,
    ) == (b"k", b"m", AckPolicy.LEADER)


def test_tombstone():
    assert (read(envelope(None)).value, read(envelope(None)).refusal) == (None, None)


def test_what_the_envelope_leaves_open_comes_from_the_headers():
    block = header_block(Lift_Key="outer", Nats_Msg_Id="outer")
    incoming = read(envelope(b"v", key=b"inner"), block)
    assert (b"inner", b"outer", block) == (incoming.options.key, incoming.options.message_id, incoming.headers)


def test_batch_envelope():
    incoming = read(idempotent([b"a", b"b"], 5, ack_inbox="inbox"))
    assert (
        incoming.batch.count,
        incoming.batch.producer_id,
        incoming.batch.producer_sequence,
        incoming.value,
    ) == (2, PRODUCER, 5, b"")


def test_batch_with_a_message_id_is_refused():
    incoming = read(batch([b"a"]), header_block(Nats_Msg_Id="m"))
    assert code_of(incoming) == AckErrorCode.MALFORMED


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_envelope(name):
    incoming = read(MALFORMED[name])
    assert (code_of(incoming), incoming.destination) == (AckErrorCode.MALFORMED, b"r")


@pytest.mark.parametrize("name", CHANCE)
def test_cookie_by_chance(name):
    incoming = read(CHANCE[name])
    assert (CHANCE[name], True, None) == (incoming.value, incoming.is_lookalike, incoming.refusal)


ANSWERS = [
    # acks, policy of the stream, of the message, has an inbox, expected destination
    ("reply", "all", None, False, b"r"),
    ("reply", "all", None, True, b"inbox"),
    ("reply", "all", AckPolicy.NONE, True, b""),
    ("reply", "none", None, True, b""),
    ("reply", "none", AckPolicy.ALL, False, b"r"),
    ("envelope", "all", None, False, b""),
    ("envelope", "all", None, True, b"inbox"),
    ("envelope", "none", AckPolicy.LEADER, True, b"inbox"),
    ("off", "all", AckPolicy.LEADER, True, b""),
]


@pytest.mark.parametrize(("acks", "stream_policy", "policy", "inbox", "expected"), ANSWERS)
def test_where_the_ack_goes(acks, stream_policy, policy, inbox, expected):
    value = envelope(b"v", ack_policy=policy, ack_inbox="inbox" if inbox else None)
    incoming = read(value, stream=config(acks=acks, ack_policy=stream_policy))
    assert expected == incoming.destination


@pytest.mark.parametrize(("acks", "expected"), [("reply", b"r"), ("envelope", b""), ("off", b"")])
def test_where_the_refusal_of_an_unreadable_message_goes(acks, expected):
    for value, block in ((MALFORMED["no map"], None), (b"v", header_block(Lift_Ack="maybe"))):
        assert expected == read(value, block, stream=config(acks=acks)).destination


@pytest.mark.parametrize(("size", "expected"), [(1_000, None), (1_001, AckErrorCode.TOO_LARGE)])
def test_largest_message(size, expected):
    assert expected == code_of(read(bytes(size)))
    assert expected == code_of(read(envelope(bytes(size))))


UNSUPPORTED = [
    "Nats-Rollup",
    "Nats-TTL",
    "Nats-Incr",
    "Nats-Batch-Id",
    "Nats-Expected-Last-Subject-Sequence",
    "Lift-New",
]


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_header_is_refused_where_it_can_be_told(name):
    incoming = read(headers=header_block(**{name: "x"}))
    assert code_of(incoming) == AckErrorCode.UNSUPPORTED
    assert name in incoming.refusal.description


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_header_of_who_asked_for_no_answer_is_no_refusal(name):
    incoming = read(headers=header_block(**{name: "x"}), reply=b"")
    assert (None, name) == (incoming.refusal, incoming.options.unsupported)


def test_unsupported_header_of_who_waits_for_an_answer_that_never_comes_is_refused():
    incoming = read(headers=header_block(Nats_Rollup="all"), stream=config(acks="envelope"))
    assert (code_of(incoming), incoming.destination) == (AckErrorCode.UNSUPPORTED, b"")


@given(st.binary(min_size=1, max_size=20), tokens, st.integers(1, 50))
@examples(100)
def test_partition_by_key_then_by_subject(key, subject, count):
    keyed = read(envelope(b"v", key=key), subject=subject)
    assert partition_of(key, count) == keyed.partition(count)
    assert partition_of(subject, count) == read(subject=subject).partition(count)


@pytest.mark.parametrize("chosen", [0, 3, 7])
def test_partition_of_a_batch_is_the_publishers_choice(chosen):
    assert chosen == read(batch([b"a"], partition=chosen)).partition(8)
    assert partition_of(b"orders.a", 8) == read(batch([b"a"])).partition(8)


@given(tokens, replies, st.one_of(st.none(), st.binary(max_size=60), st.just(b"NATS/1.0\r\nNats-Msg-Id:")), values)
@examples(200)
def test_any_message_is_read_or_refused(subject, reply, headers, value):
    incoming = read_message(Message(subject, reply, headers, value), CONFIG, 0)
    assert (subject, reply) == (incoming.subject, incoming.reply)


def test_refusal_of_errors_of_the_log():
    assert refusal_of(StorageFullError("x")).code == AckErrorCode.STORAGE_FULL
    assert refusal_of(PartitionOfflineError("x")).code == AckErrorCode.PARTITION_OFFLINE


STAGED = encode_staged(
    *(StagedSection("spark/staging/k", 0, 10, 2, 5), 1),
    stream="orders",
    producer_id=PRODUCER,
    producer_sequence=7,
    ack_inbox="inbox",
    partition=4,
)


def test_a_batch_that_is_staged_is_as_good_as_one_that_came_once_it_was_read():
    incoming = read(STAGED)
    assert (incoming.value, incoming.destination, incoming.refusal) == (b"", b"inbox", None)
    assert incoming.partition(3) == 1
    came = decode_envelope(batch([b"a", b"b"]))
    whole = with_batch(incoming, came, CONFIG)
    assert (whole.staged, whole.destination, whole.refusal) == (None, b"inbox", None)
    assert (whole.batch.producer_id, whole.batch.producer_sequence, whole.batch.count) == (PRODUCER, 7, 2)
    key_of_a_mib = decode_envelope(batch([b"a"], keys=[bytes(KEY_BYTES_MAX + 1)]))
    assert code_of(with_batch(incoming, key_of_a_mib, CONFIG)) is AckErrorCode.TOO_LARGE


@pytest.mark.parametrize("header", ["Nats-Msg-Id", "Lift-Tombstone"])
def test_a_batch_that_is_staged_has_neither_an_id_nor_is_it_a_tombstone(header):
    assert code_of(read(STAGED, b"NATS/1.0\r\n%b: true\r\nLift-Key: k\r\n\r\n" % header.encode())) is (
        AckErrorCode.MALFORMED
    )


def test_a_batch_that_is_staged_is_for_the_stream_that_it_names():
    assert code_of(read(STAGED, stream=config(name="others"))) is AckErrorCode.WRONG_STREAM
