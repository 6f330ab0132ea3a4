"""Proves what a coordinator answers, what it writes, and what it refuses."""

import pytest

from liftpy_envelope.group_offsets import CommitOffset, CommitRequest, CommitStream
from liftpy_envelope.groups import GroupError
from liftpy_server.groups.core import coordinator as coordinator_module
from liftpy_server.groups.core.assignment import RestoredPartition, StreamShape
from liftpy_server.groups.core.inputs import DeleteGroup, GroupTick, StreamsChanged
from liftpy_server.groups.core.records import RecordKind

UUID = b"s" * 16


def partitions(answer):
    return [number for stream in answer.assignment for number in stream.partitions]


def errors(answer):
    return {refusal.key.partition: refusal.error for refusal in answer.refusals}


def test_the_first_member_gets_everything(group):
    answer = group.join("a")
    assert answer.error is GroupError.NONE
    assert partitions(answer) == [0, 1, 2, 3]
    assert [(stream.uuid, stream.name) for stream in answer.assignment] == [(UUID, "s")]
    assert {record.key[0] for record in group.effects.records} == {RecordKind.GROUP, RecordKind.MEMBER}


def test_joining_twice_is_joining_once(group):
    first = group.join("a")
    assert group.join("a") == first
    assert group.effects.records == ()


def test_a_heartbeat_without_news_writes_nothing(group):
    joined = group.join("a")
    answer = group.beat(joined.member_id, joined.generation)
    assert (answer.error, answer.generation, answer.assignment) == (GroupError.NONE, joined.generation, None)
    assert group.effects.records == ()


def test_a_partition_changes_hands_only_when_it_was_let_go(group):
    a, b = group.join("a"), group.join("b")
    assert partitions(b) == []
    assert a.member_id in group.effects.told
    news = group.beat(a.member_id, a.generation)
    assert len(partitions(news)) == 2
    assert group.beat(b.member_id, b.generation).assignment is None
    assert group.beat(a.member_id, news.generation).assignment is None
    assert group.effects.told == (b.member_id,)
    given = group.beat(b.member_id, b.generation)
    assert sorted(partitions(given) + partitions(news)) == [0, 1, 2, 3]
    assert given.generation > news.generation


def test_who_keeps_everything_is_not_disturbed(group):
    a, b = group.join("a"), group.join("b")
    news = group.beat(a.member_id, a.generation)
    group.beat(a.member_id, news.generation)
    given = group.beat(b.member_id, b.generation)
    group.step(StreamsChanged(2, {"s": StreamShape(UUID, 4), "other": StreamShape(b"o" * 16, 9)}))
    assert group.effects.records == group.effects.told == ()
    group.join("c", subscriptions=("none",))
    assert group.beat(a.member_id, news.generation).assignment is None
    assert group.beat(b.member_id, given.generation).assignment is None


def hand_over(group):
    """Two members with two partitions each."""
    a, b = group.join("a"), group.join("b")
    news = group.beat(a.member_id, a.generation)
    group.beat(a.member_id, news.generation)
    return news, group.beat(b.member_id, b.generation)


def test_a_commit_stands_for_its_owner_only(group):
    a, b = hand_over(group)
    mine, others = partitions(a)[0], partitions(b)[0]
    answer = group.commit(a.member_id, a.generation, 1, {mine: 10, others: 20})
    assert errors(answer) == {others: GroupError.NOT_ASSIGNED}
    assert group.committed() == {mine: 10}
    assert group.commit(b.member_id, b.generation, 1, {others: 21}).refusals == ()
    assert group.committed() == {mine: 10, others: 21}


def test_one_request_is_written_as_one(group):
    joined = group.join("a")
    group.commit(joined.member_id, joined.generation, 1, {0: 1, 1: 2, 2: 3})
    assert len(group.effects.records) == 3


