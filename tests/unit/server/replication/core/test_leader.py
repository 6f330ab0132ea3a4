"""The leader: what it commits, whom it counts, whom it believes, and what it proposes."""

from __future__ import annotations

import pytest

from liftpy_envelope.follow import FollowRefusal
from liftpy_server.replication.core import effects as fx
from liftpy_server.replication.core.inputs import IsrRefused, LogFailed
from liftpy_server.replication.core.isr import may_join
from liftpy_server.replication.core.progress import FollowerProgress


def committed(effects):
    return [effect.offset for effect in effects if isinstance(effect, fx.AdvanceHighWatermark)]


def of(kind, effects):
    return [effect for effect in effects if isinstance(effect, kind)]


def refusal(effects):
    (answer,) = of(fx.AnswerFetch, effects)
    return answer.answer.refusal


def test_the_high_watermark_is_the_smallest_durable_end_of_the_isr(leader):
    assert committed(leader.fetch("b", 10)) == []
    assert committed(leader.fetch("c", 4)) == [4]
    assert committed(leader.fetch("c", 9)) == [9]
    leader.append(5)
    leader.fetch("b", 15)
    assert committed(leader.fetch("c", 15)) == [10]  # its own disk is not that far
    assert committed(leader.durable(12)) == [12]
    assert committed(leader.durable()) == [15]


def test_what_a_follower_has_in_memory_does_not_count(leader):
    leader.fetch("b", 10)
    assert committed(leader.fetch("c", 3, offset=10)) == [3]


def test_the_high_watermark_never_goes_back(leader):
    leader.fetch("b", 10)
    leader.fetch("c", 10)
    assert committed(leader.fetch("c", 4)) == []  # an old fetch, late
    leader.view(incarnations={"a": 1, "b": 1, "c": 2})
    leader.append(1)
    leader.durable()
    leader.fetch("b", 11)
    assert committed(leader.fetch("c", 2, incarnation=2)) == []
    assert leader.log.high_watermark == 10


def test_nothing_commits_below_min_isr(leader):
    leader.view(isr=("a",), version=2)
    leader.fetch("b", 10)
    assert committed(leader.durable()) == []
    assert leader.log.high_watermark == 0
    assert committed(leader.view(isr=("a", "b"), version=3)) == [10]


def test_a_new_leader_is_silent_until_it_has_caught_up_with_itself(leader):
    assert leader.replica.leader.epoch_start == 10
    leader.append(1)
    leader.fetch("b", 9)
    leader.fetch("c", 9)
    assert not leader.replica.leader.is_caught_up
    leader.fetch("b", 10)
    leader.fetch("c", 10)
    assert leader.replica.leader.is_caught_up


def test_a_leadership_begins_and_ends_once(leader):
    assert leader.view() == []
    (ended,) = of(fx.LeadershipEnded, leader.view(leader="b", leader_epoch=6, version=2))
    assert ended.leader_epoch == 5
    assert leader.replica.leader is None


def test_a_restarted_leader_begins_anew(leader):
    leader.fetch("b", 10)
    leader.fetch("c", 10)
    effects = leader.view(leader_epoch=6, version=2)
    assert of(fx.LeadershipEnded, effects) == [fx.LeadershipEnded(leader_epoch=5)]
    assert of(fx.LeadershipBegan, effects) == [fx.LeadershipBegan(leader_epoch=6, first_offset=10)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"leader_epoch": 4}, FollowRefusal.NOT_LEADER),
        ({"leader_epoch": 6}, FollowRefusal.NOT_LEADER),
        ({"incarnation": 0}, FollowRefusal.STALE_INCARNATION),
        ({"incarnation": 2}, FollowRefusal.STALE_INCARNATION),
        ({"node_id": "x"}, FollowRefusal.STALE_INCARNATION),
        ({"offset": 11}, FollowRefusal.DIVERGED),
        ({"last_epoch": 2}, FollowRefusal.DIVERGED),
        ({"last_epoch": 4}, FollowRefusal.DIVERGED),
    ],
)
def test_a_fetch_that_can_not_be_believed_counts_for_nothing(leader, changes, why):
    leader.fetch("b", 10)
    effects = leader.fetch("c", 10, **changes)
    assert refusal(effects) is why
    assert committed(effects) == []


def test_a_fetch_below_the_start_is_told_where_the_log_starts(leader):
    leader.fetch("b", 10)
    leader.fetch("c", 10)
    leader.log.advance_start(6)
    (answer,) = of(fx.AnswerFetch, leader.fetch("c", 3))
    assert (answer.answer.refusal, answer.answer.log_start) == (FollowRefusal.BELOW_START, 6)
    assert not refusal(leader.fetch("c", 6))


