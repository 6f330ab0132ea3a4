"""Messages with options are stored once, where they expect to be, and in the order in which they came."""

from __future__ import annotations

import pyarrow as pa
import pytest

from liftpy_envelope.batch import NO_PRODUCER
from liftpy_envelope.columns import Column
from liftpy_envelope.envelope import encode_batch
from liftpy_envelope.errors import AckErrorCode
from liftpy_log.errors import StorageFullError
from liftpy_log.ids.ordered import OrderedProducers
from liftpy_log.partition_log import LogConfig
from support.batches import batches_of
from support.envelopes import PRODUCER, batch, envelope, idempotent
from support.nats_frames import header_block, msg


def with_id(value, message_id, reply=b"r", **headers):
    return msg(b"orders.a", value, reply=reply, headers=header_block(Nats_Msg_Id=message_id, **headers))


def answers(kit):
    """Acks that say whether the message was there before: (destination, offset, duplicate)."""
    kit.sync()
    return [(subject, ack["offset"], ack.get("duplicate", False)) for subject, ack in kit.acks()]


def test_columns_are_what_the_messages_have(kit):
    kit.receive(msg(b"orders.a", envelope(b"v", key=b"k", headers={"A": "b"}, msg_id=b"m")), msg(b"orders.b", b"w"))
    first, second = kit.records()
    assert first[2:] == (b"orders.a", b"k", b"NATS/1.0\r\nA: b\r\n\r\n", b"v", b"m", None)
    assert second[2:] == (b"orders.b", None, None, b"w", None, None)


def test_columns_that_no_message_has_are_left_out(kit):
    kit.receive(msg(b"orders.a", b"v", headers=header_block(A="b")))
    kit.receive(msg(b"orders.a", envelope(b"v", key=b"k")))
    kit.receive(msg(b"orders.a", envelope(None)))
    always = Column.SUBJECT | Column.VALUE
    assert [always | Column.HEADERS, always | Column.KEY, always] == [h.columns for h in batches_of(kit.log)]


def test_headers_are_stored_as_they_came(kit):
    block = b"NATS/1.0\r\nNats-Msg-Id:  7 \r\nlift-key: x\r\nA:b\r\n\r\n"
    kit.receive(msg(b"orders.a", b"v", headers=block))
    assert (block, b"7", None) == (kit.records()[0].headers, kit.records()[0].message_id, kit.records()[0].key)


def test_tombstone(kit):
    kit.receive(msg(b"orders.a", envelope(None, key=b"k"), reply=b"r"), msg(b"orders.a", envelope(b"", key=b"k")))
    assert (kit.stored(), answers(kit)) == ([None, b""], [(b"r", 0, False)])


@pytest.mark.parametrize("form", ["header", "envelope"])
def test_message_id_is_stored_once(kit, form):
    def frame(value, reply):
        if form == "header":
            return with_id(value, "m", reply)
        return msg(b"orders.a", envelope(value, msg_id=b"m", ack_inbox=reply.decode()))

    kit.receive(msg(b"orders.a", b"before"), frame(b"1", b"r1"))
    kit.receive(frame(b"2", b"r2"))
    assert (kit.stored(), kit.stream.counters.duplicates) == ([b"before", b"1"], 1)
    assert answers(kit) == [(b"r1", 1, False), (b"r2", 1, True)]


def test_header_and_envelope_share_their_ids(kit):
    kit.receive(with_id(b"1", "m"), msg(b"orders.a", envelope(b"2", msg_id=b"m")))
    assert kit.stored() == [b"1"]


def test_duplicates_inside_one_pass(kit):
    kit.receive(with_id(b"1", "a"), with_id(b"2", "b"), with_id(b"3", "a"), with_id(b"4", "c"), with_id(b"5", "b"))
    assert kit.stored() == [b"1", b"2", b"4"]
    assert sorted(given[1:] for given in answers(kit)) == [(0, False), (0, True), (1, False), (1, True), (2, False)]


@pytest.mark.parametrize("policy", ["leader", "all"])
def test_ack_of_a_duplicate_waits_for_the_commit_of_the_original(make_kit, policy):
    kit = make_kit(ack_policy=policy)
    kit.receive(with_id(b"1", "m", b"r1"))
    kit.receive(with_id(b"1", "m", b"r2"))
    kit.outbox.flush()
    assert kit.sent() == []
    assert answers(kit) == [(b"r1", 0, False), (b"r2", 0, True)]


