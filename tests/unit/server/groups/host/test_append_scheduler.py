"""Partitions that append in one pass become durable in one round."""

from __future__ import annotations

import asyncio

from liftpy_envelope.group_offsets import CommitOffset, CommitRequest, CommitStream
from liftpy_envelope.groups import GroupError
from liftpy_server.groups.core.assignment import StreamShape
from liftpy_server.groups.core.inputs import StreamsChanged
from liftpy_server.groups.host.append_scheduler import AppendScheduler
from liftpy_server.groups.host.coordinators import Coordinators
from liftpy_server.groups.host.group_partition import GroupPartition
from liftpy_server.groups.host.pending import PendingRequest
from liftpy_server.groups.host.replaying import read_groups
from support.server_kit import Kit

UUID = b"o" * 16
SETTINGS = {"name": "__consumer_offsets", "subject": "", "acks": "off", "dedupe_ids_max": 0}


class Hosted:
    """Writes down what a pass has it do."""

    def __init__(self, name, scheduler, done):
        self.name, self.scheduler, self.done = name, scheduler, done

    def append_pending(self):
        self.done.append(f"{self.name} takes")
        self.scheduler.appended(self)

    def end_pass(self):
        self.done.append(f"{self.name} settles")


async def test_all_have_appended_before_anybody_settles():
    scheduler, done = AppendScheduler(), []
    one, two = Hosted("one", scheduler, done), Hosted("two", scheduler, done)
    for hosted in (one, two, one):
        scheduler.schedule(hosted)
    assert done == []
    await asyncio.sleep(0)
    assert done == ["one takes", "two takes", "one settles", "two settles"]


async def test_what_is_wanted_in_a_pass_goes_into_the_next_one():
    scheduler, done = AppendScheduler(), []
    one, two = Hosted("one", scheduler, done), Hosted("two", scheduler, done)
    one.end_pass = lambda: scheduler.schedule(two)
    scheduler.schedule(one)
    await asyncio.sleep(0)
    assert done == ["one takes"]
    await asyncio.sleep(0)
    assert done == ["one takes", "two takes", "two settles"]


async def test_outside_of_passes_nobody_waits_for_one():
    scheduler, done = AppendScheduler(), []
    scheduler.appended(Hosted("one", scheduler, done))
    assert done == ["one settles"]


async def test_durability_is_asked_for_when_all_partitions_have_appended(tmp_path):
    scheduler, kits, shells, asked_for = AppendScheduler(), [], [], []

    def committed():
        offsets = (CommitStream(UUID, "orders", (CommitOffset(0, 7),)),)
        return PendingRequest("g", CommitRequest("g", "", "", -1, 0, offsets))

    for number in range(4):
        kit = Kit(tmp_path / str(number), **SETTINGS)

        async def replayed(kit=kit):
            groups = await read_groups(kit.partition, kit.files, None)
            return Coordinators(groups, StreamsChanged(1, {"orders": StreamShape(UUID, 1)}))

        request = kit.partition._request_sync

        def requested(log, request=request):
            asked_for.append([kit.log.log_end for kit in kits])
            request(log)

        kit.partition._request_sync = requested
        shell = GroupPartition(kit.partition, replayed, kit.clock, scheduler)
        shell.start()
        kits.append(kit)
        shells.append(shell)
    async with asyncio.timeout(30):
        while any(shell.coordinators is None for shell in shells):
            await asyncio.sleep(0.001)
    answers = [committed() for _ in shells]
    for shell, asked in zip(shells, answers, strict=True):
        shell.ask(asked)
    await asyncio.sleep(0)
    assert asked_for == [[1, 1, 1, 1]] * 4, "a round may have begun before everybody had appended"
    for kit in kits:
        kit.sync()
    assert [asked.answered.result().error for asked in answers] == [GroupError.NONE] * 4
    for shell, kit in zip(shells, kits, strict=True):
        shell.end(GroupError.NOT_LEADER, "the test is over")
        kit.close()


async def test_a_batch_is_settled_although_the_next_step_fails(tmp_path, monkeypatch):
    kit = Kit(tmp_path, **SETTINGS)
    requested = []
    kit.partition._request_sync = requested.append

    async def replayed():
        groups = await read_groups(kit.partition, kit.files, None)
        return Coordinators(groups, StreamsChanged(1, {"orders": StreamShape(UUID, 2)}))

    shell = GroupPartition(kit.partition, replayed, kit.clock)
    shell.start()
    async with asyncio.timeout(30):
        while shell.coordinators is None:
            await asyncio.sleep(0.001)
    monkeypatch.setattr("liftpy_server.groups.host.limits.BATCH_RECORDS_MAX", 1)
    step, asked = shell.coordinators.step, []

    def fail_second(group, given, now, client):
        if asked:
            raise ZeroDivisionError
        asked.append(group)
        return step(group, given, now)

    shell.coordinators.step = fail_second
    streams = (CommitStream(UUID, "orders", (CommitOffset(0, 7),)),)
    answers = [PendingRequest(name, CommitRequest(name, "", "", -1, 0, streams)) for name in "gh"]
    for each in answers:
        shell.ask(each)
    await asyncio.sleep(0)
    assert kit.log.log_end == 1
    assert requested == [kit.log], "what was appended never becomes durable, and nothing begins anew"
    shell.end(GroupError.NOT_LEADER, "the test is over")
    kit.sync()
    kit.close()
