"""Every message that is not stored is answered with its error where it can be, and is a gap of known size where not."""

from __future__ import annotations

import errno

import pytest

from liftpy_envelope.errors import AckErrorCode
from support.envelopes import CHANCE, MALFORMED, batch, envelope
from support.nats_frames import header_block, msg
from support.server_kit import NOW_NS


def pause(kit):
    kit.stream.paused = True


def make_read_only(kit):
    kit.stream.read_only = True


def fill_the_node(kit):
    kit.partition.storage_full = True


def fill_the_disk(kit):
    kit.disk.is_full = True


def break_the_log(kit):
    kit.log.durability.fail("told to")


def break_the_disk(kit):
    kit.disk.write_errors.append(errno.EIO)


STATES = [
    (pause, AckErrorCode.PAUSED),
    (make_read_only, AckErrorCode.READ_ONLY),
    (fill_the_node, AckErrorCode.STORAGE_FULL),
    (fill_the_disk, AckErrorCode.STORAGE_FULL),
    (break_the_log, AckErrorCode.PARTITION_OFFLINE),
    (break_the_disk, AckErrorCode.PARTITION_OFFLINE),
]
MESSAGES = {
    "plain": (b"v", None),
    "with headers": (b"v", header_block(A="b")),
    "with a key": (b"v", header_block(Lift_Key="k")),
    "in an envelope": (envelope(b"v"), None),
    "in a batch": (batch([b"1", b"2"]), None),
}
OFFENCES = {
    "too large": (bytes(101), None, AckErrorCode.TOO_LARGE),
    "too large with headers": (bytes(101), header_block(A="b"), AckErrorCode.TOO_LARGE),
    "headers too large": (b"v", header_block(A="b" * 100), AckErrorCode.TOO_LARGE),
    "an id too large together": (bytes(60), header_block(Nats_Msg_Id="x" * 30), AckErrorCode.TOO_LARGE),
    "headers too large in an envelope": (envelope(b"v", headers={"A": "b" * 100}), None, AckErrorCode.TOO_LARGE),
    "too large in an envelope": (envelope(bytes(101)), None, AckErrorCode.TOO_LARGE),
    "too large a batch": (batch([bytes(60), bytes(60)]), None, AckErrorCode.TOO_LARGE),
    "another stream": (b"v", header_block(Nats_Expected_Stream="x"), AckErrorCode.WRONG_STREAM),
    "wrong offset": (b"v", header_block(Lift_Expected_Offset="9"), AckErrorCode.WRONG_EXPECTED_OFFSET),
    "wrong sequence": (b"v", header_block(Nats_Expected_Last_Sequence="9"), AckErrorCode.WRONG_EXPECTED_OFFSET),
    "no offset": (b"v", header_block(Lift_Expected_Offset="-5"), AckErrorCode.MALFORMED),
    "no sequence": (b"v", header_block(Nats_Expected_Last_Sequence="-5"), AckErrorCode.MALFORMED),
    "no policy": (b"v", header_block(Lift_Ack="maybe"), AckErrorCode.MALFORMED),
    "long id": (b"v", header_block(Nats_Msg_Id="x" * 1_025), AckErrorCode.MALFORMED),
    "malformed envelope": (MALFORMED["wrong type"], None, AckErrorCode.MALFORMED),
    "malformed batch": (MALFORMED["batch of nothing"], None, AckErrorCode.MALFORMED),
}


@pytest.mark.parametrize(("spoil", "code"), STATES)
@pytest.mark.parametrize("name", MESSAGES)
def test_state_of_the_stream_refuses_with_an_answer(kit, spoil, code, name):
    value, headers = MESSAGES[name]
    spoil(kit)
    kit.receive(msg(b"orders.a", value, reply=b"r", headers=headers))
    kit.sync()
    assert ([(b"r", code)], 0, 1) == (kit.errors(), kit.log.log_end, kit.stream.counters.refused[code.name.lower()])
    assert kit.gaps() == ()


@pytest.mark.parametrize(("spoil", "code"), STATES)
@pytest.mark.parametrize("name", MESSAGES)
def test_state_of_the_stream_refuses_silent_publishers(kit, spoil, code, name):
    value, headers = MESSAGES[name]
    spoil(kit)
    kit.receive(*[msg(b"orders.a", value, headers=headers)] * 3)
    kit.sync()
    (gap,) = kit.gaps()
    assert ([], code.name.lower(), 3, NOW_NS) == (kit.sent(), gap.cause, gap.messages, gap.since_ns)
    assert (kit.stream.counters.refused[code.name.lower()], kit.stream.counters.messages) == (3, 0)


@pytest.mark.parametrize("name", OFFENCES)
def test_offence_is_answered(make_kit, name):
    kit = make_kit(message_bytes_max=100)
    value, headers, code = OFFENCES[name]
    kit.receive(
        msg(b"orders.a", b"good"), msg(b"orders.a", value, reply=b"r", headers=headers), msg(b"orders.a", b"too")
    )
    kit.sync()
    assert ([(b"r", code)], [b"good", b"too"]) == (kit.errors(), kit.stored())
    assert ({code.name.lower(): 1}, []) == (dict(kit.stream.counters.refused), list(kit.gaps()))


