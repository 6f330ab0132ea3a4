"""Groups that nobody uses go, and so does what was committed for streams that are no more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from liftpy_envelope.group_offsets import CommitOffset, CommitRequest, CommitStream
from liftpy_envelope.groups import GroupError, JoinRequest, LeaveRequest
from liftpy_server.groups.core.assignment import StreamShape
from liftpy_server.groups.core.inputs import StreamsChanged
from liftpy_server.groups.host.coordinators import Coordinators
from liftpy_server.groups.host.group_partition import GroupPartition
from liftpy_server.groups.host.pending import PendingRequest
from liftpy_server.groups.host.replaying import read_groups
from liftpy_server.groups.host.upkeep import GroupUpkeep
from support.server_kit import Kit

STREAMS = {"kept": StreamShape(b"k" * 16, 2), "gone": StreamShape(b"g" * 16, 2)}
RETENTION_S = 1_000


class Hosted:
    """A partition of the stream of the groups with its shell; everything is committed at once."""

    def __init__(self, directory):
        self.kit = Kit(directory, name="__consumer_offsets", subject="", acks="off", sync="never")
        self.shell = GroupPartition(self.kit.partition, self.replayed, self.kit.clock)
        self.live = SimpleNamespace(streams={"kept": SimpleNamespace(uuid=STREAMS["kept"].uuid.hex())})
        metadata = SimpleNamespace(state=self.live)
        self.upkeep = GroupUpkeep({0: self.shell}, metadata, RETENTION_S, 0.01)

    async def replayed(self):
        return Coordinators(await self.replay(), StreamsChanged(1, STREAMS))

    async def replay(self):
        return await read_groups(self.kit.partition, self.kit.files, None)

    async def ask(self, given):
        asked = PendingRequest(given.group, given)
        self.shell.ask(asked)
        async with asyncio.timeout(30):
            answer = await asked.answered
        assert answer.error is GroupError.NONE, answer
        return answer

    async def commit(self, group, *names):
        streams = tuple(CommitStream(STREAMS[name].uuid, name, (CommitOffset(0, 1),)) for name in names)
        await self.ask(CommitRequest(group, "", "", -1, 0, streams))

    async def look(self):
        await self.upkeep.look_after(self.shell)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def hosted(tmp_path):
    hosted = Hosted(tmp_path)
    hosted.shell.start()
    async with asyncio.timeout(30):
        while hosted.shell.coordinators is None:
            await asyncio.sleep(0.001)
    yield hosted
    hosted.shell.end(GroupError.NOT_LEADER, "the test is over")
    hosted.kit.close()


async def test_offsets_of_streams_that_are_gone_go(hosted):
    await hosted.commit("both", "kept", "gone")
    await hosted.commit("only", "gone")
    await hosted.look()
    table = (await hosted.replay()).table
    assert {group: [row.stream for _, row in table.of_group(group)] for group in table.groups} == {"both": ["kept"]}
    end = hosted.kit.log.log_end
    await hosted.look()
    assert hosted.kit.log.log_end == end, "what is gone was deleted again"


async def test_groups_go_that_nobody_used_for_long(hosted):
    join = JoinRequest("active", b"n" * 16, 0, "", "", "", 1_800_000, 60_000, ("kept",))
    member = await hosted.ask(join)
    await hosted.commit("old", "kept")
    left = await hosted.ask(join._replace(group="left"))
    hosted.kit.clock.advance(RETENTION_S / 2)
    await hosted.ask(LeaveRequest("left", left.member_id, ""))
    await hosted.commit("young", "kept")
    hosted.kit.clock.advance(RETENTION_S / 2 + 1)
    await hosted.look()
    assert (await hosted.replay()).groups == ["active", "left", "young"]
    assert hosted.shell.coordinators.groups == ["active", "left", "young"]
    hosted.kit.clock.advance(RETENTION_S)
    await hosted.look()
    assert (await hosted.replay()).groups == ["active"]
    assert member.member_id in hosted.shell.coordinators.find("active").members


async def test_it_is_done_from_time_to_time(hosted):
    await hosted.commit("old", "kept")
    hosted.kit.clock.advance(RETENTION_S + 1)
    hosted.upkeep.start()
    async with asyncio.timeout(30):
        while hosted.shell.coordinators.groups:
            await asyncio.sleep(0.01)
    await hosted.upkeep.stop()


async def test_an_error_does_not_end_it(hosted, caplog):
    await hosted.commit("old", "kept")
    hosted.kit.clock.advance(RETENTION_S + 1)
    streams, hosted.live.streams = hosted.live.streams, None
    hosted.upkeep.start()
    async with asyncio.timeout(30):
        while "looked at again" not in caplog.text:
            await asyncio.sleep(0.01)
        hosted.live.streams = streams
        while hosted.shell.coordinators.groups:
            await asyncio.sleep(0.01)
    await hosted.upkeep.stop()
