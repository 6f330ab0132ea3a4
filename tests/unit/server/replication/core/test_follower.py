"""The follower: how it makes its log a prefix of the leader's, and when it doubts the leader."""

from __future__ import annotations

import pytest

from liftpy_envelope.follow import FollowRefusal
from liftpy_server.replication.core import effects as fx
from liftpy_server.replication.core.inputs import AppendFailed, CutFailed, GaveUp, LogFailed, Rebuilt, Tick, Truncated


def only(kind, effects):
    (effect,) = effects
    assert isinstance(effect, kind)
    return effect


def following(make, **log):
    bench = make("b", **log)
    return bench, bench.view()


@pytest.fixture
def make(leader):
    return type(leader)


def test_it_asks_before_its_first_fetch_and_truncates_to_the_smaller_end(make):
    bench, begun = following(make, epochs=[(2, 0), (3, 5)], end=9, hw=4)
    question = only(fx.AskEpochEnd, begun).question
    assert (question.last_epoch, question.leader_epoch) == (3, 5)
    assert bench.answer_end(question, 3, 7) == [fx.Truncate(end=7, loses_committed=False)]
    request = only(fx.Fetch, bench.give(Truncated(end=7))).request
    assert (request.offset, request.last_epoch, request.durable_end) == (7, 3, 7)


def test_it_keeps_what_is_above_its_high_watermark_where_the_leader_has_it(make):
    bench, begun = following(make, epochs=[(3, 0)], end=9, hw=2)
    assert only(fx.Fetch, bench.answer_end(only(fx.AskEpochEnd, begun).question, 3, 30)).request.offset == 9


def test_it_asks_again_until_the_epochs_agree(make):
    """Two fast failovers: its last two epochs are unknown to the leader, which has others between them."""
    bench, begun = following(make, epochs=[(1, 0), (4, 6), (7, 8)], end=12)
    question = only(fx.AskEpochEnd, begun).question
    assert only(fx.Truncate, bench.answer_end(question, 6, 20)).end == 8
    question = only(fx.AskEpochEnd, bench.give(Truncated(end=8))).question
    assert question.last_epoch == 4
    assert only(fx.Truncate, bench.answer_end(question, 3, 7)).end == 6
    question = only(fx.AskEpochEnd, bench.give(Truncated(end=6))).question
    assert question.last_epoch == 1
    assert only(fx.Truncate, bench.answer_end(question, 1, 4)).end == 4
    assert only(fx.Fetch, bench.give(Truncated(end=4))).request.last_epoch == 1


def test_committed_records_are_kept_although_the_leader_lacks_them(make):
    bench, begun = following(make, epochs=[(3, 0)], end=9, hw=8)
    kept = [fx.KeepCommitted(leader="a", end=5, high_watermark=8)]
    assert bench.answer_end(only(fx.AskEpochEnd, begun).question, 3, 5) == kept
    question = only(fx.AskEpochEnd, bench.tick(1)).question  # it asks again after a while
    assert bench.answer_end(question, -1, 2) == [fx.KeepCommitted(leader="a", end=2, high_watermark=8)]
    assert bench.log.end == 9


def test_an_unclean_election_that_it_followed_already_explains_nothing(make):
    bench = make("b", epochs=[(3, 0), (4, 6)], end=9, hw=8)
    begun = bench.view(unclean_epoch=4)
    only(fx.KeepCommitted, bench.answer_end(only(fx.AskEpochEnd, begun).question, 4, 7))


def test_a_truncation_below_the_high_watermark_is_told(make):
    bench = make("b", epochs=[(3, 0)], end=9, hw=8)
    begun = bench.view(unclean_epoch=4)
    assert bench.answer_end(only(fx.AskEpochEnd, begun).question, 3, 5) == [fx.Truncate(end=5, loses_committed=True)]
    bench.give(Rebuilt(start=0))  # the old log is set aside
    assert (bench.log.high_watermark, bench.log.end) == (0, 0)