@pytest.mark.parametrize("name", OFFENCES)
def test_offence_without_a_reply_is_a_gap_of_known_size(make_kit, name):
    kit = make_kit(message_bytes_max=100)
    value, headers, code = OFFENCES[name]
    kit.receive(*[msg(b"orders.a", value, headers=headers)] * 2)
    (gap,) = kit.gaps()
    assert ([], code.name.lower(), 2) == (kit.sent(), gap.cause, gap.messages)


@pytest.mark.parametrize("settings", [{"acks": "envelope"}, {"acks": "off"}, {"ack_policy": "none"}])
def test_refusal_never_goes_where_acks_do_not(make_kit, settings):
    kit = make_kit(message_bytes_max=100, **settings)
    kit.receive(msg(b"orders.a", bytes(101), reply=b"r"))
    assert (kit.sent(), [gap.messages for gap in kit.gaps()]) == ([], [1])


def test_refusal_goes_to_the_envelopes_inbox_with_its_correlation_id(make_kit):
    kit = make_kit(acks="envelope")
    pause(kit)
    kit.receive(msg(b"orders.a", envelope(b"v", ack_inbox="inbox", correlation_id="c"), reply=b"r"))
    ((subject, body),) = kit.acks()
    assert (subject, body["correlation_id"], body["stream"]) == (b"inbox", "c", "orders")


def test_refusal_has_the_form_of_jetstream(kit):
    pause(kit)
    kit.receive(msg(b"orders.a", b"v", reply=b"r"))
    ((_, body),) = kit.acks()
    assert body["type"] == "io.nats.jetstream.api.v1.pub_ack_response"
    assert body["error"] == {"code": 503, "err_code": 20003, "description": "stream orders is paused"}


def test_unsupported_header_is_refused_with_an_answer(kit):
    kit.receive(msg(b"orders.a", b"v", reply=b"r", headers=header_block(Nats_Rollup="all")))
    assert (kit.errors(), kit.records()) == ([(b"r", AckErrorCode.UNSUPPORTED)], [])


def test_unsupported_header_without_a_reply_is_stored_and_counted(kit):
    block = header_block(Nats_Rollup="all")
    kit.receive(msg(b"orders.a", b"v", headers=block), msg(b"orders.a", b"w"))
    assert [(block, b"v"), (None, b"w")] == [(record.headers, record.value) for record in kit.records()]
    assert (kit.stream.counters.unsupported_stored, kit.stream.counters.refused.total()) == (1, 0)


@pytest.mark.parametrize("name", CHANCE)
@pytest.mark.parametrize("company", [0, 200])
def test_cookie_by_chance_is_stored_as_it_is_and_counted(kit, name, company):
    others = [msg(b"orders.a", b"other %d" % number) for number in range(company)]
    kit.receive(*others, msg(b"orders.a", CHANCE[name], reply=b"r"), *others)
    kit.sync()
    values = [other.value for other in others]
    assert ([*values, CHANCE[name], *values], [(b"r", company)]) == (kit.stored(), kit.offsets())
    assert kit.stream.counters.lookalikes == 1


def test_batch_whose_records_become_too_large_is_refused(kit):
    """Each record has the subject that the batch came on: a long one makes a small payload a huge batch."""
    subject = b"orders." + b"s" * 3_000
    kit.receive(msg(subject, batch([b""] * 50_000), reply=b"r"))
    assert (kit.errors(), kit.log.log_end) == ([(b"r", AckErrorCode.TOO_LARGE)], 0)


def test_stream_takes_messages_again(kit):
    pause(kit)
    kit.receive(msg(b"orders.a", b"1", reply=b"r"))
    kit.stream.paused = False
    kit.receive(msg(b"orders.a", b"2", reply=b"r"))
    kit.sync()
    assert (kit.stored(), len(kit.sent())) == ([b"2"], 2)


def test_limit_that_was_raised_holds_at_once(make_kit):
    kit = make_kit(message_bytes_max=10)
    kit.receive(msg(b"orders.a", bytes(11)))
    kit.change(message_bytes_max=11)
    kit.receive(msg(b"orders.a", bytes(11)))
    assert [bytes(11)] == kit.stored()


def test_one_large_message_among_many(make_kit):
    kit = make_kit(message_bytes_max=100)
    frames = [msg(b"orders.a", bytes(101 if number == 77 else 50), reply=b"r%d" % number) for number in range(200)]
    kit.receive(*frames)
    kit.sync()
    answers = dict(kit.acks())
    assert answers.pop(b"r77")["error"]["err_code"] == AckErrorCode.TOO_LARGE
    assert list(range(199)) == [answers[b"r%d" % number]["offset"] for number in range(200) if number != 77]