def test_duplicate_of_a_committed_message_is_answered_at_once(kit):
    kit.receive(with_id(b"1", "m", b"r1"))
    kit.sync()
    kit.sent()
    kit.receive(with_id(b"1", "m", b"r2"))
    assert kit.offsets() == [(b"r2", 0)]


def test_duplicate_answers_nobody_who_does_not_ask(kit):
    kit.receive(with_id(b"1", "m", b""), with_id(b"2", "m", b""))
    assert (answers(kit), kit.stream.counters.duplicates, kit.stream.counters.refused.total()) == ([], 1, 0)


def test_message_id_is_forgotten_after_the_window(make_kit):
    kit = make_kit(dedupe_window_s=10)
    kit.receive(with_id(b"1", "m"))
    kit.clock.advance(10)
    kit.receive(with_id(b"2", "m"))
    kit.clock.advance(0.1)
    kit.receive(with_id(b"3", "m"))
    assert kit.stored() == [b"1", b"3"]


@pytest.mark.parametrize("settings", [{"dedupe_window_s": 0}, {"dedupe_ids_max": 0}])
def test_deduplication_can_be_turned_off(make_kit, settings):
    kit = make_kit(**settings)
    kit.receive(with_id(b"1", "m"), with_id(b"2", "m"))
    kit.receive(with_id(b"3", "m"))
    assert kit.stored() == [b"1", b"2", b"3"]


def test_only_so_many_ids_are_remembered(make_kit):
    kit = make_kit(dedupe_ids_max=2)
    kit.receive(*(with_id(b"1", name) for name in "abc"))
    kit.receive(with_id(b"2", "c"), with_id(b"2", "a"))
    assert kit.stored() == [b"1", b"1", b"1", b"2"]


def test_refused_message_is_not_remembered(kit):
    kit.receive(with_id(b"1", "m", Lift_Expected_Offset="5"))
    kit.receive(with_id(b"2", "m"))
    assert kit.stored() == [b"2"]


def test_message_that_found_the_disk_full_is_not_remembered(kit):
    kit.disk.is_full = True
    kit.receive(with_id(b"1", "m"), with_id(b"2", "m"))
    kit.disk.is_full = False
    kit.sent()
    kit.receive(with_id(b"3", "m"))
    assert (kit.stored(), answers(kit)) == ([b"3"], [(b"r", 0, False)])


def test_duplicate_comes_before_an_expectation_that_its_original_met(kit):
    for reply in (b"r1", b"r2"):
        kit.receive(with_id(b"v", "m", reply, Lift_Expected_Offset="0"))
    assert answers(kit) == [(b"r1", 0, False), (b"r2", 0, True)]


@pytest.mark.parametrize("header", ["Lift_Expected_Offset", "Nats_Expected_Last_Sequence"])
def test_expected_offset_within_a_pass(kit, header):
    def frame(value, expected):
        return msg(b"orders.a", value, reply=value, headers=header_block(**{header: str(expected)}))

    kit.receive(
        msg(b"orders.a", b"plain"), frame(b"right", 1), frame(b"late", 1), frame(b"early", 3), frame(b"next", 2)
    )
    kit.sync()
    found = {subject: ack.get("offset", ack.get("error", {}).get("err_code")) for subject, ack in kit.acks()}
    wrong = AckErrorCode.WRONG_EXPECTED_OFFSET
    assert {b"right": 1, b"late": wrong, b"early": wrong, b"next": 2} == found
    assert kit.stored() == [b"plain", b"right", b"next"]


def test_wrong_offset_names_the_next_one(kit):
    kit.receive(
        msg(b"orders.a", b"1"), msg(b"orders.a", b"2", reply=b"r", headers=header_block(Lift_Expected_Offset="0"))
    )
    ((_, body),) = kit.acks()
    assert "wrong last sequence: 1" in body["error"]["description"]


