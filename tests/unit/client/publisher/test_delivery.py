"""How single messages are wrapped for NATS."""

from __future__ import annotations

import pytest

from liftpy_client.errors import UsageError
from liftpy_client.publisher.delivery import OutgoingMessage
from liftpy_client.publisher.routes import Route
from liftpy_envelope.ack import AckPolicy
from liftpy_envelope.envelope import COOKIE, decode_envelope
from liftpy_envelope.errors import HeaderError
from liftpy_envelope.stream_config import StreamConfig


def wrap(value=b"v", config=None, **given):
    route = Route("s.x", StreamConfig.from_plain({"name": "s", "subject": "s.>"} | (config or {})))
    payload, options = OutgoingMessage(value, **given).wrap(route, "_INBOX.1")
    return payload, options


def test_plain_where_headers_can_say_it():
    given = {"key": b"k", "headers": {"A": "b"}, "message_id": "m", "expected_offset": 7}
    payload, options = wrap(**given, ack_policy=AckPolicy.LEADER)
    assert payload == b"v"
    assert options == {
        "reply": "_INBOX.1",
        "headers": {
            "A": "b", "Nats-Msg-Id": "m", "Lift-Key": "k", "Lift-Expected-Offset": "7", "Lift-Ack": "leader",
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "given"),
    [
        (None, {}),
        (b"v", {"key": b""}),
        (b"v", {"key": b" edge"}),
        (b"v", {"key": b"\x00\r\n"}),
        (b"v", {"message_id": "two\r\nlines"}),
        (b"v", {"message_id": " edge "}),
        (b"v", {"message_id": "\u00fc"}),
        (COOKIE + b"by chance", {}),
    ],
)
def test_an_envelope_where_they_can_not(value, given):
    payload, options = wrap(value, **given)
    assert options == {}
    envelope = decode_envelope(payload)
    assert envelope.value == value
    assert envelope.options.key == given.get("key")
    assert envelope.options.ack_inbox == b"_INBOX.1"
    if "message_id" in given:
        assert envelope.options.message_id == given["message_id"].encode()


def test_streams_that_leave_reply_subjects_alone_get_envelopes():
    payload, options = wrap(config={"acks": "envelope"}, headers={"A": "b"})
    assert options == {}
    assert b"A: b" in decode_envelope(payload).headers


def test_the_publishers_own_id_is_used():
    _, options = wrap(headers={"Nats-Msg-Id": "mine"})
    assert options["headers"]["Nats-Msg-Id"] == "mine"
    _, options = wrap(headers={"Nats-Msg-Id": "mine"}, message_id="wins")
    assert options["headers"]["Nats-Msg-Id"] == "wins"
    ids = {wrap()[1]["headers"]["Nats-Msg-Id"] for _ in range(10)}
    assert len(ids) == 10


def test_whoever_waits_for_an_ack_asks_for_it():
    _, options = wrap(config={"ack_policy": "none"})
    assert options["headers"]["Lift-Ack"] == "all"


@pytest.mark.parametrize("headers", [{"A": "b\r\nC: d"}, {"A": 1}, {"A B": "c"}, {"A:": "b"}, {"A": " b"}])
def test_headers_that_would_not_arrive_as_they_are(headers):
    with pytest.raises(HeaderError):
        OutgoingMessage(b"v", headers=headers)


@pytest.mark.parametrize(
    "given", [{"value": "text"}, {"value": 5}, {"value": b"", "key": "k"}, {"value": b"", "expected_offset": -1}]
)
def test_senseless_messages(given):
    with pytest.raises(UsageError, match=r"bytes|offset"):
        OutgoingMessage(given.pop("value"), **given)


def test_a_header_that_asks_for_a_tombstone_makes_one_in_an_envelope_too():
    payload, _ = wrap(b"", config={"acks": "envelope"}, key=b"k", headers={"A": "b", "Lift-Tombstone": "true"})
    envelope = decode_envelope(payload)
    assert envelope.value is None
    assert b"Lift-Tombstone" not in envelope.headers
    assert b"A: b" in envelope.headers
