"""A member of a group, without a network: what it asks, what answers mean, and when all is lost."""

from __future__ import annotations

import pytest

from liftpy_client.errors import GroupFencedError, GroupRefusedError
from liftpy_client.group.member import Assignment, GroupMember, JoinOptions
from liftpy_envelope.group_offsets import CommitOffset, CommitResult, FetchedOffset, OffsetFetchResult
from liftpy_envelope.groups import AssignedStream, GroupError, HeartbeatRequest, JoinRequest, MembershipResult
from liftpy_envelope.pull import PartitionKey

UUID = bytes(range(16))
JOIN_OPTIONS = JoinOptions("g", "", "me", "", 4_000, 12_000, ("s",))


def key(number):
    return PartitionKey(UUID, number)


def told(generation, *numbers, member_id="1-m"):
    return MembershipResult(GroupError.NONE, "", member_id, generation, (AssignedStream(UUID, "s", numbers),))


def heard(generation, member_id="1-m"):
    return MembershipResult(GroupError.NONE, "", member_id, generation, None)


def refused(error, message="because"):
    return MembershipResult(error, message)


def joined(*numbers):
    """A member that has adopted its first assignment, and reads it."""
    member = GroupMember(JOIN_OPTIONS, b"n" * 16, 0.0)
    assert member.answered(member.request(500), told(1, *numbers), 0.0) is None
    assert member.adopt(member.pending)
    for number in numbers:
        member.begin(key(number))
    return member


def test_it_joins_and_heartbeats_with_what_it_adopted():
    member = GroupMember(JOIN_OPTIONS, b"n" * 16, 0.0)
    request = member.request(500)
    assert isinstance(request, JoinRequest)
    assert (request.revision, request.subscriptions, request.nonce) == (0, ("s",), b"n" * 16)
    member.answered(request, told(3, 0, 1), 0.0)
    assert member.request(500) == HeartbeatRequest("g", "1-m", "", 0, 0)
    assert member.pending == Assignment("1-m", 3, frozenset({key(0), key(1)}))
    assert member.adopt(member.pending)
    assert member.request(500) == HeartbeatRequest("g", "1-m", "", 3, 500)
    assert member.pending is None
    assert member.owned.keys() == member.unfetched == {key(0), key(1)}


def test_a_join_is_repeated_until_it_is_answered():
    member = GroupMember(JOIN_OPTIONS, b"n" * 16, 0.0)
    first = member.request(0)
    assert member.answered(first, refused(GroupError.NOT_AVAILABLE), 0.0) is None
    assert member.request(0) == first


def test_only_the_newest_assignment_is_adopted():
    member = joined(0, 1)
    member.answered(member.request(0), told(5, 1, 2), 1.0)
    newest = member.pending
    member.answered(member.request(0), told(4, 0), 1.0)
    assert member.pending == newest
    assert member.adopt(newest)
    assert not member.adopt(Assignment("1-m", 4, frozenset()))
    assert member.owned == {key(1): 1, key(2): 5}
    assert member.unfetched == {key(2)}


def test_an_older_assignment_may_be_adopted_while_a_newer_one_waits():
    member = joined(0, 1)
    member.answered(member.request(0), told(2, 0), 1.0)
    older = member.pending
    member.answered(member.request(0), told(3, 0, 1), 1.0)
    assert member.adopt(older)
    assert member.pending.generation == 3
    assert member.adopt(member.pending)
    assert member.owned == {key(0): 1, key(1): 3}
    assert member.unfetched == {key(1)}  # it was let go: its offset is fetched anew


def test_an_unknown_member_loses_all_and_joins_anew():
    member = joined(0, 1)
    before = member.request(0)
    lost = member.answered(before, refused(GroupError.UNKNOWN_MEMBER, "gone"), 1.0)
    assert lost == (frozenset({key(0), key(1)}), "gone")
    assert (member.owned, member.member_id, member.pending) == ({}, "", None)
    assert member.request(0).revision == 1
    # The answer to another request of that membership means nothing any more.
    assert member.answered(before, refused(GroupError.UNKNOWN_MEMBER), 1.0) is None
    assert member.request(0).revision == 1