def test_what_an_unclean_election_passed_over_may_have_been_committed(make):
    """Who was killed knows of commits only up to its last checkpoint: what is above may have been acknowledged."""
    for answered in ((3, 8), (-1, 0)):
        bench = make("b", epochs=[(3, 0)], end=9, hw=4)
        begun = bench.view(unclean_epoch=4)
        (cut,) = bench.answer_end(only(fx.AskEpochEnd, begun).question, *answered)
        assert cut.loses_committed, answered


def test_a_log_that_an_unclean_election_cut_nothing_from_is_followed_on(make):
    bench = make("b", epochs=[(3, 0)], end=9, hw=4)
    begun = bench.view(unclean_epoch=4)
    assert only(fx.Fetch, bench.answer_end(only(fx.AskEpochEnd, begun).question, 3, 9)).request.offset == 9
    bench = make("b", epochs=[(3, 0)], end=9, hw=4)
    begun = bench.view(unclean_epoch=4)
    (rebuilt,) = bench.answer_end(only(fx.AskEpochEnd, begun).question, -1, 20)
    assert rebuilt == fx.Rebuild(start=20, loses_committed=False), "retention dropped these at the leader"


def test_an_empty_log_agrees_with_any(make):
    _, begun = following(make)
    assert only(fx.Fetch, begun).request.offset == 0


def test_a_log_that_can_not_be_compared_is_rebuilt(make):
    bench, begun = following(make, epochs=[(1, 0)], end=9, hw=9)
    question = only(fx.AskEpochEnd, begun).question
    assert bench.answer_end(question, -1, 20) == [fx.Rebuild(start=20, loses_committed=False)]
    assert only(fx.Fetch, bench.give(Rebuilt(start=20))).request.offset == 20
    assert (bench.log.start, bench.log.end, bench.log.high_watermark) == (20, 20, 20)


def test_a_log_below_the_leaders_start_is_rebuilt(make):
    bench, begun = following(make)
    request = only(fx.Fetch, begun).request
    effects = bench.answer(request, refusal=FollowRefusal.BELOW_START, log_start=50)
    assert effects == [fx.Rebuild(start=50, loses_committed=False)]


def test_a_leader_that_finds_the_logs_apart_is_asked_again(make):
    bench, begun = following(make, epochs=[(3, 0)], end=9)
    request = only(fx.Fetch, bench.answer_end(only(fx.AskEpochEnd, begun).question, 3, 9)).request
    assert only(fx.AskEpochEnd, bench.answer(request, refusal=FollowRefusal.DIVERGED)).question.last_epoch == 3


def test_a_log_without_records_that_the_leader_does_not_reach_is_rebuilt(make):
    bench, begun = following(make)
    effects = bench.answer(only(fx.Fetch, begun).request, refusal=FollowRefusal.DIVERGED, log_start=3)
    assert only(fx.Rebuild, effects).start == 3


@pytest.mark.parametrize("changes", [{"leader_epoch": 4}, {"incarnation": 0}, {"question": 7}])
def test_an_answer_to_another_question_moves_nothing(make, changes):
    """A late answer may name an end that the follower has helped to commit records beyond."""
    bench, begun = following(make, epochs=[(3, 0)], end=9)
    assert bench.answer_end(only(fx.AskEpochEnd, begun).question, 3, 1, **changes) == []


def test_what_the_leader_sent_is_appended_and_fetched_on(make):
    bench, begun = following(make)
    append = only(fx.Append, bench.answer(only(fx.Fetch, begun).request, (5, 0, 4), hw=2, records="r"))
    assert append.fetched.records == "r"
    assert bench.log.end == 0  # until the shell says so
    advanced, fetch = bench.append(4)
    assert advanced == fx.AdvanceHighWatermark(offset=2)
    assert (fetch.request.offset, fetch.request.durable_end) == (4, 0)
    fetch = only(fx.Fetch, bench.durable())
    assert (fetch.request.offset, fetch.request.durable_end) == (4, 4)