def test_batch_of_many_records(kit):
    kit.receive(msg(b"orders.a", b"before"))
    keys = [b"k", None, b"l"]
    kit.receive(
        msg(b"orders.b", batch([b"1", None, b"3"], keys=keys, ack_inbox="inbox", correlation_id="c"), reply=b"r")
    )
    assert [(record.offset, record.subject, record.key, record.value) for record in kit.records()[1:]] == [
        (1, b"orders.b", b"k", b"1"),
        (2, b"orders.b", None, None),
        (3, b"orders.b", b"l", b"3"),
    ]
    kit.sync()
    ((subject, ack),) = kit.acks()
    assert (subject, ack["offset"], ack["seq"], ack["count"], ack["correlation_id"]) == (b"inbox", 3, 4, 3, "c")
    assert (kit.stream.counters.messages, kit.stream.counters.bytes) >= (4, 1 + 2 + 4 * 4 * 2)


def test_batch_with_header_blocks(kit):
    block = header_block(A="b")
    records = {"headers": pa.array([block, None], pa.binary()), "value": pa.array([b"1", b"2"], pa.binary())}
    kit.receive(msg(b"orders.a", encode_batch(records)))
    assert [(block, b"1"), (None, b"2")] == [(record.headers, record.value) for record in kit.records()]


def test_batches_and_messages_keep_their_order(kit):
    kit.receive(
        msg(b"orders.a", b"1", reply=b"r1"),
        msg(b"orders.a", batch([b"2", b"3"]), reply=b"r2"),
        with_id(b"4", "m", b"r3"),
        with_id(b"5", "n", b"r4"),
        msg(b"orders.a", batch([b"6"]), reply=b"r5"),
        msg(b"orders.a", b"7", reply=b"r6"),
    )
    assert [b"%d" % number for number in range(1, 8)] == kit.stored()
    assert [a[:2] for a in answers(kit)] == [(b"r1", 0), (b"r2", 2), (b"r3", 3), (b"r4", 4), (b"r5", 5), (b"r6", 6)]


def test_idempotent_batch_is_stored_once(kit):
    for reply in (b"r1", b"r2"):
        kit.receive(msg(b"orders.a", idempotent([b"1", b"2"], 0), reply=reply))
    kit.receive(msg(b"orders.a", idempotent([b"3"], 1), reply=b"r3"))
    assert (kit.stored(), kit.stream.counters.duplicates) == ([b"1", b"2", b"3"], 1)
    kit.sync()
    found = [(subject, ack["offset"], ack["count"], ack.get("duplicate", False)) for subject, ack in kit.acks()]
    assert found == [(b"r1", 1, 2, False), (b"r2", 1, 2, True), (b"r3", 2, 1, False)]


def test_idempotent_batch_twice_in_one_pass(kit):
    frame = msg(b"orders.a", idempotent([b"1", b"2"], 7), reply=b"r")
    kit.receive(frame, msg(b"orders.a", b"between"), frame)
    assert kit.stored() == [b"1", b"2", b"between"]
    assert answers(kit) == [(b"r", 1, False), (b"r", 1, True)]


def test_sequences_of_other_producers_are_others(kit):
    for producer in (PRODUCER, bytes([9]) * 16):
        kit.receive(msg(b"orders.a", batch([b"v"], producer_id=producer, producer_sequence=0)))
    assert len(kit.records()) == 2


def test_producer_stands_in_the_batch_header(kit):
    kit.receive(msg(b"orders.a", idempotent([b"1"], 5)), msg(b"orders.a", batch([b"2"])))
    expected = [(PRODUCER, 5), (NO_PRODUCER, -1)]
    assert expected == [(header.producer_id, header.producer_sequence) for header in batches_of(kit.log)]


def test_batch_that_is_not_idempotent_is_stored_twice(kit):
    frame = msg(b"orders.a", batch([b"1"]))
    kit.receive(frame, frame)
    assert kit.stored() == [b"1", b"1"]


@pytest.mark.parametrize(("expected", "stored"), [(1, 3), (0, 1), (2, 1)])
def test_expected_offset_of_a_batch_is_that_of_its_first_record(kit, expected, stored):
    kit.receive(
        msg(b"orders.a", b"before"), msg(b"orders.a", batch([b"1", b"2"], expected_offset=expected), reply=b"r")
    )
    assert stored == len(kit.records())


