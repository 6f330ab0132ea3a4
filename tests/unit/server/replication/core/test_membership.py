"""Replicas that are added, removed, or only observe, while one leader stays."""

from __future__ import annotations

import pytest

from liftpy_envelope.follow import FollowRefusal
from liftpy_server.replication.core import effects as fx


def committed(effects):
    return [effect.offset for effect in effects if isinstance(effect, fx.AdvanceHighWatermark)]


def proposed(effects):
    return [effect.isr for effect in effects if isinstance(effect, fx.ProposeIsr)]


def refusal(effects):
    (answer,) = [effect for effect in effects if isinstance(effect, fx.AnswerFetch)]
    return answer.answer.refusal


@pytest.fixture
def four(leader):
    """`d` was added; the others have everything."""
    for node in "bc":
        leader.fetch(node, 10)
    leader.view(replicas=("a", "b", "c", "d"), version=2)
    return leader


def test_an_added_replica_is_believed_and_joins_once_it_has_everything(leader):
    assert refusal(leader.fetch("d", 10)) is FollowRefusal.STALE_INCARNATION
    leader.view(replicas=("a", "b", "c", "d"), version=2)
    assert proposed(leader.fetch("d", 9)) == []
    assert proposed(leader.fetch("d", 10)) == [("a", "b", "c", "d")]


def test_a_removed_replica_is_not_believed_and_counts_no_longer(four):
    four.append(2)
    four.durable()
    four.fetch("b", 12)
    assert committed(four.view(replicas=("a", "b", "d"), isr=("a", "b"), version=3)) == [12]
    assert refusal(four.fetch("c", 12)) is FollowRefusal.STALE_INCARNATION


def test_a_proposal_with_a_replica_that_was_removed_meanwhile_is_forgotten(four):
    four.fetch("d", 10)
    four.append(1)
    four.durable()
    for node in "bc":
        four.fetch(node, 11)
    assert four.log.high_watermark == 10
    assert committed(four.view(replicas=("a", "b", "c"), version=3)) == [11]


def test_a_leader_that_is_removed_ends(leader):
    effects = leader.view(replicas=("b", "c"), isr=("b", "c"), leader="b", leader_epoch=6, version=2)
    assert effects == [fx.LeadershipEnded(leader_epoch=5)]


def test_a_follower_that_is_removed_follows_nobody(leader):
    bench = type(leader)("b")
    assert len(bench.view()) == 1
    assert bench.view(replicas=("a", "c"), isr=("a", "c"), version=2) == []
    assert bench.replica.role is None
    assert len(bench.view(replicas=("a", "c", "b"), version=3)) == 1


def test_what_a_replica_said_before_it_was_removed_and_added_again_is_forgotten(four):
    """Its new log is empty; the leader heard of neither change, only of what came of both."""
    four.view(isr=("a", "b", "c"), version=3)
    four.view(version=6)
    four.append(1)
    assert proposed(four.tick(1)) == []
    assert proposed(four.fetch("d", 0)) == []


@pytest.mark.parametrize(("version", "knows"), [(3, True), (4, False)])
def test_what_a_replica_said_is_kept_where_it_can_not_have_been_away(four, version, knows):
    four.view(isr=("a", "b"), version=3 - 1)
    four.fetch("c", 10)
    four.view(version=version)
    assert proposed(four.tick(0.5)) == ([("a", "b", "c")] if knows else [])


def test_a_member_that_was_added_by_a_lost_answer_keeps_what_it_said(four):
    assert proposed(four.fetch("d", 10)) != []
    four.append(1)
    four.durable()
    four.fetch("d", 11)
    for node in "bc":
        four.fetch(node, 11)
    four.view(isr=("a", "b", "c", "d"), version=7)
    assert four.log.high_watermark == 11


def test_who_is_no_member_and_has_less_than_it_said_has_begun_anew(four):
    four.view(isr=("a", "b"), version=2)
    four.fetch("c", 9)
    four.fetch("c", 2)
    four.fetch("c", 10, leader_epoch=4)  # is not believed
    assert four.replica.leader._followers["c"].durable_end == 2


@pytest.fixture
def observed(leader):
    """`c` and `d` observe; `a` and `b` count."""
    leader.view(replicas=("a", "b", "c", "d"), isr=("a", "b"), observers=("c", "d"), version=2)
    return leader


def test_an_observer_is_served_and_never_counts_or_joins(observed):
    effects = observed.fetch("c", 10) + observed.fetch("d", 10) + observed.tick(1)
    assert proposed(effects) == []
    assert committed(effects) == []
    assert committed(observed.fetch("b", 10)) == [10]
    observed.append(1)
    observed.durable()
    assert not refusal(observed.fetch("c", 4))
    assert committed(observed.fetch("b", 11)) == [11]  # the observers are behind, and nobody waits for them


def test_observers_do_not_make_a_leader_accept(observed):
    observed.fetch("c", 10)
    effects = observed.view(isr=("a",), version=3) + observed.fetch("c", 10) + observed.tick()
    assert fx.AcceptingChanged(accepting=False) in effects
    assert not observed.replica.leader.is_accepting


def test_a_member_that_shall_only_observe_is_proposed_to_leave_and_counts_until_then(leader):
    leader.view(observers=("c",), version=2)
    assert committed(leader.fetch("b", 10)) == []
    leader.fetch("c", 4)
    assert proposed(leader.tick()) == [("a", "b")]
    assert leader.log.high_watermark == 4
    assert committed(leader.view(isr=("a", "b"), version=3)) == [10]


def test_an_observer_that_comes_first_is_not_the_preferred_leader(leader):
    leader.view(replicas=("d", "b", "a"), isr=("a", "b"), observers=("d",), leader_epoch=6, version=2)
    effects = []
    for _ in range(14):
        effects += leader.fetch("b", 10) + leader.fetch("d", 10) + leader.tick(0.5)
    assert [effect.leader for effect in effects if isinstance(effect, fx.ProposeLeader)] == ["b"]