def test_where_an_epoch_ends(leader):
    leader.append(5)

    def end_of(epoch):
        (answer,) = leader.ask("b", epoch)
        return answer.answer.epoch, answer.answer.end

    assert [end_of(epoch) for epoch in (2, 3, 4, 5, 6)] == [(-1, 0), (3, 10), (3, 10), (5, 15), (5, 15)]


def test_a_question_in_another_epoch_is_refused(leader):
    (answer,) = leader.ask("b", 3, leader_epoch=4)
    assert answer.answer.refusal is FollowRefusal.NOT_LEADER


def test_a_silent_follower_is_proposed_to_leave_and_counts_until_it_has_left(leader):
    for _ in range(18):
        leader.fetch("b", 10)
        proposals = of(fx.ProposeIsr, leader.tick(0.5))
    assert [(proposal.isr, proposal.version, proposal.leader_epoch) for proposal in proposals] == [(("a", "b"), 1, 5)]
    assert committed(leader.fetch("b", 10)) == []
    assert committed(leader.view(isr=("a", "b"), version=2)) == [10]


def test_the_isr_is_not_proposed_below_min_isr_and_messages_are_refused(leader):
    effects = leader.tick(10)
    (first, *rest) = of(fx.ProposeIsr, effects)
    assert first.isr in {("a", "b"), ("a", "c")}
    assert all(proposal == first for proposal in rest)  # an undecided proposal is repeated, not replaced
    assert of(fx.AcceptingChanged, effects) == [fx.AcceptingChanged(accepting=False)]
    leader.view(isr=first.isr, version=2)
    assert of(fx.ProposeIsr, leader.tick(10)) == []
    leader.fetch(first.isr[1], 10)
    assert of(fx.AcceptingChanged, leader.tick()) == [fx.AcceptingChanged(accepting=True)]


def test_a_follower_that_is_always_a_little_behind_is_in_sync(leader):
    """Every fetch finds the log longer than what the follower has on disk."""
    effects = []
    for _ in range(60):
        for node in "bc":
            effects += leader.fetch(node, leader.log.end - 3)
        leader.append(3)
        leader.durable()
        effects += leader.tick(0.5)
    assert of(fx.ProposeIsr, effects) == []


def test_a_follower_that_falls_behind_ever_more_is_not_in_sync(leader):
    effects = []
    for turn in range(30):
        leader.append(3)
        leader.durable()
        effects += leader.fetch("b", leader.log.end)
        effects += leader.fetch("c", 10 + turn)
        effects += leader.tick(0.5)
    assert of(fx.ProposeIsr, effects)[0].isr == ("a", "b")


def test_a_joiner_counts_from_the_moment_it_is_proposed(leader):
    leader.view(isr=("a", "b"), version=2)
    leader.fetch("b", 10)
    assert leader.log.high_watermark == 10
    (proposal,) = of(fx.ProposeIsr, leader.fetch("c", 10))
    assert (proposal.isr, proposal.incarnations) == (("a", "b", "c"), {"a": 1, "b": 1, "c": 1})
    leader.append(5)
    leader.durable()
    assert committed(leader.fetch("b", 15)) == []  # c may have been added already
    assert committed(leader.fetch("c", 12)) == [12]
    assert committed(leader.give(IsrRefused(version=2, attempt=1))) == [15]


def test_a_view_of_the_version_that_was_proposed_about_decides_nothing(leader):
    leader.view(isr=("a", "b"), version=2)
    leader.fetch("b", 10)
    leader.fetch("c", 10)  # proposes c
    leader.append(1)
    leader.durable()
    leader.view()  # something else in the metadata has changed
    assert committed(leader.fetch("b", 11)) == []
    assert committed(leader.view(version=3)) == [11]  # decided, and c was not added


def test_a_new_member_has_time_for_its_first_fetch(leader):
    leader.view(isr=("a", "b"), version=2)
    leader.now_s += 0.4
    leader.view(isr=("a", "b", "c"), version=3)  # by a proposal whose answer got lost
    effects = []
    for _ in range(15):
        leader.fetch("b", 10)
        effects += leader.tick(0.5)
    assert of(fx.ProposeIsr, effects) == []
    for _ in range(3):
        leader.fetch("b", 10)
        effects += leader.tick(0.5)
    assert of(fx.ProposeIsr, effects)[0].isr == ("a", "b")