def test_batch_on_a_full_disk_is_not_remembered(kit):
    frame = msg(b"orders.a", idempotent([b"1", b"2"], 0), reply=b"r")
    kit.disk.is_full = True
    kit.receive(frame)
    assert kit.errors() == [(b"r", AckErrorCode.STORAGE_FULL)]
    kit.disk.is_full = False
    kit.receive(frame)
    assert (kit.stored(), answers(kit)) == ([b"1", b"2"], [(b"r", 1, False)])


def test_many_bytes_are_cut_into_batches(kit):
    values = [bytes([number]) * 400_000 for number in range(7)]
    kit.receive(*(msg(b"orders.a", value, headers=header_block(A="b"), reply=b"r") for value in values))
    assert (values, list(range(7))) == (kit.stored(), [given[1] for given in answers(kit)])
    assert [header.record_count for header in batches_of(kit.log)] == [3, 3, 1]


def test_counters(kit):
    kit.receive(with_id(b"12", "a"), with_id(b"345", "b"), with_id(b"6", "a"), msg(b"orders.a", envelope(None)))
    counters = kit.stream.counters
    assert (counters.messages, counters.bytes, counters.duplicates) == (3, 5, 1)


def of_source(values, sequence, *, epoch=1, reply=b"r", **options):
    return msg(b"orders.a", idempotent(values, sequence, producer_epoch=epoch, ack_inbox=reply.decode(), **options))


def test_a_batch_of_an_ordered_producer_is_stored_once_and_never_late(kit):
    kit.receive(of_source([b"1", b"2"], 10, reply=b"a"), of_source([b"3"], 20, reply=b"b"))
    again = [of_source([b"x"], sequence, reply=b"c") for sequence in (10, 15, 20)]
    kit.receive(*again, of_source([b"x"], 99, epoch=0, reply=b"d"), of_source([b"4"], 5, epoch=2, reply=b"e"))
    assert kit.stored() == [b"1", b"2", b"3", b"x", b"4"]
    told = [(b"a", 1, False), (b"b", 2, False), *[(b"c", 2, True)] * 3, (b"d", 3, False), (b"e", 4, False)]
    assert sorted(answers(kit)) == told


def test_an_ordered_producer_is_known_without_a_dedupe_window(make_kit):
    kit = make_kit(dedupe_window_s=0)
    kit.receive(of_source([b"1"], 10), of_source([b"2"], 10))
    assert kit.stored() == [b"1"]


def test_ack_of_an_ordered_duplicate_waits_for_the_commit_of_the_original(kit):
    kit.receive(of_source([b"1"], 10, reply=b"a"))
    kit.receive(of_source([b"1"], 10, reply=b"b"))
    assert kit.acks() == []
    assert answers(kit) == [(b"a", 0, False), (b"b", 0, True)]


def test_too_many_ordered_producers_are_refused(kit):
    kit.partition.dedupe.ordered = OrderedProducers(producers_max=1)
    kit.receive(of_source([b"1"], 10))
    other = batch([b"2"], producer_id=bytes(range(2, 18)), producer_sequence=1, producer_epoch=1, ack_inbox="r")
    kit.receive(msg(b"orders.a", other), of_source([b"3"], 11))
    kit.sync()
    assert kit.stored() == [b"1", b"3"]
    assert [ack["error"]["err_code"] for _, ack in kit.acks() if "error" in ack] == [AckErrorCode.TOO_MANY_PRODUCERS]


def test_a_full_disk_keeps_records_that_alone_tell_of_an_ordered_producer(make_kit):
    kit = make_kit(log=LogConfig(segment_bytes=500))
    other = {"producer_id": bytes(range(2, 18)), "producer_epoch": 1, "ack_inbox": "r"}
    kit.receive(msg(b"orders.a", batch([b"once"], producer_sequence=1, **other)))
    for sequence in range(20):
        kit.receive(of_source([b"x" * 100], sequence))
    kit.sync()
    kit.disk.is_full = True
    with pytest.raises(StorageFullError, match="ordered producers"):
        kit.partition.drop_before(15)
    assert kit.partition.log.log_start == 0
    kit.disk.is_full = False
    kit.partition.save_ordered()
    kit.receive(of_source([b"x" * 100], 99))
    kit.sync()
    kit.disk.is_full = True
    kit.partition.drop_before(15)
    assert 0 < kit.partition.log.log_start <= 15, "the file and the rest of the log say the same"
