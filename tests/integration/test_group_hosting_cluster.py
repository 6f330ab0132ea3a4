"""Consumer groups on three nodes: their coordinators die, and what they said stands."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from liftpy_client.errors import LiftError
from liftpy_envelope.group_routing import GROUPS_STREAM
from liftpy_envelope.groups import GroupError
from liftpy_envelope.pull import PartitionKey
from support.cluster import eventually
from support.cluster_kit import create, partitions, running_cluster, settled
from support.group_kit import fill
from support.group_requests import PASSING, GroupPull, offsets_of
from support.reading import http

GROUP = "billing"


@pytest.fixture
async def kit(tmp_path):
    async with running_cluster(tmp_path, toml="[http]\nport = 0\n") as kit:
        yield kit


@pytest.fixture
async def lift(kit):
    async with kit.connect() as lift:
        yield lift


class Groups:
    """Asks whichever node coordinates the group, as it changes."""

    def __init__(self, kit, lift):
        self.kit = kit
        self.lift = lift
        self.group = GROUP
        self.coordinator = None

    async def connected(self):
        """A connection to the group's coordinator, found by asking any node."""
        for name in self.kit.running:
            try:
                async with await GroupPull.open(self.lift, self.kit.nodes[name].pull_port, name) as any_node:
                    self.coordinator = await any_node.find(self.group)
                return await GroupPull.open(self.lift, self.coordinator.port, self.coordinator.node_id)
            except (OSError, EOFError, TimeoutError):
                continue
        return None

    async def ask(self, work):
        """Do something at the coordinator, again until one does it."""

        async def attempt():
            pull = await self.connected()
            if pull is None:
                return None
            async with pull:
                try:
                    answer = await work(pull)
                except (OSError, EOFError, TimeoutError):
                    return None
                return None if answer.error in PASSING else answer

        return await eventually(attempt, 40.0, "no node coordinates the group")


async def test_committed_offsets_do_not_step_back_after_failover(kit, lift):
    await create(lift, "orders", "orders.>", partitions=2)
    await fill(lift, "orders", 240)  # nothing beyond the end of a partition can be committed
    uuid = bytes.fromhex((await lift.stream_info("orders")).uuid)
    key = PartitionKey(uuid, 0)
    groups = Groups(kit, lift)
    member = await groups.ask(lambda pull: pull.join(GROUP, secrets.token_bytes(16), ["orders"]))
    acknowledged = seen = 0
    for victims in range(3):
        for _ in range(20):
            offset = acknowledged + 1
            row = [offsets_of(uuid, "orders", {0: offset})]
            result = await groups.ask(lambda pull, row=row, at=offset: pull.commit(GROUP, member, at, row))
            assert (result.error, result.refusals) == (GroupError.NONE, ())
            acknowledged = offset
        victim = groups.coordinator.node_id
        await asyncio.to_thread(kit.kill, victim)
        fetched = await groups.ask(lambda pull: pull.fetch(GROUP, [key], member))
        assert groups.coordinator.node_id != victim
        (found,) = fetched.offsets
        assert found.offset >= max(acknowledged, seen), f"after {victims} failovers"
        seen = found.offset
        beat = await groups.ask(lambda pull: pull.heartbeat(GROUP, member))
        assert (beat.error, beat.generation) == (GroupError.NONE, member.generation)
        await asyncio.to_thread(kit.start_nodes)
        await settled(lift, [GROUPS_STREAM])


async def test_the_stream_of_the_groups_has_three_replicas_and_one_birth(kit, lift):
    async def find(name):
        async with await GroupPull.open(lift, kit.nodes[name].pull_port, name) as pull:
            return await pull.find(GROUP)

    async def is_one():
        found = await asyncio.gather(*(find(name) for name in kit.nodes))
        return len({(each.node_id, each.port, each.partition) for each in found}) == 1

    await eventually(is_one)
    details = await lift.stream_info(GROUPS_STREAM)
    assert {len(partition.replicas) for partition in details.partitions} == {3}

    async def are_spread():
        return {each.leader for each in await partitions(lift, GROUPS_STREAM)} == set(kit.nodes)

    await eventually(are_spread, 40.0)  # a node that stood still for a moment gets its leaderships back