def test_its_high_watermark_is_never_beyond_its_log(make):
    bench, begun = following(make)
    bench.answer(only(fx.Fetch, begun).request, (5, 0, 4), hw=90)
    advanced, _ = bench.append(4)
    assert advanced.offset == 4


@pytest.mark.parametrize("changes", [{"leader_epoch": 4}, {"leader_epoch": 6}, {"incarnation": 0}, {"offset": 1}])
def test_an_answer_that_does_not_fit_is_ignored(make, changes):
    bench, begun = following(make)
    assert bench.answer(only(fx.Fetch, begun).request, (5, 0, 4), **changes) == []


def test_an_answer_that_comes_twice_is_appended_once(make):
    bench, begun = following(make)
    request = only(fx.Fetch, begun).request
    bench.answer(request, (5, 0, 4))
    assert bench.answer(request, (5, 0, 4)) == []
    bench.append(4)
    assert bench.answer(request, (5, 0, 4)) == []


def test_a_full_disk_is_tried_again_after_a_while(make):
    bench, begun = following(make)
    bench.answer(only(fx.Fetch, begun).request, (5, 0, 4))
    assert bench.give(AppendFailed()) == []
    assert bench.tick(0.5) == []
    assert only(fx.Fetch, bench.tick(0.5)).request.offset == 0


def test_a_cut_that_finds_no_room_is_tried_again_after_a_while(make):
    bench, begun = following(make, epochs=[(3, 0)], end=9)
    cut = [fx.Truncate(end=7, loses_committed=False)]
    assert bench.answer_end(only(fx.AskEpochEnd, begun).question, 3, 7) == cut
    assert bench.give(CutFailed()) == []
    assert bench.tick(0.5) == []
    question = only(fx.AskEpochEnd, bench.tick(0.5)).question
    assert bench.answer_end(question, 3, 7) == cut


@pytest.mark.parametrize("log", [{}, {"epochs": [(3, 0)], "end": 9}])
def test_what_is_lost_on_the_way_is_sent_again(make, log):
    bench, (sent,) = following(make, **log)
    assert bench.tick(0.5) == []
    (again,) = bench.tick(0.5)
    assert type(again) is type(sent)


@pytest.mark.parametrize("log", [{}, {"epochs": [(3, 0)], "end": 9}])
@pytest.mark.parametrize("why", [FollowRefusal.NOT_LEADER, FollowRefusal.STALE_INCARNATION])
def test_a_leader_that_does_not_know_yet_is_asked_again_at_the_next_tick(make, log, why):
    bench, (sent,) = following(make, **log)
    if isinstance(sent, fx.Fetch):
        assert bench.answer(sent.request, refusal=why, leader_epoch=-1) == []
    else:
        assert bench.answer_end(sent.question, -1, 0, refusal=why, leader_epoch=-1) == []
    (again,) = bench.tick(0.5)
    assert type(again) is type(sent)


def suspicions(effects):
    return [effect for effect in effects if isinstance(effect, fx.SuspectLeader)]


def test_a_silent_leader_is_suspected_again_and_again(make):
    bench, _ = following(make)
    assert suspicions(bench.tick(1.5)) == []
    assert suspicions(bench.tick(0.5)) == [fx.SuspectLeader(leader="a", leader_epoch=5)]
    assert suspicions(bench.tick(1.5)) == []
    assert len(suspicions(bench.tick(0.5))) == 1


def test_a_leader_that_answers_is_not(make):
    bench, begun = following(make)
    request = only(fx.Fetch, begun).request
    for _ in range(6):
        assert suspicions(bench.tick(1.5)) == []
        bench.answer(request)


