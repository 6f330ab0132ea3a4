"""The replica: which role it takes, and when it may not."""

from __future__ import annotations

import pytest

from liftpy_envelope.follow import FollowRefusal
from liftpy_server.metadata.state import LogReport, MetadataState
from liftpy_server.replication.core import effects as fx
from liftpy_server.replication.core.follower import Follower
from liftpy_server.replication.core.inputs import LogAppended, StartAdvanced, Tick, Truncated, ViewChanged
from liftpy_server.replication.core.leader import Leader
from liftpy_server.replication.core.progress import EndSamples
from liftpy_server.replication.core.ranges import BatchRange
from liftpy_server.replication.core.view import LogMarks, PartitionView
from support.metadata_commands import UUIDS, Author


@pytest.fixture
def make(leader):
    return type(leader)


@pytest.mark.parametrize(
    "view",
    [
        {"incarnations": {"b": 1}},  # it has not registered
        {"incarnations": {"a": 2, "b": 1}},  # a later process of this node has
        {"leader": None},
        {"replicas": ("b", "c"), "leader": "b"},
        {"uuid": "another"},  # deleted, and created again under the same name
    ],
)
def test_without_a_part_in_it_there_is_no_role(make, view):
    bench = make("a", epochs=[(1, 0)], end=3)
    assert bench.view(**view) == []
    assert bench.replica.role is None
    assert bench.tick(20) == []
    (answer,) = bench.fetch("b", 3)
    assert answer.answer.refusal is FollowRefusal.NOT_LEADER
    (answer,) = bench.ask("b", 1)
    assert answer.answer.refusal is FollowRefusal.NOT_LEADER


def test_a_process_that_was_replaced_steps_down(leader):
    effects = leader.view(incarnations={"a": 2, "b": 1, "c": 1})
    assert effects == [fx.LeadershipEnded(leader_epoch=5)]
    assert leader.replica.role is None


def test_views_that_come_out_of_order_are_ignored(make):
    bench = make("a")
    bench.view(leader="b", leader_epoch=6, revision=9)
    assert bench.view(leader="a", leader_epoch=5, revision=8) == []
    assert isinstance(bench.replica.role, Follower)


def test_views_of_a_stream_that_was_recreated_do_not_end_a_role(leader):
    assert leader.view(uuid="another", leader="b", leader_epoch=1) == []
    assert isinstance(leader.replica.role, Leader)


def test_a_new_role_waits_for_the_log(make):
    bench = make("b", epochs=[(3, 0)], end=9)
    (ask,) = bench.view()
    bench.answer_end(ask.question, 3, 6)
    assert bench.view(leader="b", leader_epoch=6, version=2) == []  # the truncation is under way
    assert bench.view(leader="b", leader_epoch=7, version=3) == []
    effects = bench.give(Truncated(end=6))
    assert fx.LeadershipBegan(leader_epoch=7, first_offset=6) in effects
    assert fx.LeadershipBegan(leader_epoch=6, first_offset=6) not in effects


def test_a_role_that_stays_the_same_goes_on_after_it_has_waited(make):
    """A view that changes nothing for this replica comes while it truncates."""
    bench = make("b", epochs=[(3, 0)], end=9)
    (ask,) = bench.view()
    bench.answer_end(ask.question, 3, 6)
    bench.view(isr=("a", "b"), version=2)
    (fetch,) = bench.give(Truncated(end=6))
    assert fetch.request.offset == 6


def test_what_was_appended_for_an_earlier_leader_counts_for_the_next_role(make):
    bench = make("b")
    (fetch,) = bench.view()
    bench.answer(fetch.request, (5, 0, 4))
    assert bench.view(leader="b", leader_epoch=6, version=2) == []
    effects = bench.append(4)
    assert fx.LeadershipBegan(leader_epoch=6, first_offset=4) in effects


def test_where_nobody_is_clean_it_reports_its_log_and_repeats_it(make):
    bench = make("b", epochs=[(3, 0)], end=9)
    report = fx.ReportLog(leader_epoch=5, last_epoch=3, log_end=9, high_watermark=0)
    assert bench.view(leader=None, isr=()) == [report]
    assert bench.tick(1) == [report, report]
    assert bench.view(reports=(LogReport("b", 1, 3, 8),)) == []
    assert bench.tick(0.5) == [report]  # the metadata has it wrong
    assert bench.view(reports=(LogReport("a", 1, 3, 9), LogReport("b", 1, 3, 9))) == []
    assert bench.tick(3) == []  # it has it right
    assert bench.view(leader="a", isr=("a",), leader_epoch=6, reports=()) != [report]