async def test_any_node_tells_of_all_groups_also_when_one_is_gone(kit, lift):
    await create(lift, "orders", "orders.>", partitions=1)
    await fill(lift, "orders", 10)
    uuid = bytes.fromhex((await lift.stream_info("orders")).uuid)
    names = [f"group-{number}" for number in range(30)]
    groups = Groups(kit, lift)
    for name in names:
        groups.group = name
        row = [offsets_of(uuid, "orders", {0: 7})]
        await groups.ask(lambda pull, name=name, row=row: pull.commit(name, None, 0, row))
    await settled(lift, [GROUPS_STREAM])

    async def are_spread():
        return {each.coordinator for each in await lift.groups()} == set(kit.nodes)

    await eventually(are_spread, 40.0)

    async def lags_are_told():
        pages = [(await http(each.ready["http_port"], "/metrics"))[1] for each in kit.nodes.values()]
        lines = [line for page in pages for line in page.splitlines() if line.startswith("liftpy_group_lag{")]
        return sorted(lines) == sorted(
            f'liftpy_group_lag{{group="{name}",partition="0",stream="orders"}} 3.0' for name in names
        )

    await eventually(lags_are_told, 20.0)  # by coordinators, wherever the stream has its leader
    await asyncio.to_thread(kit.kill, groups.coordinator.node_id)

    async def told():
        try:
            return [each.group for each in await lift.groups()] if (await lift.group(names[0])).offsets else None
        except LiftError:
            return None

    assert await eventually(told, 40.0) == sorted(names)
    details = [await lift.group(name) for name in names]
    assert {row.offset for each in details for row in each.offsets} == {7}
    await lift.delete_group(names[3])
    assert [each.group for each in await lift.groups()] == sorted({*names} - {names[3]})


async def test_a_node_that_does_not_coordinate_says_so(kit, lift):
    groups = Groups(kit, lift)
    joined = await groups.ask(lambda pull: pull.join(GROUP, secrets.token_bytes(16), ["orders"]))
    other = next(name for name in kit.nodes if name != groups.coordinator.node_id)
    async with await GroupPull.open(lift, kit.nodes[other].pull_port, other) as pull:
        assert (await pull.heartbeat(GROUP, joined)).error is GroupError.NOT_LEADER
        assert (await pull.join(GROUP, bytes(16), [])).error is GroupError.NOT_LEADER
        assert (await pull.fetch(GROUP, [])).error is GroupError.NOT_LEADER


async def test_a_coordinator_that_stood_still_does_not_undo_what_its_successor_did(kit, lift):
    await create(lift, "orders", "orders.>", partitions=1)
    await fill(lift, "orders", 10)
    uuid = bytes.fromhex((await lift.stream_info("orders")).uuid)
    groups = Groups(kit, lift)
    member = await groups.ask(lambda pull: pull.join(GROUP, secrets.token_bytes(16), ["orders"]))
    row = [offsets_of(uuid, "orders", {0: 1})]
    await groups.ask(lambda pull: pull.commit(GROUP, member, 1, row))
    old = groups.coordinator.node_id
    pausing = asyncio.ensure_future(kit.pause([old], 8.0))
    await asyncio.sleep(0.1)

    async def moved():
        leader = (await partitions(lift, GROUPS_STREAM))[groups.coordinator.partition].leader
        return leader if leader not in {None, old} else None

    leader = await eventually(moved, 40.0, "nobody took over")
    async with await GroupPull.open(lift, kit.nodes[leader].pull_port, leader) as pull:
        newer = [offsets_of(uuid, "orders", {0: 2})]

        async def committed():
            return (await pull.commit(GROUP, member, 2, newer)).error is GroupError.NONE

        await eventually(committed, 40.0)
        await pausing
        fetched = await groups.ask(lambda pull: pull.fetch(GROUP, [PartitionKey(uuid, 0)], member))
        assert [found.offset for found in fetched.offsets] == [2]