def test_who_is_to_let_go_may_commit_until_it_did(group):
    a = group.join("a")
    group.join("b")
    news = group.beat(a.member_id, a.generation)
    lost = next(iter(set(range(4)) - set(partitions(news))))
    assert errors(group.commit(a.member_id, news.generation, 1, {lost: 1})) == {lost: GroupError.NOT_ASSIGNED}
    assert group.commit(a.member_id, a.generation, 2, {lost: 2}).refusals == ()
    group.beat(a.member_id, news.generation)
    assert errors(group.commit(a.member_id, a.generation, 3, {lost: 3})) == {lost: GroupError.NOT_ASSIGNED}
    assert group.committed() == {lost: 2}


def test_commits_that_arrive_late_or_twice(group):
    joined = group.join("a")
    assert group.commit(joined.member_id, joined.generation, 5, {0: 50}).refusals == ()
    assert group.commit(joined.member_id, joined.generation, 5, {0: 50}).refusals == ()
    assert group.effects.records == ()
    late = group.commit(joined.member_id, joined.generation, 4, {0: 40})
    assert errors(late) == {0: GroupError.STALE_GENERATION}
    group.restart()
    late = group.commit(joined.member_id, joined.generation, 4, {0: 40})
    assert errors(late) == {0: GroupError.STALE_GENERATION}
    assert group.commit(joined.member_id, joined.generation, 6, {0: 45}).refusals == ()
    assert group.committed() == {0: 45}


def test_a_commit_from_before_the_partition_came_back_is_stale(group):
    a, b = hand_over(group)
    kept, lost = partitions(a)[0], partitions(b)[0]
    group.leave(b.member_id)
    back = group.beat(a.member_id, a.generation)
    assert partitions(back) == [0, 1, 2, 3]
    answer = group.commit(a.member_id, a.generation, 1, {kept: 1, lost: 1})
    assert errors(answer) == {lost: GroupError.STALE_GENERATION}
    assert group.commit(a.member_id, back.generation, 2, {kept: 1, lost: 1}).refusals == ()


def test_joining_anew_voids_the_commits_from_before(group):
    a = group.join("a")
    again = group.join("a", revision=1)
    assert again.member_id == a.member_id
    assert errors(group.commit(a.member_id, a.generation, 1, {0: 1})) == {0: GroupError.STALE_GENERATION}
    assert group.commit(a.member_id, again.generation, 2, {0: 1}).refusals == ()
    assert group.join("a", revision=0).generation == again.generation


def test_who_wakes_after_its_session_can_commit_nothing(group):
    a = group.join("a")
    group.join("b")
    group.now_s += 5
    group.step(GroupTick())
    assert len(group.coordinator.members) == 2
    group.now_s += 1.1
    group.step(GroupTick())
    assert len(group.coordinator.members) == 0
    for restart in (False, True):
        if restart:
            group.restart()
        answer = group.commit(a.member_id, a.generation, 9, {0: 9})
        assert (answer.error, group.effects.records) == (GroupError.UNKNOWN_MEMBER, ())
    assert group.beat(a.member_id, a.generation).error is GroupError.UNKNOWN_MEMBER
    assert group.fetch(a.member_id, a.generation).error is GroupError.UNKNOWN_MEMBER
    assert group.committed() == {}


def test_a_pause_of_the_node_is_no_fault_of_the_members(group):
    group.join("a")
    due_s = group.coordinator.next_s
    assert due_s == pytest.approx(106)
    group.now_s += 60
    group.step(GroupTick(paused_s=60))
    assert len(group.coordinator.members) == 1
    assert group.coordinator.next_s == pytest.approx(due_s + 60)


def test_who_does_not_let_go_in_time_is_out(group):
    a, b = group.join("a"), group.join("b")
    for _ in range(10):
        group.now_s += 1
        group.beat(a.member_id, a.generation)
        group.beat(b.member_id, b.generation)
        group.step(GroupTick())
    assert group.beat(a.member_id, a.generation).error is GroupError.UNKNOWN_MEMBER
    assert partitions(group.beat(b.member_id, b.generation)) == [0, 1, 2, 3]


def test_leaving_hands_over_at_once(group):
    a, b = hand_over(group)
    assert group.leave(a.member_id).error is GroupError.NONE
    assert partitions(group.beat(b.member_id, b.generation)) == [0, 1, 2, 3]
    assert group.leave(a.member_id).error is GroupError.NONE


