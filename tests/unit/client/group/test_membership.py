"""How a member keeps its place: what its heartbeats prove, and how soon it is back when its place is lost."""

from __future__ import annotations

import asyncio
import time

import pytest

from liftpy_client.errors import GroupRefusedError
from liftpy_envelope.groups import GroupError, HeartbeatRequest, JoinRequest
from liftpy_envelope.pull import Api
from support.cluster import eventually
from support.fake_groups import UUID, FakeAssigned, FakeGroups, member, reads


@pytest.fixture
async def groups(monkeypatch):
    monkeypatch.setattr("liftpy_client.group.consumer.AssignedConsumer", FakeAssigned)
    return FakeGroups()


async def test_an_answer_that_waited_while_the_process_stood_still_does_not_keep_it_in(groups, monkeypatch):
    """The answer is taken before anything else happens; others have the partitions by then."""
    lost = []
    async with member(groups, on_lost_partitions=lost.append) as consumer:
        await reads(consumer, 0, 1, 2, 3)
        link = consumer._membership._link
        ask, stills_s = link.ask, [1.3]  # longer than the session

        async def stand_still(request):
            answer = await ask(request)
            if isinstance(request, HeartbeatRequest) and stills_s:
                time.sleep(stills_s.pop())
            return answer

        monkeypatch.setattr(link, "ask", stand_still)
        await eventually(lambda: lost, 3.0, "it thinks that it was a member all the time")
        assert [len(partitions) for partitions in lost] == [4]


async def test_a_heartbeat_that_waits_for_news_does_not_hold_up_joining_anew(groups):
    async with member(groups, session_timeout_s=30.0, rebalance_timeout_s=30.0) as consumer:  # it waits for 10 s
        await reads(consumer, 0, 1, 2, 3)
        asked = len(groups.of(HeartbeatRequest))
        await eventually(lambda: len(groups.of(HeartbeatRequest)) > asked or groups.asked[-1].wait_ms_max > 0)
        consumer._assigned.at["s", UUID, 0] = (7, 1)
        groups.troubles[Api.OFFSET_COMMIT] = [GroupError.UNKNOWN_MEMBER]
        with pytest.raises(GroupRefusedError):
            await consumer.commit()
        await eventually(lambda: len(groups.of(JoinRequest)) == 2, 2.0, "it does not join anew")
        await eventually(lambda: consumer.assignment == [("s", number) for number in range(4)])


async def test_standing_still_in_the_midst_of_a_heartbeat_leaves_no_task_behind(groups):
    before = asyncio.all_tasks()
    async with member(groups) as consumer:
        await reads(consumer, 0, 1, 2, 3)
        time.sleep(1.3)
        await eventually(lambda: len(groups.of(JoinRequest)) == 2)
        await reads(consumer, 0, 1, 2, 3)
    await eventually(lambda: asyncio.all_tasks() == before)