def test_a_follower_outside_the_isr_is_not_taken_for_one_in_sync(leader):
    leader.view(leader_epoch=6, isr=("a", "b"), version=2)
    assert leader.replica.leader.is_accepting
    leader.view(isr=("a",), version=3)
    assert not leader.replica.leader.is_accepting


def test_a_refusal_of_another_proposal_decides_nothing(leader):
    leader.view(isr=("a", "b"), version=2)
    leader.fetch("b", 10)
    leader.fetch("c", 10)
    leader.append(1)
    leader.durable()
    leader.fetch("b", 11)
    assert leader.give(IsrRefused(version=1, attempt=1)) == []
    assert leader.give(IsrRefused(version=2, attempt=2)) == []
    assert leader.log.high_watermark == 10


@pytest.mark.parametrize(
    ("durable_end", "high_watermark", "epoch_start", "may"),
    [(None, 0, 0, False), (9, 10, 0, False), (10, 10, 10, True), (10, 5, 11, False), (11, 5, 11, True)],
)
def test_a_joiner_has_everything_that_may_have_been_committed(durable_end, high_watermark, epoch_start, may):
    progress = FollowerProgress(incarnation=1, durable_end=durable_end)
    assert may_join(progress, high_watermark, epoch_start) is may


def test_a_joiner_that_lacks_records_of_earlier_epochs_is_not_proposed(leader):
    leader.view(isr=("a", "b"), version=2)
    assert of(fx.ProposeIsr, leader.fetch("c", 9)) == []


def test_a_member_that_restarts_counts_with_nothing_until_it_fetches(leader):
    leader.fetch("b", 10)
    leader.view(incarnations={"a": 1, "b": 1, "c": 2})
    assert refusal(leader.fetch("c", 10)) is FollowRefusal.STALE_INCARNATION
    assert leader.log.high_watermark == 0
    assert committed(leader.fetch("c", 6, incarnation=2)) == [6]


def test_the_preferred_replica_gets_the_leadership_back(leader):
    leader.view(replicas=("b", "a", "c"), leader_epoch=6, version=2)
    effects = []
    for _ in range(14):
        effects += leader.fetch("b", 10) + leader.fetch("c", 10) + leader.tick(0.5)
    assert of(fx.ProposeLeader, effects) == [fx.ProposeLeader(leader="b", leader_epoch=6, version=2)]


def test_a_preferred_replica_that_is_not_in_sync_does_not(leader):
    leader.view(replicas=("b", "a", "c"), leader_epoch=6, version=2)
    effects = []
    for _ in range(14):
        effects += leader.fetch("c", 10) + leader.tick(0.5)
    assert of(fx.ProposeLeader, effects) == []


def test_a_pause_of_the_leader_is_no_lag_of_its_followers(leader):
    for node in "bc":
        leader.fetch(node, 10)
    leader.now_s += 100
    assert of(fx.ProposeIsr, leader.tick(paused_s=100)) == []
    assert leader.tick(8) == []
    assert of(fx.ProposeIsr, leader.tick(0.5)) != []


def test_what_comes_after_a_pause_and_before_the_next_tick_shrinks_and_refuses_nothing(leader):
    leader.view(replicas=("a", "b", "c", "d"), version=2)
    for node in "bc":
        leader.fetch(node, 10)
    leader.now_s += 100
    effects = leader.fetch("d", 10) + leader.view() + leader.append(1) + leader.tick(paused_s=100)
    assert of(fx.AcceptingChanged, effects) == []
    assert {proposal.isr for proposal in of(fx.ProposeIsr, effects)} == {("a", "b", "c", "d")}


def test_a_pause_that_is_forgiven_twice_brings_nobody_into_the_future(leader):
    leader.tick(5, paused_s=100)
    assert of(fx.ProposeIsr, leader.tick(8.5)) != []


def test_a_refused_proposal_is_not_repeated_at_once(leader):
    leader.view(isr=("a", "b"), version=2)
    leader.fetch("b", 10)
    (proposal,) = of(fx.ProposeIsr, leader.fetch("c", 10))
    leader.give(IsrRefused(version=2, attempt=1))
    assert of(fx.ProposeIsr, leader.fetch("c", 10)) == []
    (another,) = of(fx.ProposeIsr, leader.tick(0.5))
    assert (another.isr, another.attempt) == (proposal.isr, proposal.attempt + 1)


def test_a_preferred_replica_that_may_not_lead_is_proposed_ever_more_seldom(leader):
    leader.view(replicas=("b", "a", "c"), leader_epoch=6, version=2)
    leader.fetch("b", 10)
    leader.fetch("c", 10)
    proposed = [len(of(fx.ProposeLeader, leader.tick(20, heard="bc"))) for _ in range(8)]
    assert proposed[0] == 2
    assert sum(proposed) == 5