def test_a_static_member_takes_its_place_again(group):
    a = group.join("a", instance_id="i")
    b = group.join("b", instance_id="j")
    news = group.beat(a.member_id, a.generation)
    group.beat(a.member_id, news.generation)
    given = group.beat(b.member_id, b.generation)
    again = group.join("a2", instance_id="i")
    assert partitions(again) == partitions(news)
    assert again.member_id != a.member_id
    assert group.beat(b.member_id, given.generation).assignment is None
    for answer in (
        group.beat(a.member_id, news.generation, "i"),
        group.commit(a.member_id, news.generation, 9, {0: 9}, instance_id="i"),
        group.join("a", instance_id="i"),
    ):
        assert answer.error is GroupError.FENCED_MEMBER
        assert "stop" in answer.message
    assert group.commit(again.member_id, again.generation, 1, {partitions(again)[0]: 1}).refusals == ()


def test_what_a_static_member_was_to_let_go_its_successor_does_not_get(group):
    group.join("a", instance_id="i")
    b = group.join("b")
    again = group.join("a2", instance_id="i")
    given = group.beat(b.member_id, b.generation)
    assert sorted(partitions(again) + partitions(given)) == [0, 1, 2, 3]


def test_the_same_process_is_not_its_own_successor(group):
    a = group.join("a", instance_id="i")
    group.now_s += 7
    group.step(GroupTick())
    group.join("a", instance_id="i")
    assert group.beat(a.member_id, a.generation, "i").error is GroupError.UNKNOWN_MEMBER


def test_a_coordinator_that_knows_less_than_a_member_is_none_any_more(group):
    a = group.join("a")
    for answer in (
        group.beat(a.member_id, a.generation + 1),
        group.fetch(a.member_id, a.generation + 1),
        group.commit(a.member_id, a.generation + 1, 1, {0: 1}),
        group.beat("99-ab", 0),
    ):
        assert answer.error is GroupError.NOT_LEADER


@pytest.mark.parametrize("member_id", ["x", "-1-a", "1", "\u0661-a", "9" * 50, ""])
def test_ids_that_nobody_gave(group, member_id):
    group.join("a", instance_id="i")
    assert group.beat(member_id, 0).error is GroupError.UNKNOWN_MEMBER


def test_the_next_coordinator_changes_nothing(group):
    a, b = hand_over(group)
    group.commit(a.member_id, a.generation, 1, {partitions(a)[0]: 7})
    generation = group.coordinator.generation
    group.restart()
    assert group.effects.records == group.effects.told == ()
    assert group.coordinator.generation == generation
    assert group.beat(a.member_id, a.generation).assignment is None
    assert group.beat(b.member_id, b.generation).assignment is None
    assert group.committed() == {partitions(a)[0]: 7}
    assert group.coordinator.next_s == pytest.approx(group.now_s + 6)


def test_the_next_coordinator_waits_for_what_is_to_be_let_go(group):
    a, b = group.join("a"), group.join("b")
    group.restart()
    assert group.beat(b.member_id, b.generation).assignment is None
    news = group.beat(a.member_id, a.generation)
    group.beat(a.member_id, news.generation)
    assert len(partitions(group.beat(b.member_id, b.generation))) == 2


def test_nothing_is_answered_before_the_streams_are_known(group):
    a = group.join("a")
    group.restart(StreamsChanged(0, {}))
    for answer in (group.beat(a.member_id, a.generation), group.join("b"), group.commit("", -1, 0, {}), group.fetch()):
        assert answer.error is GroupError.NOT_AVAILABLE
    group.now_s += 60
    group.step(GroupTick())
    assert group.coordinator.next_s == float("inf")
    group.step(StreamsChanged(1, {"s": StreamShape(UUID, 4)}))
    assert group.beat(a.member_id, a.generation).assignment is None


