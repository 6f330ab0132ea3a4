"""A partition gives out offsets in order, and acknowledges when records are as safe as was asked, never before."""

from __future__ import annotations

import errno

import pytest

from liftpy_envelope.errors import AckErrorCode, ErrorCode
from liftpy_log.partition_log import LogConfig
from support.batches import batches_of
from support.envelopes import batch, envelope
from support.nats_frames import header_block, msg
from support.server_kit import NOW_NS


def numbered(count, *, reply=True, subject=b"orders.a"):
    return [msg(subject, b"v%d" % number, reply=b"r%d" % number if reply else b"") for number in range(count)]


@pytest.mark.parametrize("count", [1, 3, 500])
def test_offsets_and_acks_of_plain_messages(kit, count):
    frames = numbered(count)
    kit.receive(*frames)
    kit.sync()
    assert [(frame.reply, offset) for offset, frame in enumerate(frames)] == kit.offsets()
    assert [(offset, frame.value) for offset, frame in enumerate(frames)] == [
        (record.offset, record.value) for record in kit.records()
    ]


def test_ack_says_where_the_message_is(kit):
    kit.receive(*numbered(2))
    kit.sync()
    expected = {"stream": "orders", "seq": 2, "offset": 1, "partition": 0, "epoch": 7, "count": 1}
    assert expected == kit.acks()[1][1]


def test_one_pass_is_one_batch(kit):
    kit.receive(*numbered(300))
    kit.receive(*numbered(2))
    assert [header.record_count for header in batches_of(kit.log)] == [300, 2]
    assert (kit.stream.counters.messages, kit.stream.counters.batches) == (302, 2)


