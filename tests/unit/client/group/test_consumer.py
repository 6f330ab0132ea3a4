"""A member of a group against real coordinators in this process, which fail as the tests say."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from liftpy_client.errors import (
    CoordinatorUnavailableError,
    DisconnectedError,
    GroupFencedError,
    GroupRefusedError,
    PullError,
    UsageError,
)
from liftpy_client.group.offsets import committed
from liftpy_client.group.options import GroupOptions
from liftpy_client.message import Message
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.group_offsets import CommitRefusal, CommitRequest, CommitResult
from liftpy_envelope.group_routing import Coordinator
from liftpy_envelope.groups import GroupError, HeartbeatRequest, JoinRequest, LeaveRequest
from liftpy_envelope.pull import Api, PartitionKey
from support.cluster import eventually
from support.fake_groups import END, UUID, FakeAssigned, FakeGroups, member, reads


@pytest.fixture
async def groups(monkeypatch):
    monkeypatch.setattr("liftpy_client.group.consumer.AssignedConsumer", FakeAssigned)
    return FakeGroups()


async def offset(groups, number=0):
    found = (await committed(groups, "g", "s")).get(number)
    return None if found is None else found.offset


async def test_it_reads_what_it_is_assigned_from_the_beginning(groups):
    async with member(groups) as consumer:
        await reads(consumer, 0, 1, 2, 3)
        assert set(consumer._assigned.at.values()) == {(0, -1)}
        assert consumer.assignment == [("s", number) for number in range(4)]


@pytest.mark.parametrize(
    "trouble", ["lose", DisconnectedError("x"), TimeoutError(), GroupError.NOT_LEADER, GroupError.NOT_AVAILABLE]
)
async def test_a_commit_that_was_not_answered_is_sent_again_as_it_was(groups, trouble):
    async with member(groups) as consumer:
        await reads(consumer, 0, 1, 2, 3)
        consumer._assigned.at["s", UUID, 0] = (7, 1)
        groups.troubles[Api.OFFSET_COMMIT] = [trouble, trouble]
        await consumer.commit()
        asked = groups.of(CommitRequest)
        assert len(asked) == 3
        assert len(set(asked)) == 1
        assert await offset(groups) == 7
        await consumer.commit()
        assert len(groups.of(CommitRequest)) == 3  # there is nothing new


async def test_a_message_is_committed_with_those_before_it(groups):
    async with member(groups) as consumer:
        await reads(consumer, 0, 1, 2, 3)
        consumer._assigned.at["s", UUID, 2] = (7, 1)  # and the message with offset 7 is in hand
        await consumer.commit(Message("s", 2, 7, 0, "s.x", None, None, b""))
        assert await offset(groups, 2) == 8
        with pytest.raises(UsageError, match="9 cannot be committed"):
            await consumer.commit(Message("s", 2, 8, 0, "s.x", None, None, b""))


async def test_a_coordinator_that_moves_is_found(groups):
    async with member(groups) as consumer:
        await reads(consumer, 0, 1, 2, 3)
        groups.leader = "n1"
        consumer._assigned.at["s", UUID, 0] = (7, 1)
        await consumer.commit()
        assert await offset(groups) == 7
        assert consumer._assigned.calls == [("assign", (0, 1, 2, 3))]


async def test_a_stale_commit_is_made_again_after_the_next_heartbeat(groups):
    async with member(groups) as consumer:
        await reads(consumer, 0, 1, 2, 3)
        consumer._assigned.at["s", UUID, 0] = (7, 1)
        refusal = CommitRefusal(PartitionKey(UUID, 0), GroupError.STALE_GENERATION)
        groups.troubles[Api.OFFSET_COMMIT] = [CommitResult(GroupError.NONE, "", (refusal,))]
        await consumer.commit()
        kinds = [type(request) for request in groups.asked]
        first = kinds.index(CommitRequest)
        assert HeartbeatRequest in kinds[first : kinds.index(CommitRequest, first + 1)]
        assert await offset(groups) == 7


async def test_what_is_refused_for_good_is_told_to_who_commits(groups):
    async with member(groups) as consumer:
        await reads(consumer, 0, 1, 2, 3)
        consumer._assigned.at["s", UUID, 0] = (7, 1)
        refusal = CommitRefusal(PartitionKey(UUID, 0), GroupError.NOT_ASSIGNED)
        groups.troubles[Api.OFFSET_COMMIT] = [CommitResult(GroupError.NONE, "", (refusal,))]
        with pytest.raises(GroupRefusedError, match="stream s partition 0 was not committed: the partition is another"):
            await consumer.commit()


async def test_nobody_coordinates_for_so_long_that_a_commit_fails(groups):
    async with member(groups, rebalance_timeout_s=1.0) as consumer:
        await reads(consumer, 0, 1, 2, 3)
        consumer._assigned.at["s", UUID, 0] = (7, 1)
        groups.is_silent = True
        with pytest.raises(CoordinatorUnavailableError, match="of group 'g' cannot be reached"):
            await consumer.commit()
        groups.is_silent = False


async def test_a_member_that_is_expelled_loses_all_and_joins_anew(groups):
    told = []
    more = {name: lambda partitions, name=name: told.append((name, len(partitions)))
            for name in ("on_assigned", "on_lost_partitions", "on_revoked")}  # fmt: skip
    async with member(groups, **more) as consumer:
        await reads(consumer, 0, 1, 2, 3)
        before = consumer.member_id
        groups.expel(before)
        await eventually(lambda: told == [("on_assigned", 4), ("on_lost_partitions", 4), ("on_assigned", 4)])
        await reads(consumer, 0, 1, 2, 3)
        assert consumer._assigned.calls == [(what, (0, 1, 2, 3)) for what in ("assign", "revoke", "assign")]
        assert consumer.member_id != before
        assert [request.revision for request in groups.of(JoinRequest)] == [0, 1]


async def test_a_process_that_stood_still_hands_out_and_commits_nothing_of_before(groups):
    got = []

    async def read(consumer):
        async for message in consumer:
            got.append(message.offset)  # noqa: PERF401 - one by one: what is asked for next is the point

    lost = []
    async with member(groups, on_lost_partitions=lost.append, commit_interval_s=0.05) as consumer:
        await reads(consumer, 0, 1, 2, 3)
        reading = asyncio.create_task(read(consumer))
        consumer._assigned.hand(0, 0)
        consumer._assigned.hand(0, 1)
        await eventually(lambda: got == [0, 1])
        await eventually(lambda: groups.of(CommitRequest))
        assert await offset(groups) == 2
        consumer._assigned.at["s", UUID, 0] = (3, 1)
        consumer._assigned.hand(0, 3)
        time.sleep(1.3)  # longer than the session
        await eventually(lambda: len(lost) == 1)
        await eventually(lambda: consumer._assigned.calls[-1] == ("assign", (0, 1, 2, 3)))
        assert got == [0, 1]
        assert consumer._assigned.at["s", UUID, 0][0] == 2
        consumer._assigned.hand(0, 2)
        await eventually(lambda: got == [0, 1, 2])
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_commit_after_standing_still_is_refused(groups):
    async with member(groups) as consumer:
        await reads(consumer, 0, 1, 2, 3)
        consumer._assigned.at["s", UUID, 0] = (7, 1)
        time.sleep(1.3)
        with pytest.raises(GroupRefusedError, match="was away for too long"):
            await consumer.commit()
        assert groups.of(CommitRequest) == []


async def test_an_automatic_commit_after_standing_still_is_not_made(groups):
    async with member(groups) as consumer:
        await reads(consumer, 0, 1, 2, 3)
        consumer._assigned.at["s", UUID, 0] = (7, 1)
        commits = consumer._membership.commits
        time.sleep(1.3)
        assert await commits.commit(commits.finished, 0.0) is None
        assert groups.of(CommitRequest) == []


async def test_a_callback_that_takes_long_is_no_reason_to_be_out(groups):
    async def flush(_partitions):
        await asyncio.sleep(1.6)  # longer than the session

    lost = []
    async with member(groups, on_revoked=flush, on_lost_partitions=lost.append) as one:
        await reads(one, 0, 1, 2, 3)
        async with member(groups) as two:
            await eventually(lambda: len(two.assignment) == 2)
            groups.tick()
            assert len(one.assignment) == 2
            assert lost == []


async def test_what_is_in_hand_is_waited_for_before_its_partition_goes(groups):
    async with member(groups, commit_interval_s=100) as one:
        await reads(one, 0, 1, 2, 3)
        messages = aiter(one)
        for number in range(4):
            one._assigned.hand(number, 0)
        for _ in range(4):
            message = await anext(messages)
        async with member(groups) as two:
            await eventually(lambda: one._assigned.calls[-1][0] == "pause")
            going = one._assigned.calls[-1][1]
            assert message.partition in going
            assert two.assignment == []
            nothing = asyncio.ensure_future(anext(messages))
            await reads(two, *going)
            assert {number: await offset(groups, number) for number in going} == dict.fromkeys(going, 1)
            nothing.cancel()
            await asyncio.gather(nothing, return_exceptions=True)


async def test_a_partition_of_another_stream_with_the_same_number_is_not_waited_for(groups):
    async with member(groups, commit_interval_s=100) as one:
        await reads(one, 0, 1, 2, 3)
        one._assigned.hand(3, 0)
        await anext(aiter(one))
        one._assigned.in_hand = PartitionKey(bytes(16), 3)
        began_s = time.monotonic()
        async with member(groups) as two:
            await eventually(lambda: len(two.assignment) == 2)
        assert time.monotonic() - began_s < 1.0


async def test_a_slow_handler_is_waited_for_as_long_as_it_may_take(groups):
    """A fixed limit ran what took longer twice at the same time."""
    options = {"commit_interval_s": 100, "handler_timeout_s": 20.0, "rebalance_timeout_s": 30.0}
    async with member(groups, **options) as one:
        await reads(one, 0, 1, 2, 3)
        messages = aiter(one)
        for number in range(4):
            one._assigned.hand(number, 0)
        message = [await anext(messages) for _ in range(4)][-1]
        async with member(groups) as two:
            await eventually(lambda: one._assigned.calls[-1][0] == "pause")
            assert one._membership._patience_s(one._membership.hand.since_s) > 10
            nothing = asyncio.ensure_future(anext(messages))
            await eventually(lambda: len(two.assignment) == 2)
            assert await offset(groups, message.partition) == 1
            nothing.cancel()
            await asyncio.gather(nothing, return_exceptions=True)


async def test_who_is_stuck_gives_its_partitions_back_and_joins_again(groups):
    lost = []
    async with member(groups, handler_timeout_s=0.3, on_lost_partitions=lost.extend) as one:
        await reads(one, 0, 1, 2, 3)
        one._assigned.hand(0, 0)
        messages = aiter(one)
        await anext(messages)
        async with member(groups) as two:
            await eventually(lambda: len(two.assignment) == 4, 5.0)
            assert one.assignment == []
            assert len(lost) in {2, 4}
            assert len(groups.of(JoinRequest)) == 2
            waiting = asyncio.ensure_future(anext(messages))
            await eventually(lambda: len(one.assignment) == 2, 5.0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
    assert await offset(groups) is None


async def test_a_member_that_nobody_refers_to_any_more_leaves(groups):
    async def work():
        consumer = member(groups, session_timeout_s=60)  # one that stood still has nothing to leave
        waiting = asyncio.ensure_future(anext(aiter(consumer)))
        await eventually(lambda: consumer.assignment)
        consumer._assigned.hand(0, 0)
        await waiting

    await work()
    gc.collect()
    await eventually(lambda: groups.of(LeaveRequest))
    await eventually(lambda: not groups.running)


@pytest.mark.parametrize(("start", "first"), [("new", END), ("latest", END - 1)])
async def test_where_a_group_begins_is_committed_before_anything_is_read(groups, start, first):
    async with member(groups, start=start) as consumer:
        await reads(consumer, 0, 1, 2, 3)
        (request,) = groups.of(CommitRequest)
        assert [row.offset for row in request.streams[0].offsets] == [first] * 4
        assert await offset(groups, 3) == first


@pytest.mark.parametrize("instance_id", [None, "a"])
async def test_closing_commits_and_leaves_unless_it_is_static(groups, instance_id):
    consumer = member(groups, instance_id=instance_id, commit_interval_s=100)
    async with consumer:
        await reads(consumer, 0, 1, 2, 3)
        consumer._assigned.at["s", UUID, 0] = (7, 1)
    assert await offset(groups) == 7
    assert len(groups.of(LeaveRequest)) == (instance_id is None)
    assert bool(groups.coordinator.members) == (instance_id is not None)
    await consumer.close()
    for use in (consumer.commit(), consumer.__aenter__()):
        with pytest.raises(UsageError):
            await use


async def test_a_coordinator_is_looked_for_until_there_is_one(groups):
    away = Coordinator("g", GroupError.NOT_AVAILABLE, "no leader", 0)
    groups.troubles[Api.FIND_COORDINATOR] = [away] * 4
    async with member(groups) as consumer:
        await reads(consumer, 0, 1, 2, 3)


async def test_nodes_that_know_no_groups_are_an_error(groups):
    refusal = PullError(ErrorCode.INVALID_REQUEST, "api 10 is not known here")
    groups.troubles[Api.FIND_COORDINATOR] = [refusal] * 9
    with pytest.raises(PullError, match="api 10 is not known here"):
        await anext(aiter(member(groups)))


async def test_a_fenced_member_ends(groups):
    older = member(groups, instance_id="a")
    reading = asyncio.ensure_future(anext(aiter(older)))
    await eventually(lambda: len(older.assignment) == 4)
    async with member(groups, instance_id="a") as newer:
        with pytest.raises(GroupFencedError):
            await asyncio.wait_for(reading, 5)
        assert len(groups.coordinator.members) == 1
        await reads(newer, 0, 1, 2, 3)


async def test_no_task_stays_behind(groups):
    before = asyncio.all_tasks()
    async with member(groups, commit_interval_s=0.1) as consumer:
        await reads(consumer, 0, 1, 2, 3)
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"session_timeout_s": 0.5},
        {"session_timeout_s": "10"},
        {"commit_interval_s": "5"},
        {"session_timeout_s": 1_801},
        {"rebalance_timeout_s": 0},
        {"commit_interval_s": 0},
        {"start": "somewhere"},
        {"instance_id": ""},
        {"instance_id": "x" * 256},
    ],
)
def test_options_that_mean_nothing(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        GroupOptions(**wrong)