def test_a_leader_that_only_refuses_is_silent(make):
    bench, begun = following(make)
    request = only(fx.Fetch, begun).request
    found = []
    for _ in range(4):
        bench.answer(request, refusal=FollowRefusal.STALE_INCARNATION)
        found += suspicions(bench.tick(0.5))
    assert len(found) == 1


def test_who_is_not_in_sync_suspects_nobody(make):
    bench = make("b")
    bench.view(isr=("a", "c"))
    assert suspicions(bench.tick(10)) == []


def test_its_own_pause_is_not_the_leaders_silence(make):
    bench, _ = following(make)
    bench.now_s += 100
    assert suspicions(bench.tick(paused_s=100)) == []
    assert suspicions(bench.tick(1.5)) == []
    assert len(suspicions(bench.tick(0.5))) == 1


def test_an_observer_suspects_nobody(make):
    bench = make("c")
    bench.view(observers=("c",))
    assert suspicions(bench.tick(10)) == []


def test_a_leader_that_is_heard_while_a_fetch_waits_is_not_silent_and_not_asked_again(make):
    bench, _ = following(make)
    assert bench.tick(30, heard="a") == []
    assert suspicions(bench.tick(1.5)) == []
    assert len(suspicions(bench.tick(1))) == 1


def test_a_leader_that_is_heard_while_no_fetch_waits_is_silent(make):
    """Its node lives, but it does not lead this partition."""
    bench, begun = following(make)
    request = only(fx.Fetch, begun).request
    found = []
    for _ in range(5):
        bench.answer(request, refusal=FollowRefusal.NOT_LEADER, leader_epoch=-1)
        found += suspicions(bench.give(Tick(heard_s={"a": bench.now_s})))
        bench.now_s += 0.5
    assert len(found) == 1


def test_who_wants_to_join_says_again_what_it_has(make):
    bench = make("b")
    bench.view(isr=("a", "c"))
    assert len(bench.tick(3, heard="a")) == 3
    bench.view(observers=("b",), version=2)
    assert bench.tick(3, heard="a") == []


def test_a_follower_whose_log_failed_follows_nobody(make):
    bench, begun = following(make)
    bench.answer(only(fx.Fetch, begun).request, (5, 0, 4))
    assert bench.view(isr=("a", "b"), version=2) == []  # waits for the append
    assert bench.give(LogFailed()) == [fx.ReportFailure(high_watermark=0)]
    assert bench.append(4) == []
    assert bench.replica.log.end == 0
    assert bench.view(leader="b", leader_epoch=6, version=3, failed=("b",)) == []
    assert bench.tick(20) == []


def test_a_replica_tells_that_its_log_failed_until_the_metadata_knows(make):
    bench, _ = following(make)
    assert bench.give(LogFailed()) == [fx.ReportFailure(high_watermark=0)]
    assert bench.tick() == [], "not at once again"
    assert bench.tick(0.5) == [fx.ReportFailure(high_watermark=0)]
    assert not bench.replica.is_quiet
    bench.now_s += 1
    assert bench.view(isr=("a", "c"), version=2) == [fx.ReportFailure(high_watermark=0)], (
        "it left the ISR for another reason"
    )
    assert bench.view(failed=("b",), version=3) == []
    assert bench.tick(5) == []
    assert bench.replica.is_quiet


def test_who_gave_up_has_a_log_that_is_well(make):
    bench, _ = following(make)
    assert bench.give(GaveUp()) == []
    assert bench.view(leader="b", leader_epoch=6, version=3) == []
    assert bench.tick(20) == []


def test_a_new_copy_follows_when_the_metadata_knows_of_it(make):
    bench = make("b")
    assert bench.view(isr=("a", "c"), failed=("b",), version=4) == [fx.ReportRenewal()]
    assert bench.tick(0.5) == [fx.ReportRenewal()]
    assert bench.replica.role is None
    (fetch,) = bench.view(failed=(), renewed={"b": 5}, version=5)
    assert (fetch.request.offset, fetch.request.version) == (0, 5)