def test_streams_that_come_and_go(group):
    a = group.join("a", subscriptions=("s", "t"))
    group.step(StreamsChanged(2, {"s": StreamShape(UUID, 4), "t": StreamShape(b"t" * 16, 2)}))
    more = group.beat(a.member_id, a.generation)
    assert [stream.name for stream in more.assignment] == ["s", "t"]
    group.step(StreamsChanged(3, {"t": StreamShape(b"t" * 16, 2), "s": StreamShape(b"n" * 16, 1)}))
    other = group.beat(a.member_id, more.generation)
    assert {stream.uuid for stream in other.assignment} == {b"n" * 16, b"t" * 16}
    group.beat(a.member_id, other.generation)
    assert errors(group.commit(a.member_id, other.generation, 1, {0: 1})) == {0: GroupError.NOT_ASSIGNED}
    group.step(StreamsChanged(2, {}))
    assert group.effects.records == ()


def test_without_members_whoever_may_commits(group):
    answer = group.commit("", -1, 0, {0: 10, 9: 1})
    assert errors(answer) == {9: GroupError.INVALID_REQUEST}
    group.commit("", -1, 0, {0: 5})
    assert group.committed() == {0: 5}
    assert errors(group.commit("", -1, 0, {0: 1}, name="t")) == {0: GroupError.UNKNOWN_STREAM}
    assert errors(group.commit("", -1, 0, {0: 1}, uuid=b"o" * 16)) == {0: GroupError.STREAM_RECREATED}
    joined = group.join("a")
    assert group.commit("", -1, 0, {0: 1}).error is GroupError.GROUP_NOT_EMPTY
    assert group.commit(joined.member_id, joined.generation, 0, {0: 6}).refusals == ()
    group.leave(joined.member_id)
    group.commit("", -1, 0, {0: 1})
    assert group.committed() == {0: 1}


def test_a_group_is_deleted_when_nobody_is_in_it(group):
    joined = group.join("a")
    group.commit(joined.member_id, joined.generation, 1, {0: 1, 1: 1})
    assert group.step(DeleteGroup()).error is GroupError.GROUP_NOT_EMPTY
    group.leave(joined.member_id)
    assert group.step(DeleteGroup(idle_ns=10**9)).error is GroupError.GROUP_NOT_EMPTY
    group.now_s += 1
    assert group.step(DeleteGroup(idle_ns=10**9)).error is GroupError.NONE
    assert [record.value for record in group.effects.records] == [None] * 3
    group.restart()
    assert group.committed() == {}
    assert group.coordinator.generation == 0


def test_a_group_takes_so_many_members(group, monkeypatch):
    monkeypatch.setattr(coordinator_module, "MEMBERS_MAX", 2)
    group.join("a", instance_id="i")
    group.join("b")
    assert group.join("c").error is GroupError.GROUP_FULL
    assert group.join("a2", instance_id="i").error is GroupError.NONE


def test_what_is_taken_and_given_back_may_be_kept(group):
    a, b = group.join("a"), group.join("b")
    lost = max(key.partition for key in group.coordinator.members[a.member_id].revoking)
    group.leave(b.member_id)
    assert group.coordinator.members[a.member_id].revoking == {}
    assert errors(group.commit(a.member_id, a.generation, 1, {lost: 3})) == {lost: GroupError.STALE_GENERATION}
    back = group.beat(a.member_id, a.generation)
    assert partitions(back) == [0, 1, 2, 3]
    assert group.commit(a.member_id, back.generation, 2, {lost: 3}).refusals == ()


@pytest.mark.parametrize(
    ("epoch", "later_ns", "end", "expected"),
    [
        (-1, 1, 5, 10_006),  # read, and not in the bucket
        (-1, 1, 7, -1),  # the bucket had it
        (-1, -1, 5, -1),  # committed since
        (2, 1, 5, 2),  # it is known
    ],
)
def test_an_offset_beyond_what_was_restored_is_one_of_an_epoch_before(group, epoch, later_ns, end, expected):
    stream = CommitStream(UUID, "s", (CommitOffset(0, 7, epoch),))
    group.step(CommitRequest("g", "", "", -1, 0, (stream,)))
    recovery = RestoredPartition(int(group.now_s * 1e9) + later_ns, end, 10_007)
    group.step(StreamsChanged(2, {"s": StreamShape(UUID, 4, (), ((0, recovery),))}))
    assert [(row.offset, row.epoch) for row in group.fetch().offsets] == [(7, expected)]
