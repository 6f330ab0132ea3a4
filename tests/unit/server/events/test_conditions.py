"""A condition is told when it begins and when it ends, once each."""

from __future__ import annotations

from liftpy_server.events.conditions import Condition, ConditionWatch, Refused, Told

FULL = Condition("disk.full")
STOPPED = Condition("upload.stopped", "orders", 1)
PAUSED = Refused("orders", "paused")


def test_a_condition_begins_and_ends_once():
    watch = ConditionWatch()
    assert watch.look(0.0, {FULL: {"free_bytes": 1}}, {}, {}) == [Told("disk.full", details={"free_bytes": 1})]
    assert watch.look(1.0, {FULL: {"free_bytes": 0}}, {}, {}) == []
    ended = watch.look(4.0, {}, {}, {"disk.full": {"free_bytes": 9}})
    assert ended == [Told("disk.freed", details={"free_bytes": 9, "seconds": 4.0})]
    assert watch.look(5.0, {}, {}, {}) == []


def test_what_is_no_matter_of_this_node_any_more_ends_without_a_word():
    watch = ConditionWatch()
    watch.look(0.0, {STOPPED: {"code": "hole"}}, {}, {})
    assert watch.lasting() == [STOPPED]
    assert watch.look(1.0, {}, {}, {}, [STOPPED]) == []
    assert watch.look(2.0, {STOPPED: {}}, {}, {}) == [Told("upload.stopped", "orders", 1, {})]
    assert watch.look(5.0, {}, {}, {}) == [Told("upload.resumed", "orders", 1, {"seconds": 3.0})]


def test_refusals_end_after_a_quiet_minute():
    watch = ConditionWatch()
    assert watch.look(0.0, {}, {PAUSED: 3}, {}) == [Told("refusals.begun", "orders", details={"reason": "paused"})]
    assert watch.look(10.0, {}, {PAUSED: 5}, {}) == []
    assert watch.look(69.0, {}, {PAUSED: 5}, {}) == []
    (ended,) = watch.look(70.0, {}, {PAUSED: 5}, {})
    assert (ended.kind, ended.details) == ("refusals.ended", {"reason": "paused", "messages": 5, "seconds": 10.0})
    assert watch.look(71.0, {}, {PAUSED: 5}, {}) == []
    assert watch.look(72.0, {}, {PAUSED: 6}, {})[0].kind == "refusals.begun"


def test_a_stream_that_is_gone_refuses_no_more():
    watch = ConditionWatch()
    watch.look(0.0, {}, {PAUSED: 3}, {})
    assert [told.kind for told in watch.look(61.0, {}, {}, {})] == ["refusals.ended"]


def test_it_is_bounded():
    watch = ConditionWatch()
    many = {Refused(f"s{number}", "paused"): 1 for number in range(2_000)}
    assert len(watch.look(0.0, {}, many, {})) == 1_000