def test_what_a_join_of_before_is_answered_does_not_count():
    member = GroupMember(JOIN_OPTIONS, b"n" * 16, 0.0)
    old = member.request(0)
    member.answered(old, told(1, 0), 0.0)
    member.answered(member.request(0), refused(GroupError.UNKNOWN_MEMBER), 0.0)
    member.answered(old, told(1, 0), 0.0)
    assert not member.is_joined


def test_a_fenced_member_ends():
    member = joined(0)
    with pytest.raises(GroupFencedError, match="stop this one"):
        member.answered(member.request(0), refused(GroupError.FENCED_MEMBER, "stop this one"), 0.0)
    with pytest.raises(GroupRefusedError, match="full"):
        member.answered(member.request(0), refused(GroupError.GROUP_FULL, "full"), 0.0)


def test_standing_still_for_longer_than_the_session_loses_all():
    member = joined(0)
    for tick in range(1, 8):
        member.beat(tick * 0.5)
    member.answered(member.request(0), heard(1), 3.0)
    assert member.beat(6.9) is None  # 3.9 s since it was heard
    member = joined(0)
    member.beat(0.5)
    lost = member.beat(4.6)
    assert lost is not None
    assert lost.keys == {key(0)}
    assert "stood still" in lost.reason
    assert member.commit({key(0): CommitOffset(0, 5)}) is None


def test_an_answer_counts_from_when_it_was_asked_for():
    """It may have waited in the socket while the process stood still."""
    member = joined(0)
    for tick in range(1, 8):
        member.beat(tick * 0.5)
    member.answered(member.request(0), heard(1), 0.4)
    assert member.beat(4.3) is None
    lost = member.beat(5.5)  # no answer came to anything that was asked for in the last 4 s
    assert lost is not None
    assert "not heard of for 5.1 s" in lost.reason


def test_a_coordinator_that_is_silent_is_waited_for_longer():
    member = joined(0)
    for tick in range(1, 25):
        assert member.beat(tick * 0.5) is None, tick
    lost = member.beat(12.5)
    assert lost is not None
    assert "could not be reached" in lost.reason


def test_who_is_no_member_has_nothing_to_lose():
    member = GroupMember(JOIN_OPTIONS, b"n" * 16, 0.0)
    assert member.beat(1_000.0) is None
    assert member.leave() is None


def test_commits_are_numbered_and_only_of_what_it_reads():
    member = joined(0, 1)
    member.answered(member.request(0), told(2, 1, 2), 1.0)
    member.adopt(member.pending)
    rows = {key(number): CommitOffset(number, 7) for number in range(4)}
    first, second = member.commit(rows), member.commit(rows)
    assert [row.partition for row in first.streams[0].offsets] == [1]
    assert (first.generation, first.streams[0].name) == (2, "s")
    assert second.sequence > first.sequence
    unread = member.commit(rows, unread=True)
    assert [row.partition for row in unread.streams[0].offsets] == [1, 2]


def test_offsets_come_only_for_what_waits_for_them():
    member = GroupMember(JOIN_OPTIONS, b"n" * 16, 0.0)
    member.answered(member.request(0), told(1, 0, 1), 0.0)
    member.adopt(member.pending)
    request = member.fetch()
    result = OffsetFetchResult(GroupError.NONE, "", (FetchedOffset(key(0), 5, 1, b""),))
    found, lost = member.fetched(request, result)
    assert ({at: row and row.offset for at, row in found.items()}, lost) == ({key(0): 5, key(1): None}, None)
    member.begin(key(0))
    assert member.fetched(request, result)[0].keys() == {key(1)}
    # It goes and comes back: an answer from before says nothing of it.
    for generation, numbers in ((2, ()), (3, (1,))):
        member.answered(member.request(0), told(generation, *numbers), 0.0)
        member.adopt(member.pending)
    assert member.fetched(request, result)[0] == {}
    assert member.fetched(member.fetch(), OffsetFetchResult(GroupError.NOT_AVAILABLE))[0] == {}
    assert member.fetched(member.fetch(), OffsetFetchResult(GroupError.UNKNOWN_MEMBER))[1].keys == {key(1)}


def test_the_answer_to_a_commit_of_an_earlier_membership_means_nothing():
    member = joined(0)
    request = member.commit({key(0): CommitOffset(0, 7)})
    assert member.committed(request, CommitResult(GroupError.UNKNOWN_MEMBER)) is not None
    assert member.committed(request, CommitResult(GroupError.UNKNOWN_MEMBER)) is None
    assert not member.is_current(request)