def test_a_leader_whose_log_failed_gives_up_for_good(leader):
    assert leader.give(LogFailed()) == [fx.LeadershipEnded(leader_epoch=5), fx.ReportFailure(high_watermark=0)]
    assert leader.replica.leader is None
    assert refusal(leader.fetch("b", 10)) is FollowRefusal.NOT_LEADER
    (answer,) = leader.ask("b", 3)
    assert answer.answer.refusal is FollowRefusal.NOT_LEADER
    assert leader.view(leader_epoch=6, version=2, failed=("a",)) == []
    assert leader.view(leader="b", leader_epoch=7, version=3) == []
    assert leader.tick(20) == []
    assert leader.replica.is_quiet


def test_acks_do_not_wait_for_a_member_whose_log_failed(leader):
    leader.fetch("b", 10)
    leader.fetch("c", 10)
    leader.append(5)
    leader.durable()
    assert committed(leader.fetch("b", 15)) == []
    assert committed(leader.view(isr=("a", "b"), failed=("c",), version=2)) == [15]


def test_a_log_that_failed_is_not_proposed_whatever_it_said_before(leader):
    leader.view(isr=("a", "b"), version=2)
    leader.fetch("b", 10)
    leader.view(failed=("c",), version=3)
    assert of(fx.ProposeIsr, leader.fetch("c", 10)) == []
    assert of(fx.ProposeIsr, leader.tick(3, heard="bc")) == []


def test_what_was_said_of_the_copy_before_does_not_count_for_the_new_one(leader):
    leader.view(isr=("a", "b"), version=2)
    leader.fetch("b", 10)
    leader.view(failed=("c",), version=3)
    leader.fetch("c", 10, version=2)
    leader.view(failed=(), renewed={"c": 4}, version=4)
    assert of(fx.ProposeIsr, leader.tick(1, heard="b")) == []
    late = leader.fetch("c", 10, version=3)  # it was on its way in a connection that is gone
    assert (refusal(late), of(fx.ProposeIsr, late)) == (FollowRefusal.STALE_INCARNATION, [])
    assert of(fx.ProposeIsr, leader.fetch("c", 0, version=4)) == []
    assert of(fx.ProposeIsr, leader.fetch("c", 10, version=4))[0].isr == ("a", "b", "c")


def test_a_refusal_of_an_earlier_attempt_decides_nothing(leader):
    leader.view(isr=("a", "b"), version=2)
    leader.fetch("b", 10)
    leader.fetch("c", 10)
    leader.give(IsrRefused(version=2, attempt=1))
    (second,) = of(fx.ProposeIsr, leader.tick(0.5))
    leader.append(5)
    leader.durable()
    leader.fetch("b", 15)
    assert committed(leader.give(IsrRefused(version=2, attempt=second.attempt - 1))) == [], "the first was sent twice"
    assert leader.log.high_watermark == 10


def test_the_metadata_hear_once_when_the_first_records_are_committed(leader):
    leader.view(empty_from=0)
    told = [fx.ReportRecords(leader_epoch=5, end=4)]
    leader.fetch("b", 10)
    effects = leader.fetch("c", 4)
    assert committed(effects) == [4], "no ack waits for it"
    assert of(fx.ReportRecords, effects) == told
    assert of(fx.ReportRecords, leader.fetch("c", 10)) == [], "it is under way"
    again = of(fx.ReportRecords, leader.tick(0.5))
    assert again == [fx.ReportRecords(leader_epoch=5, end=10)]
    assert not leader.replica.is_quiet, "it is ticked until the metadata know"
    leader.view(empty_from=None)
    leader.append(1)
    leader.fetch("b", 11)
    assert of(fx.ReportRecords, [*leader.durable(), *leader.fetch("c", 11), *leader.tick(3, heard="bc")]) == []
    assert leader.replica.is_quiet


def test_records_that_were_committed_before_a_leader_began_are_told_too(make_leader):
    leader = make_leader("a", epochs=[(3, 0)], end=10, hw=10)
    leader.view(empty_from=10)
    assert of(fx.ReportRecords, leader.tick(1)) == [], "they were purged"
    leader.view(empty_from=7)
    assert of(fx.ReportRecords, leader.tick(1))[:1] == [fx.ReportRecords(leader_epoch=5, end=10)]


@pytest.fixture
def make_leader(leader):
    return type(leader)