def test_a_log_that_may_be_damaged_is_not_reported_as_one_to_elect(make):
    bench = make("b", epochs=[(3, 0)], end=9)
    gone = {"leader": None, "isr": ()}
    assert bench.view(**gone, failed=("b",)) == [fx.ReportRenewal()], "every batch of it was read and is well"
    bench.now_s += 1
    report = fx.ReportLog(leader_epoch=5, last_epoch=3, log_end=9, high_watermark=0)
    assert bench.view(failed=()) == [report]


def test_who_may_not_trust_its_log_any_more_reports_that_it_has_failed(make):
    bench = make("b", epochs=[(3, 0)], end=9, hw=4)
    bench.give(LogFailed())
    assert bench.view(leader=None, isr=()) == [fx.ReportFailure(high_watermark=4)]
    bench.now_s += 1
    report = fx.ReportLog(leader_epoch=5, last_epoch=-1, log_end=0, high_watermark=4)
    assert bench.view(failed=("b",)) == [report], "it has none to offer, and knows what was committed"


def fetching(make, **log):
    """A follower whose log agrees with its leader's, and its fetch."""
    bench = make("b", epochs=[(3, 0)], **log)
    begun = bench.view(delete_retention_s=60.0)
    return bench, only(fx.Fetch, bench.answer_end(only(fx.AskEpochEnd, begun).question, 3, 100)).request


def test_who_was_away_while_tombstones_went_begins_anew(make):
    bench, request = fetching(make, end=9, hw=9)
    effects = bench.answer(request, (5, 9, 20), hw=100, delete_horizon=10, log_start=2)
    assert effects == [fx.Rebuild(start=2, loses_committed=False)]
    request = only(fx.Fetch, bench.give(Rebuilt(start=2))).request
    assert request.offset == 2
    only(fx.Append, bench.answer(request, (5, 2, 5), hw=100, delete_horizon=10, log_start=2))
    assert bench.log.delete_horizon == 10


@pytest.mark.parametrize("delete_horizon", [0, 8, 9])
def test_who_has_all_tombstones_that_may_be_gone_goes_on(make, delete_horizon):
    bench, request = fetching(make, end=9, hw=9)
    only(fx.Append, bench.answer(request, (5, 9, 20), hw=100, delete_horizon=delete_horizon))
    assert bench.log.delete_horizon == delete_horizon


def copying(make, after_s):
    """A follower that has begun with an empty log, and its fetch `after_s` later."""
    bench = make("b")
    begun = bench.view(delete_retention_s=60.0)
    request = only(fx.Fetch, begun).request
    only(fx.Append, bench.answer(request, (5, 0, 4), hw=100, delete_horizon=10))
    bench.now_s += after_s
    *_, fetch = bench.append(4)
    return bench, fetch.request


def test_tombstones_that_go_while_a_log_is_copied_are_no_reason_to_begin_again(make):
    bench, request = copying(make, 59.0)
    only(fx.Append, bench.answer(request, (5, 4, 8), hw=100, delete_horizon=50))
    assert bench.log.delete_horizon == 50


def test_a_copy_that_takes_longer_than_tombstones_stay_begins_again(make):
    bench, request = copying(make, 61.0)
    assert only(fx.Rebuild, bench.answer(request, (5, 4, 8), hw=100, delete_horizon=50)).start == 0


def test_a_copy_that_goes_on_from_another_leader_begins_again_when_more_is_gone_there(make):
    bench, _ = copying(make, 1.0)
    question = only(fx.AskEpochEnd, bench.view(leader="c", leader_epoch=6)).question
    request = only(fx.Fetch, bench.answer_end(question, 5, 100)).request
    assert only(fx.Rebuild, bench.answer(request, (6, 4, 8), hw=100, delete_horizon=50)).start == 0
