"""The shell around the coordinators: what is answered when, and what happens when a batch is lost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.group_offsets import CommitOffset, CommitRequest, CommitStream, OffsetFetchRequest
from liftpy_envelope.groups import GroupError, HeartbeatRequest, JoinRequest, LeaveRequest
from liftpy_envelope.pull import PartitionKey
from liftpy_server.groups.core.assignment import StreamShape
from liftpy_server.groups.core.inputs import DeleteGroup, StreamsChanged
from liftpy_server.groups.host import limits
from liftpy_server.groups.host.coordinators import Coordinators
from liftpy_server.groups.host.group_partition import GroupPartition
from liftpy_server.groups.host.pending import PendingRequest
from liftpy_server.groups.host.quota import GroupQuota
from liftpy_server.groups.host.replaying import read_groups
from liftpy_server.settings.groups import GroupsConfig
from support.server_kit import Kit

UUID = b"o" * 16
STREAMS = {"orders": StreamShape(UUID, 4)}
KEY = PartitionKey(UUID, 0)


class Hosted:
    """A partition of the stream of the groups with its shell; group commit happens when the test says so."""

    def __init__(self, directory):
        self.kit = Kit(directory, name="__consumer_offsets", subject="", acks="off", dedupe_ids_max=0)
        self.streams = StreamsChanged(1, STREAMS)
        self.replays = 0
        self.shell = GroupPartition(self.kit.partition, self.replayed, self.kit.clock)
        self.task = None

    async def replayed(self):
        self.replays += 1
        return Coordinators(await read_groups(self.kit.partition, self.kit.files, None), self.streams)

    async def started(self):
        self.shell.start()
        await self.ready()
        return self

    async def ready(self):
        async with asyncio.timeout(30):
            while self.shell.coordinators is None:
                await asyncio.sleep(0.001)

    def ask(self, request):
        asked = PendingRequest(request.group, request)
        self.shell.ask(asked)
        return asked.answered

    async def told(self, request):
        """The answer, when everything is committed at once."""
        answer = self.ask(request)
        await passes()
        self.kit.sync()
        await passes()
        assert answer.done(), "no answer though everything is committed"
        return answer.result()


async def passes(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def hosted(tmp_path):
    hosted = Hosted(tmp_path)
    await hosted.started()
    yield hosted
    hosted.shell.end(GroupError.NOT_LEADER, "the test is over")
    hosted.kit.close()


def join(nonce=b"n" * 16, group="g", **more):
    fields = {"revision": 0, "instance_id": "", "client_id": "", "rack": "", "subscriptions": ("orders",)}
    times = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
    return JoinRequest(group=group, nonce=nonce, **fields | times | more)


def commit(offset, member=None, sequence=0, group="g"):
    who = ("", -1) if member is None else (member.member_id, member.generation)
    offsets = (CommitOffset(0, offset),)
    return CommitRequest(group, who[0], "", who[1], sequence, (CommitStream(UUID, "orders", offsets),))


def heartbeat(member, wait_ms=0, group="g"):
    return HeartbeatRequest(group, member.member_id, "", member.generation, wait_ms)


def fetch(group="g"):
    return OffsetFetchRequest(group, "", "", -1, (KEY,))


async def test_answers_wait_for_the_commit(hosted):
    joined, committed = hosted.ask(join()), None
    await passes()
    assert not joined.done()
    fetched = hosted.ask(fetch(group="other"))
    await passes()
    assert not fetched.done(), "an answer overtook a batch that is not committed"
    hosted.kit.sync()
    await passes()
    assert joined.done()
    assert fetched.done()
    committed = hosted.ask(commit(5, joined.result(), 1))
    fetched = hosted.ask(fetch())
    await passes()
    assert not committed.done()
    assert not fetched.done()
    hosted.kit.sync()
    await passes()
    assert [offset.offset for offset in fetched.result().offsets] == [5]


async def test_what_comes_in_one_pass_goes_into_one_batch(hosted):
    counters = hosted.kit.stream.counters
    answers = [hosted.ask(commit(number, group=f"g{number}")) for number in range(100)]
    await passes()
    assert counters.batches == 1
    assert hosted.kit.log.log_end == 100
    hosted.kit.sync()
    await passes()
    assert all(answer.result().refusals == () for answer in answers)


async def test_a_lost_batch_throws_everything_away(hosted):
    joined = hosted.ask(join())
    await passes()
    hosted.kit.partition.accept(accepting=False)
    await passes()
    assert joined.result().error is GroupError.NOT_AVAILABLE
    assert hosted.ask(fetch()).result().error is GroupError.NOT_AVAILABLE
    hosted.kit.partition.is_accepting = True
    await asyncio.sleep(2 * limits.LOOK_S)
    assert hosted.shell.coordinators is None, "what is not committed yet may be lost"
    hosted.kit.sync()
    await hosted.ready()
    assert hosted.replays == 2
    again = await hosted.told(join())
    assert again.generation == 1


async def test_another_leader_is_said_to_be_one(hosted):
    partition = hosted.kit.partition
    joined = await hosted.told(join())
    parked = hosted.ask(heartbeat(joined, wait_ms=9_000))
    waiting = hosted.ask(commit(1, joined, 1))
    await passes()
    partition.follow(8)
    await passes()
    assert waiting.result().error is GroupError.NOT_AVAILABLE
    assert parked.result().error


async def test_what_becomes_of_a_batch_does_not_matter_after_the_end(hosted):
    hosted.ask(join())
    await passes()
    hosted.shell.end(GroupError.NOT_LEADER, "")
    hosted.kit.partition.accept(accepting=False)
    hosted.kit.partition.is_accepting = True
    hosted.kit.sync()
    await asyncio.sleep(3 * limits.LOOK_S)
    assert hosted.shell.coordinators is None, "it coordinates again after its end"


async def test_a_leader_that_was_deposed_while_nothing_was_asked_answers_nothing(hosted):
    hosted.kit.partition.is_leading, hosted.kit.partition.gone = False, ErrorCode.NOT_LEADER
    answer = hosted.ask(fetch())
    await passes()
    assert answer.result().error is GroupError.NOT_LEADER


async def test_it_begins_when_all_is_committed(tmp_path):
    hosted = Hosted(tmp_path)
    await hosted.started()
    joined = await hosted.told(join())
    hosted.ask(commit(5, joined, 1))
    await passes()
    hosted.shell.end(GroupError.NOT_LEADER, "")
    again = GroupPartition(hosted.kit.partition, hosted.replayed, hosted.kit.clock)
    hosted.shell = again
    again.start()
    await asyncio.sleep(2 * limits.LOOK_S)
    assert again.coordinators is None
    hosted.kit.sync()
    await hosted.ready()
    assert [found.offset for found in (await hosted.told(fetch())).offsets] == [5]
    assert (await hosted.told(heartbeat(joined))).assignment is None
    again.end(GroupError.NOT_LEADER, "")
    hosted.kit.close()


async def test_a_failed_append_is_told(hosted):
    joined = await hosted.told(join())
    hosted.kit.disk.is_full = True
    refused = hosted.ask(commit(5, joined, 1))
    await passes()
    assert refused.result().error is GroupError.NOT_AVAILABLE
    hosted.kit.disk.is_full = False
    await hosted.ready()
    assert [found.offset for found in (await hosted.told(fetch())).offsets] == []
    assert (await hosted.told(commit(5, joined, 1))).error is GroupError.NONE


async def test_an_error_in_a_coordinator_has_it_made_anew(hosted, caplog):
    joined = await hosted.told(join())

    def fail(*_arguments):
        raise ZeroDivisionError

    hosted.shell.coordinators.step = fail
    answer = hosted.ask(fetch())
    await passes()
    assert answer.result().error is GroupError.INTERNAL
    assert "read anew" in caplog.text
    async with asyncio.timeout(30):
        await hosted.ready()
    assert (await hosted.told(heartbeat(joined))).error is GroupError.NONE


async def test_a_parked_heartbeat_is_told_when_the_news_is_committed(hosted):
    one = await hosted.told(join())
    one = await hosted.told(heartbeat(one))
    parked = hosted.ask(heartbeat(one, wait_ms=9_000))
    await passes()
    hosted.kit.sync()
    await passes()
    assert not parked.done()
    hosted.ask(join(b"m" * 16))
    await passes()
    assert not parked.done(), "news that is not committed was told"
    hosted.kit.sync()
    await passes()
    assert len(parked.result().assignment[0].partitions) == 2


async def test_a_parked_heartbeat_ends_with_its_time_or_in_a_hurry(hosted):
    one = await hosted.told(join())
    parked = hosted.ask(heartbeat(one, wait_ms=30))
    async with asyncio.timeout(30):
        assert (await parked).assignment is None
    asked = PendingRequest("g", heartbeat(one, wait_ms=9_000))
    hosted.shell.ask(asked)
    await passes()
    assert not asked.answered.done()
    later = hosted.ask(heartbeat(one, wait_ms=9_000))
    await passes()
    assert asked.answered.done(), "two heartbeats of one member wait"
    asked.hurry()
    assert not later.done(), "another's hurry ended it"
    hosted.shell.end(GroupError.NOT_LEADER, "")
    assert later.result().error is GroupError.NOT_LEADER


async def test_a_silent_member_is_put_out_and_others_are_told(hosted):
    one = await hosted.told(join(session_timeout_ms=1_000))
    two = await hosted.told(join(b"m" * 16, session_timeout_ms=60_000))
    parked = hosted.ask(heartbeat(two, wait_ms=9_000))
    await passes()
    hosted.kit.clock.advance(1.1)
    async with asyncio.timeout(30):
        while not parked.done():
            hosted.kit.sync()
            hosted.shell._tick(0.0)
            await asyncio.sleep(0.01)
    assert len(parked.result().assignment[0].partitions) == 4
    assert (await hosted.told(heartbeat(one))).error is GroupError.UNKNOWN_MEMBER


async def test_a_node_that_stood_still_puts_nobody_out(hosted):
    one = await hosted.told(join(session_timeout_ms=1_000))
    hosted.kit.clock.advance(5.0)
    hosted.shell._tick(4.5)
    await passes()
    assert (await hosted.told(heartbeat(one))).error is GroupError.NONE


async def test_streams_that_change_are_told(hosted):
    one = await hosted.told(heartbeat(await hosted.told(join())))
    parked = hosted.ask(heartbeat(one, wait_ms=9_000))
    await passes()
    hosted.shell.streams_changed(StreamsChanged(2, {"orders": StreamShape(UUID, 8)}))
    await passes()
    hosted.kit.sync()
    await passes()
    assert len(parked.result().assignment[0].partitions) == 8
    hosted.shell.streams_changed(StreamsChanged(1, {}))
    await passes()
    assert hosted.shell.coordinators._streams.revision == 2, "older metadata took the place of newer"


async def test_a_full_disk_takes_no_commits(hosted):
    one = await hosted.told(join())
    hosted.kit.partition.storage_full = True
    assert (await hosted.told(commit(1, one, 1))).error is GroupError.NOT_AVAILABLE
    assert (await hosted.told(heartbeat(one))).error is GroupError.NONE


async def test_groups_come_and_go(hosted):
    coordinators = hosted.shell.coordinators
    assert (await hosted.told(fetch("nobody"))).error is GroupError.NONE
    assert coordinators.groups == []
    one = await hosted.told(join())
    await hosted.told(LeaveRequest("g", one.member_id, ""))
    assert coordinators.groups == ["g"]
    deleted = PendingRequest("g", DeleteGroup())
    hosted.shell.ask(deleted)
    await passes()
    hosted.kit.sync()
    await passes()
    assert deleted.answered.result().error is GroupError.NONE
    assert coordinators.groups == []
    replay = await read_groups(hosted.kit.partition, hosted.kit.files, None)
    assert replay.groups == []


async def test_there_is_room_for_so_many_groups(hosted):
    hosted.shell.coordinators._quota = GroupQuota(GroupsConfig(groups_max=1))
    one = await hosted.told(join())
    assert (await hosted.told(join(group="h"))).error is GroupError.GROUP_FULL
    assert (await hosted.told(commit(1, group="h"))).error is GroupError.GROUP_FULL
    assert (await hosted.told(fetch("h"))).error is GroupError.NONE
    await hosted.told(LeaveRequest("g", one.member_id, ""))
    hosted.shell.ask(PendingRequest("g", DeleteGroup()))
    assert (await hosted.told(join(group="h"))).error is GroupError.NONE


async def test_too_many_requests_are_told_to_come_again(hosted, monkeypatch):
    monkeypatch.setattr(limits, "QUEUED_MAX", 3)
    answers = [hosted.ask(commit(1, group=f"g{number}")) for number in range(4)]
    assert answers[3].result().error is GroupError.NOT_AVAILABLE
    await passes()
    hosted.kit.sync()
    await passes()
    assert all(answer.result().error is GroupError.NONE for answer in answers[:3])
    assert hosted.shell._queued == 0


async def test_a_commit_that_nobody_hears_of_is_given_up(hosted):
    joined = hosted.ask(join())
    await passes()
    hosted.kit.clock.advance(limits.COMMIT_WAIT_S_MAX + 1)
    hosted.shell._tick(0.0)
    assert joined.result().error is GroupError.NOT_AVAILABLE


async def test_what_is_shown_is_committed(hosted):
    joined = hosted.ask(join())
    await passes()
    question = PendingRequest("g", None)
    hosted.shell.show(question, SimpleNamespace(shown=1))
    await passes()
    assert not question.answered.done()
    hosted.kit.sync()
    await passes()
    assert joined.done()
    assert question.answered.result().shown == 1