def test_a_report_is_not_repeated_at_once_and_not_by_a_process_that_was_replaced(make):
    bench = make("b", epochs=[(3, 0)], end=9)
    assert len(bench.view(leader=None, isr=())) == 1
    assert bench.tick() == []
    assert bench.view(incarnations={"a": 1, "b": 2, "c": 1}) == []
    assert bench.tick(3) == []


def test_it_reports_nothing_before_all_of_its_log_is_on_disk(make):
    """Whoever is elected by its report must have on disk what the report says."""
    bench = make("b", epochs=[(3, 0)], end=9, durable=4)
    assert bench.view(leader=None, isr=()) == []
    assert bench.tick(3) == []
    assert not bench.replica.is_quiet, "it is ticked until it has reported"
    bench.durable()
    assert bench.tick(0.5) == [fx.ReportLog(leader_epoch=5, last_epoch=3, log_end=9, high_watermark=0)]


def test_while_one_is_clean_or_leads_and_where_it_keeps_no_copy_it_reports_nothing(make):
    bench = make("c", epochs=[(3, 0)], end=9)
    assert bench.view(leader=None, isr=("b",)) == []
    assert bench.view(leader=None, isr=(), replicas=("a", "b")) == []
    assert bench.tick(3) == []


def test_it_reports_what_it_knows_to_be_committed_although_its_log_is_lost(make):
    bench = make("b", known_end=7)
    report = fx.ReportLog(leader_epoch=5, last_epoch=-1, log_end=0, high_watermark=7)
    assert bench.view(leader=None, isr=()) == [report]
    bench.view(leader="a", isr=("a",), leader_epoch=6, unclean_epoch=6)  # an operator decided
    bench.view(leader=None, isr=())
    assert bench.tick(0.5)[-1] == fx.ReportLog(leader_epoch=6, last_epoch=-1, log_end=0, high_watermark=0)


def test_retention_moves_the_start(leader):
    leader.fetch("b", 10)
    leader.fetch("c", 10)
    assert leader.give(StartAdvanced(start=4)) == []
    assert leader.log.start == 4
    with pytest.raises(AssertionError):
        leader.give(StartAdvanced(start=11))


def test_time_that_passes_before_any_view_does_nothing(make):
    bench = make("a")
    assert bench.give(Tick()) == []
    assert bench.give(LogAppended(ranges=(BatchRange(epoch=1, base=0, end=2),))) == []
    assert bench.durable() == []
    assert bench.log.durable_end == 2


def test_a_view_is_of_one_partition():
    author = Author()
    author.register("n1")
    author.create()
    view = PartitionView.of(author.state, "orders", 0)
    assert view is not None
    assert (view.uuid, view.leader, view.min_isr, view.incarnations) == (UUIDS[0], "n1", 1, {"n1": 1})
    assert ViewChanged(view=view).view.revision == 2
    assert PartitionView.of(author.state, "orders", 1) is None
    assert PartitionView.of(MetadataState(), "orders", 0) is None


def test_marks_hold_together():
    marks = LogMarks(end=9, durable_end=4, high_watermark=20, epochs=[(1, 0), (2, 6)])
    assert marks.high_watermark == 9  # what was checkpointed is gone
    marks.truncate(6)
    assert (marks.end, marks.durable_end, marks.high_watermark, marks.epochs.latest) == (6, 4, 6, 1)
    marks.sync(9)
    assert marks.durable_end == 6
    for spoil in (lambda: marks.truncate(7), lambda: marks.append(2, 5, 9), lambda: marks.append(1, 6, 6)):
        with pytest.raises(AssertionError):
            spoil()


def test_samples_are_few_and_reach_back_far_enough():
    samples = EndSamples(8.0, 0)
    for step in range(10_000):
        samples.add(step / 100, step)
    assert samples.latest_within(9_999) > 99
    assert 91 < samples.latest_within(9_200) <= 92
    assert samples.latest_within(10) == float("-inf")
    samples.shift(5.0, 100.0)
    assert 96 < samples.latest_within(9_200) <= 97
    assert samples.latest_within(9_999) == 100


def test_a_log_that_grows_after_a_long_rest_was_as_long_as_before_until_then():
    samples = EndSamples(8.0, 5)
    samples.add(0.0, 5)
    samples.add(70.0, 6)
    assert samples.latest_within(5) == 70