def test_records_have_the_time_of_the_pass_and_it_never_goes_back(kit):
    for wall_s, passed_s in ((0, 0), (5, 5), (-100, 0), (3, 3)):
        kit.clock.ns += wall_s * 10**9
        kit.clock.seconds += passed_s
        kit.receive(*numbered(1))
    assert [(record.timestamp - NOW_NS) // 10**8 for record in kit.records()] == [0, 50, 50, 65]


def test_messages_without_a_reply_are_stored_silently(kit):
    kit.receive(*numbered(300, reply=False))
    kit.sync()
    assert (kit.sent(), len(kit.records())) == ([], 300)


@pytest.mark.parametrize("policy", ["leader", "all"])
def test_nothing_is_acknowledged_before_it_is_durable(make_kit, policy):
    kit = make_kit(ack_policy=policy, sync="always")
    kit.receive(*numbered(2))
    kit.outbox.flush()
    assert ([], 0, [kit.log]) == (kit.sent(), kit.partition.high_watermark, kit.sync_requests)
    kit.sync()
    assert (kit.offsets(), kit.partition.high_watermark) == ([(b"r0", 0), (b"r1", 1)], 2)


@pytest.mark.parametrize("sync", ["interval", "never"])
@pytest.mark.parametrize("policy", ["leader", "all"])
def test_streams_that_need_not_be_durable_acknowledge_at_once(make_kit, policy, sync):
    kit = make_kit(ack_policy=policy, sync=sync)
    kit.receive(*numbered(2))
    assert (kit.offsets(), kit.partition.high_watermark, kit.sync_requests) == ([(b"r0", 0), (b"r1", 1)], 2, [])


def test_stream_that_never_acknowledges(make_kit):
    kit = make_kit(ack_policy="none")
    kit.receive(*numbered(100))
    kit.sync()
    assert (kit.sent(), kit.partition.high_watermark) == ([], 100)


@pytest.mark.parametrize(("acks", "expected"), [("reply", [(b"r", 0)]), ("envelope", []), ("off", [])])
def test_reply_subject_is_touched_only_where_it_is_ours(make_kit, acks, expected):
    kit = make_kit(acks=acks)
    kit.receive(msg(b"orders.a", b"v", reply=b"r"))
    kit.receive(msg(b"orders.a", b"v", reply=b"q", headers=header_block(A="b", Lift_Ack="none")))
    kit.sync()
    assert (expected, 2) == (kit.offsets(), len(kit.records()))


@pytest.mark.parametrize(("acks", "expected"), [("reply", [b"inbox"]), ("envelope", [b"inbox"]), ("off", [])])
def test_ack_inbox_of_an_envelope(make_kit, acks, expected):
    kit = make_kit(acks=acks)
    kit.receive(msg(b"orders.a", envelope(b"v", ack_inbox="inbox"), reply=b"r"))
    kit.sync()
    assert expected == [subject for subject, _ in kit.offsets()]


def test_policy_of_a_message(kit):
    def frame(policy):
        return msg(b"orders.a", policy.encode(), reply=policy.encode(), headers=header_block(Lift_Ack=policy))

    kit.receive(frame("leader"), frame("none"), frame("all"))
    kit.sync()
    assert sorted(kit.offsets()) == [(b"all", 2), (b"leader", 0)]


def test_correlation_id_comes_back(kit):
    kit.receive(msg(b"orders.a", b"v", reply=b"r", headers=header_block(Lift_Correlation_Id='"7"')))
    kit.sync()
    assert kit.acks()[0][1]["correlation_id"] == '"7"'


def test_round_that_began_earlier_commits_only_what_it_saw(kit):
    kit.receive(*numbered(2))
    seen = kit.log.durability.sync_target()[0].next_offset
    kit.receive(*numbered(3))
    kit.partition.on_synced(seen)
    kit.outbox.flush()
    assert (kit.partition.high_watermark, kit.offsets()) == (2, [(b"r0", 0), (b"r1", 1)])


def test_order_of_commits_is_the_order_of_messages(kit):
    for number in range(5):
        kit.receive(msg(b"orders.a", b"v", reply=b"plain%d" % number))
        kit.receive(msg(b"orders.a", b"v", reply=b"headers%d" % number, headers=header_block(A="b")))
    kit.sync()
    expected = [b"%b%d" % (kind, number) for number in range(5) for kind in (b"plain", b"headers")]
    assert list(zip(expected, range(10), strict=True)) == kit.offsets()


def test_large_run_is_cut_into_batches(kit):
    values = [bytes([number]) * 300_000 for number in range(10)]
    kit.receive(*(msg(b"orders.a", value, reply=b"r") for value in values))
    kit.sync()
    assert (values, list(range(10))) == (kit.stored(), [offset for _, offset in kit.offsets()])
    assert [header.record_count for header in batches_of(kit.log)] == [3, 3, 3, 1]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compression_round_trip(make_kit, codec):
    kit = make_kit(compression=codec)
    kit.receive(*(msg(b"orders.a", b"compressible " * 50) for _ in range(200)))
    kit.receive(
        msg(b"orders.a", b"headers " * 90, headers=header_block(A="b")), msg(b"orders.b", envelope(None, key=b"k"))
    )
    kit.receive(msg(b"orders.a", batch([b"in a batch " * 50] * 100)))
    kit.receive(msg(b"orders.a", b"x"))
    expected = [b"compressible " * 50] * 200 + [b"headers " * 90, None] + [b"in a batch " * 50] * 100 + [b"x"]
    assert expected == kit.stored()
    assert [header.attributes for header in batches_of(kit.log)] == [1, 1, 1, 0], "and only where it helps"


def test_replies_are_kept_where_the_stream_says_so(make_kit):
    kit = make_kit(keep_replies=True)
    kit.receive(*numbered(100), *numbered(1, reply=False))
    kit.receive(msg(b"orders.a", envelope(b"e", ack_inbox="inbox"), reply=b"asked"))
    kit.receive(*numbered(2, reply=False))
    assert [b"r%d" % n for n in range(100)] + [None, b"asked", None, None] == [r.reply for r in kit.records()]


def test_change_of_the_leader_epoch(kit):
    kit.receive(*numbered(1))
    kit.partition.lead(8)
    kit.receive(*numbered(1))
    kit.sync()
    assert [header.leader_epoch for header in batches_of(kit.log)] == [7, 8]
    assert kit.partition.epoch == 8


def test_waiters_are_woken_once_by_a_commit(kit):
    calls = []

    def wake():
        calls.append(kit.partition.high_watermark)

    kit.partition.wait(wake)
    kit.receive(*numbered(1))
    assert calls == []
    kit.sync()
    kit.receive(*numbered(1))
    kit.sync()
    assert calls == [1]


def test_waiter_that_gave_up_is_left_alone(kit):
    calls = []
    wake = lambda: calls.append(1)
    kit.partition.wait(wake)
    kit.partition.stop_waiting(wake)
    kit.receive(*numbered(1))
    kit.sync()
    assert calls == []


def test_callbacks_come_once_in_order_with_the_commit_that_covers_them(kit):
    calls = []
    for end in (1, 1, 3):
        kit.partition.on_committed(end, lambda why, end=end: calls.append((end, why, kit.partition.high_watermark)))
    kit.receive(*numbered(2))
    assert calls == []
    kit.sync()
    assert calls == [(1, None, 2), (1, None, 2)]
    kit.receive(*numbered(1))
    kit.sync()
    assert calls[2:] == [(3, None, 3)]


@pytest.mark.parametrize(
    "end", [lambda partition: partition.fail("the disk is gone"), lambda partition: partition.follow(8)]
)
def test_callbacks_are_told_once_that_nobody_knows(kit, end):
    calls = []
    kit.receive(*numbered(1))
    kit.partition.on_committed(1, calls.append)
    end(kit.partition)
    end(kit.partition)
    (why,) = calls
    assert why.startswith("outcome unknown: ")


@pytest.mark.parametrize("end", [lambda kit: kit.sync(), lambda kit: kit.partition.fail("the disk is gone")])
def test_a_callback_that_raises_keeps_no_other_from_being_called(kit, end, caplog):
    calls = []

    def breaks(_why):
        raise ZeroDivisionError("a bug")

    kit.receive(*numbered(1))
    for callback in [breaks, calls.append] * 20:
        kit.partition.on_committed(1, callback)
    end(kit)
    assert len(calls) == 20
    (line,) = [record for record in caplog.records if "commit" in record.message]
    assert "stream orders partition 0" in line.message
    assert line.exc_info[0] is ZeroDivisionError


def test_closing_commits_and_sends_readers_away(kit):
    calls = []
    kit.partition.wait(lambda: calls.append(1))
    kit.receive(*numbered(2))
    kit.partition.close(ErrorCode.NOT_LEADER)
    kit.outbox.flush()
    assert (kit.offsets(), kit.partition.high_watermark) == ([(b"r0", 0), (b"r1", 1)], 2)
    assert (kit.partition.gone, kit.load.unsynced_bytes) == (ErrorCode.NOT_LEADER, 0)
    assert calls


def test_closing_what_is_offline_commits_nothing(kit):
    kit.receive(*numbered(2))
    kit.partition.fail("the disk is gone")
    kit.partition.close(ErrorCode.NOT_AVAILABLE)
    assert kit.partition.high_watermark == 0


def test_failure_is_logged_once(kit, caplog):
    kit.disk.write_errors.append(errno.EIO)
    kit.receive(*numbered(1))
    kit.partition.fail("again")
    assert caplog.text.count("partition 0 is offline") == 1


def test_unsynced_bytes_are_counted_until_they_are_on_disk(kit):
    kit.receive(*numbered(5))
    assert kit.log.size_bytes == kit.load.unsynced_bytes
    kit.receive(*numbered(5))
    assert kit.log.size_bytes == kit.load.unsynced_bytes
    kit.sync()
    assert kit.load.unsynced_bytes == 0


def test_failure_tells_those_who_wait_that_nobody_knows(kit):
    calls = []
    kit.partition.wait(lambda: calls.append(1))
    kit.receive(*numbered(1), msg(b"orders.a", b"v", reply=b"h", headers=header_block(Lift_Ack="leader")))
    kit.partition.fail("the disk is gone")
    kit.outbox.flush()
    code = AckErrorCode.OUTCOME_UNKNOWN
    assert sorted([(b"r0", code), (b"h", code)]) == sorted(kit.errors())
    assert (calls, kit.partition.high_watermark, kit.load.unsynced_bytes) == ([1], 0, 0)


def test_write_error_answers_those_who_wait_too(kit):
    kit.receive(*numbered(1))
    kit.disk.write_errors.append(errno.EIO)
    kit.receive(msg(b"orders.a", b"v", reply=b"late"))
    assert sorted(kit.errors()) == [(b"late", AckErrorCode.PARTITION_OFFLINE), (b"r0", AckErrorCode.OUTCOME_UNKNOWN)]


def test_write_error_wakes_readers(kit):
    calls = []
    kit.partition.wait(lambda: calls.append(1))
    kit.disk.write_errors.append(errno.EIO)
    kit.receive(*numbered(1))
    assert calls == [1]


def test_partition_that_is_offline_stays_so(kit):
    kit.disk.write_errors.append(errno.EIO)
    kit.receive(*numbered(1))
    kit.sent()
    kit.receive(*numbered(2))
    assert kit.errors() == [(b"r0", AckErrorCode.PARTITION_OFFLINE), (b"r1", AckErrorCode.PARTITION_OFFLINE)]
    assert kit.log.log_end == 0


@pytest.mark.parametrize("form", ["plain", "headers", "batch"])
def test_full_disk_stores_nothing_of_the_batch_and_says_so(kit, form):
    frames = {
        "plain": numbered(60),
        "headers": [msg(b"orders.a", b"v", reply=b"r%d" % n, headers=header_block(A="b")) for n in range(60)],
        "batch": [msg(b"orders.a", batch([b"v"] * 60), reply=b"r%d" % n) for n in range(60)],
    }[form]
    kit.receive(*numbered(1))
    kit.sync()
    kit.sent()
    kit.disk.is_full = True
    kit.receive(*frames)
    assert [(b"r%d" % n, AckErrorCode.STORAGE_FULL) for n in range(60)] == kit.errors()
    kit.disk.is_full = False
    kit.receive(*numbered(1))
    kit.sync()
    assert (kit.offsets(), kit.stored(), kit.partition.high_watermark) == ([(b"r0", 1)], [b"v0", b"v0"], 2)
    assert kit.stream.counters.refused["storage_full"] == 60


def test_disk_that_fills_up_between_two_batches_of_a_run(kit):
    kit.disk.write_errors.extend([None, errno.ENOSPC])
    values = [bytes([number]) * 600_000 for number in range(3)]
    kit.receive(*(msg(b"orders.a", value, reply=b"r%d" % number) for number, value in enumerate(values)))
    assert kit.errors() == [(b"r1", AckErrorCode.STORAGE_FULL)]
    kit.sync()
    assert ([(b"r0", 0), (b"r2", 1)], [values[0], values[2]]) == (kit.offsets(), kit.stored())


def test_silent_publishers_on_a_full_disk_are_a_gap_of_known_size(kit):
    kit.disk.is_full = True
    kit.receive(*numbered(100, reply=False))
    (gap,) = kit.gaps()
    assert (gap.cause, gap.messages, gap.since_ns, gap.until_ns) == ("storage_full", 100, NOW_NS, NOW_NS)


def test_no_room_for_another_segment(make_kit):
    kit = make_kit(log=LogConfig(segment_bytes=40_000))
    kit.receive(msg(b"orders.a", bytes(30_000), reply=b"r0"))
    kit.disk.create_errors.append(errno.ENOSPC)
    kit.receive(msg(b"orders.a", bytes(20_000), reply=b"r1"))
    kit.receive(msg(b"orders.a", b"fits in what is there", reply=b"r2"))
    kit.sync()
    answers = dict(kit.acks())
    assert answers[b"r1"]["error"]["err_code"] == AckErrorCode.STORAGE_FULL
    assert (answers[b"r0"]["offset"], answers[b"r2"]["offset"]) == (0, 1)


def test_offsets_go_on_over_segments(make_kit):
    kit = make_kit(log=LogConfig(segment_bytes=3_000))
    for _ in range(10):
        kit.receive(*numbered(20))
    kit.sync()
    assert len(kit.log.segments) > 2
    assert list(range(200)) == [record.offset for record in kit.records()] == [o for _, o in kit.offsets()]


def test_the_time_from_append_to_commit_is_counted_by_chunk(kit):
    kit.receive(*numbered(300))
    kit.clock.advance(0.02)
    kit.receive(*numbered(2))
    kit.clock.advance(0.3)
    kit.partition.end_pass()  # with nothing new
    assert kit.load.commit_s.buckets()[-1] == ("+Inf", 0.0)
    kit.sync()
    kit.sync()
    counted = dict(kit.load.commit_s.buckets())
    assert (counted["0.25"], counted["0.5"], counted["+Inf"]) == (0.0, 2.0, 2.0)
    assert kit.load.commit_s.sum_s == pytest.approx(0.62)
