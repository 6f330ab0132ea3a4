"""When a replica needs no ticks, and that nothing goes wrong when they come again."""

from __future__ import annotations

import pytest

from liftpy_envelope.follow import FollowRefusal
from liftpy_server.replication.core import effects as fx
from liftpy_server.replication.core.inputs import Tick


def is_bad(effect):
    return isinstance(effect, (fx.SuspectLeader, fx.ProposeIsr, fx.AcceptingChanged))


@pytest.fixture
def steady(leader):
    """A leader whose followers wait with everything."""
    for node in "bc":
        leader.fetch(node, 10)
    leader.tick(heard="bc")
    assert leader.replica.is_quiet
    return leader


@pytest.fixture
def follower(leader):
    """A follower whose fetch waits."""
    bench = type(leader)("b")
    bench.view()
    bench.tick(heard="a")
    assert bench.replica.is_quiet
    return bench


def test_a_leader_is_quiet_while_all_members_wait_with_everything(leader):
    for node in "bc":
        leader.fetch(node, 10)
    assert not leader.replica.is_quiet
    leader.tick()
    assert not leader.replica.is_quiet
    leader.tick(heard="b")
    assert not leader.replica.is_quiet
    leader.tick(heard="bc")
    assert leader.replica.is_quiet
    leader.append(1)
    assert not leader.replica.is_quiet
    leader.tick(heard="bc")
    assert not leader.replica.is_quiet


def test_a_leader_alone_is_quiet(leader):
    leader.view(replicas=("a",), isr=("a",), min_isr=1, version=2)
    leader.tick()
    assert leader.replica.is_quiet


def test_a_leader_without_a_dead_member_is_quiet(leader):
    leader.view(isr=("a", "b"), version=2)
    leader.fetch("b", 10)
    leader.tick(heard="b")
    assert leader.replica.is_quiet


def test_a_leader_that_has_said_all_about_a_dead_member_is_quiet(leader):
    """It can not leave, since fewer than `min_isr` would stay."""
    leader.view(isr=("a", "b"), version=2)
    leader.fetch("b", 10)
    effects = leader.tick(9)
    assert effects == [fx.AcceptingChanged(accepting=False)]
    assert leader.replica.is_quiet
    leader.fetch("b", 10)
    assert leader.tick() == [fx.AcceptingChanged(accepting=True)]


def test_a_leader_with_an_undecided_proposal_is_not_quiet(steady):
    steady.view(isr=("a", "b"), version=2)
    steady.fetch("c", 10)
    steady.tick(heard="bc")
    assert not steady.replica.is_quiet


def test_a_leader_that_has_to_give_back_is_not_quiet(steady):
    steady.view(replicas=("b", "a", "c"), version=2)
    steady.tick(heard="bc")
    assert not steady.replica.is_quiet


def test_a_leader_whose_follower_is_behind_on_disk_is_not_quiet(leader):
    leader.fetch("b", 10)
    leader.fetch("c", 8, offset=10)
    leader.tick(heard="bc")
    assert not leader.replica.is_quiet


def test_a_quiet_leader_counts_whom_it_hears(steady):
    """A tick four times per `replica_lag_max_s`, as for a quiet replica."""
    effects = []
    for _ in range(50):
        steady.now_s += 2
        effects += steady.give(Tick(heard_s=dict.fromkeys("bc", steady.now_s - 0.4)))
        assert steady.replica.is_quiet
    assert effects == []


def test_a_member_that_is_heard_without_having_everything_lags(leader):
    leader.fetch("b", 10)
    leader.fetch("c", 8, offset=10)
    effects = []
    for _ in range(18):
        leader.fetch("b", 10)
        effects += leader.tick(0.5, heard="bc")
    assert {effect.isr for effect in effects if isinstance(effect, fx.ProposeIsr)} == {("a", "b")}


@pytest.mark.parametrize("quiet_s", [1.9, 50.0])
@pytest.mark.parametrize("first", ["append", "durable", "fetch", "view", "tick"])
def test_nothing_bad_comes_of_what_a_quiet_leader_is_told_first(steady, quiet_s, first):
    steady.now_s += quiet_s
    effects = {
        "append": lambda: steady.append(1),
        "durable": steady.durable,
        "fetch": lambda: steady.fetch("b", 10),
        "view": steady.view,
        "tick": steady.tick,
    }[first]()
    effects += steady.tick(2)
    assert not any(map(is_bad, effects))


def test_a_follower_that_falls_silent_after_a_quiet_time_lags_from_then_on(steady):
    steady.now_s += 100
    assert not any(map(is_bad, steady.tick(6)))
    assert any(map(is_bad, steady.tick(3)))


def test_a_follower_is_quiet_while_its_fetch_waits_and_the_leader_is_heard(follower):
    follower.tick()
    assert not follower.replica.is_quiet
    follower.tick(heard="a")
    assert follower.replica.is_quiet
    follower.give(Tick(heard_s={"a": follower.now_s - 1.1}))
    assert not follower.replica.is_quiet


def test_a_follower_that_asks_or_appends_is_not_quiet(leader):
    bench = type(leader)("b", epochs=[(3, 0)], end=9)
    (ask,) = bench.view()
    bench.tick(heard="a")
    assert not bench.replica.is_quiet
    (fetch,) = bench.answer_end(ask.question, 3, 9)
    bench.answer(fetch.request, (5, 9, 12))
    bench.tick(heard="a")
    assert not bench.replica.is_quiet


def test_who_wants_to_join_is_not_quiet(follower):
    follower.view(isr=("a", "c"), version=2)
    follower.tick(heard="a")
    assert not follower.replica.is_quiet
    follower.view(observers=("b",), version=3)
    follower.tick(heard="a")
    assert follower.replica.is_quiet


def test_a_leader_that_falls_silent_while_a_follower_is_quiet_is_suspected_after_the_timeout(follower):
    """The owner ticks it when the session has been silent for half of the timeout."""
    follower.now_s += 50
    heard_s = follower.now_s - 1
    found = []
    for _ in range(4):
        found.append(any(map(is_bad, follower.give(Tick(heard_s={"a": heard_s})))))
        follower.now_s += 0.5
    assert found == [False, False, True, False]


@pytest.mark.parametrize("first", ["refusal", "durable", "view", "tick", "answer"])
def test_nothing_bad_comes_of_what_a_quiet_follower_is_told_first(leader, first):
    bench = type(leader)("b")
    (fetch,) = bench.view()
    bench.tick(heard="a")
    bench.now_s += 50
    if first == "refusal":
        bench.answer(fetch.request, refusal=FollowRefusal.NOT_LEADER, leader_epoch=-1)
    elif first == "answer":
        bench.answer(fetch.request, (5, 0, 3))
    elif first != "tick":
        getattr(bench, first)()
    assert not any(map(is_bad, bench.tick()))
    assert not any(map(is_bad, bench.tick(0.5)))
    assert any(map(is_bad, bench.tick(1.5)))


def test_who_has_no_role_is_quiet_unless_it_has_to_report(leader):
    bench = type(leader)("b", epochs=[(3, 0)], end=9)
    bench.tick()
    assert bench.replica.is_quiet
    bench.view(leader=None, isr=())
    bench.tick()
    assert not bench.replica.is_quiet
