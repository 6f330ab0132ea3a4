"""Every message of a canary is settled once in each way, and nothing that is wrong with it passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_server.canary.canary import canary_subject
from liftpy_server.canary.ledger import Ledger, WayCounts

TIMEOUTS_S = {"pull": 30.0, "bucket": 600.0}


@pytest.fixture
def ledger():
    return Ledger("run", TIMEOUTS_S)


def publish(ledger, offset, partition=0, now_s=0.0):
    number, value = ledger.publishing(now_s)
    ledger.acked(number, partition, offset, now_s)
    return value


def pull(ledger):
    return ledger.counts.ways["pull"]


def test_what_comes_back_is_timed(ledger):
    number, value = ledger.publishing(1.0)
    ledger.acked(number, 0, 7, 1.2)
    ledger.read("pull", 0, 7, value, 1.5)
    assert not ledger.is_settled
    ledger.in_bucket(0, 0, 8, {7: value}, 61.0)
    assert ledger.is_settled
    assert list(ledger.counts.seconds) == [
        ("ack", pytest.approx(0.2)),
        ("pull", pytest.approx(0.5)),
        ("bucket", pytest.approx(60.0)),
    ]
    assert ledger.counts.ways == {"pull": WayCounts(read=1), "bucket": WayCounts(read=1)}
    assert ledger.counts.is_well


def test_a_message_may_be_read_before_its_ack(ledger):
    number, value = ledger.publishing(0.0)
    ledger.read("pull", 0, 7, value, 0.1)
    assert pull(ledger) == WayCounts()
    ledger.acked(number, 0, 7, 0.2)
    assert pull(ledger) == WayCounts(read=1)


def test_an_ack_of_another_place_is_no_place(ledger):
    number, value = ledger.publishing(0.0)
    ledger.read("pull", 0, 7, value, 0.1)
    ledger.acked(number, 0, 6, 0.2)
    assert pull(ledger) == WayCounts(lost=1)


def test_other_bytes_are_a_loss(ledger):
    value = publish(ledger, 7)
    ledger.read("pull", 0, 7, value + b".", 0.1)
    assert pull(ledger) == WayCounts(lost=1)


@pytest.mark.parametrize("value", [None, b"", b"liftpy canary other 0 ..."])
def test_something_else_at_its_place_is_a_loss(ledger, value):
    publish(ledger, 7)
    ledger.read("pull", 0, 7, value, 0.1)
    assert pull(ledger) == WayCounts(lost=1)


def test_what_is_passed_over_is_lost_whenever_its_ack_comes(ledger):
    publish(ledger, 7)
    late, _ = ledger.publishing(0.0)
    value = publish(ledger, 9)
    ledger.read("pull", 0, 9, value, 0.1)
    assert pull(ledger) == WayCounts(read=1, lost=1)
    ledger.acked(late, 0, 8, 0.2)
    assert pull(ledger) == WayCounts(read=1, lost=2)
    assert not ledger.counts.is_well


def test_partitions_do_not_pass_each_other(ledger):
    publish(ledger, 7)
    ledger.read("pull", 1, 9, publish(ledger, 9, partition=1), 0.1)
    assert pull(ledger) == WayCounts(read=1)


def test_a_message_that_is_stored_twice_is_doubled_and_one_that_is_read_twice_is_not(ledger):
    value = publish(ledger, 7)
    for offset in (7, 7, 8):
        ledger.read("pull", 0, offset, value, 0.1)
    assert pull(ledger) == WayCounts(read=1, doubled=1)


def test_what_does_not_come_back_is_late(ledger):
    publish(ledger, 7)
    ledger.expire(30.0)
    assert pull(ledger) == WayCounts()
    ledger.expire(30.1)
    assert pull(ledger) == WayCounts(late=1)
    ledger.expire(99.0)
    assert pull(ledger) == WayCounts(late=1)


def test_the_bucket_may_lack_what_it_does_not_have_yet_and_what_it_has_no_more(ledger):
    for offset in (3, 5, 7):
        publish(ledger, offset)
    assert ledger.wanted_of_bucket() == {0: [3, 5, 7]}
    ledger.in_bucket(0, 4, 6, {}, 1.0)
    assert ledger.counts.ways["bucket"] == WayCounts(lost=1)
    assert ledger.wanted_of_bucket() == {0: [7]}


def test_a_message_without_an_ack_is_counted_as_that_and_waited_for_no_more(ledger):
    number, value = ledger.publishing(0.0)
    ledger.failed(number)
    ledger.read("pull", 0, 7, value, 0.1)
    assert (ledger.counts.unacked, pull(ledger), ledger.is_settled) == (1, WayCounts(), True)
    assert not ledger.counts.is_well


def test_counts_are_taken_once(ledger):
    publish(ledger, 7)
    assert ledger.take().acked == 1
    assert ledger.take().to_plain() == {
        "acked": 0,
        "unacked": 0,
        "ways": {way: {"read": 0, "late": 0, "lost": 0, "doubled": 0} for way in TIMEOUTS_S},
        "seconds": [],
    }


def test_what_is_waited_for_is_bounded(ledger):
    published = 0
    while not ledger.is_full:
        publish(ledger, published)
        published += 1
    assert published == 1_000


@given(st.lists(st.sampled_from(["read", "skip", "other"]), min_size=1, max_size=30))
def test_each_message_is_settled_once(fates):
    ledger = Ledger("run", {"pull": 30.0})
    for offset, fate in enumerate(fates):
        value = publish(ledger, offset)
        if fate != "skip":
            ledger.read("pull", 0, offset, value if fate == "read" else b"other", 0.1)
    ledger.expire(31.0)
    counts = pull(ledger)
    assert ledger.is_settled
    assert counts.read == fates.count("read")
    assert counts.read + counts.lost + counts.late == len(fates)
    last = max((number for number, fate in enumerate(fates) if fate != "skip"), default=-1)
    assert counts.late == len(fates) - 1 - last


@pytest.mark.parametrize(
    ("pattern", "subject"),
    [("orders", "orders"), ("orders.*", "orders.canary"), ("*.a.>", "canary.a.canary"), ("a.b*c", "a.b*c")],
)
def test_wildcards_are_replaced(pattern, subject):
    assert canary_subject(pattern) == subject
