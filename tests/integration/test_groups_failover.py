"""A group on three nodes: its coordinator is killed or hangs, and applications do not notice."""

from __future__ import annotations

import asyncio
import signal

import pytest

from liftpy_client.group.offsets import committed
from support.cluster import eventually
from support.cluster_kit import create, running_cluster, settled
from support.group_kit import fill, reading


def coordinator(reader):
    return reader.consumer._membership._link._connection.node.node_id


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_coordinator_that_fails_is_not_noticed(tmp_path, how):
    async with running_cluster(tmp_path) as kit, kit.connect() as lift:
        await create(lift, "s", "s.>", partitions=4)
        await settled(lift, ["s"])
        await fill(lift, "s", 200)
        times = {"session_timeout_s": 20.0}
        async with reading(lift, "s", "g", **times) as one, reading(lift, "s", "g", **times) as two:
            await eventually(lambda: len(one.consumer.assignment) == len(two.consumer.assignment) == 2)
            await eventually(lambda: len(one.offsets | two.offsets) == 200)
            had = one.consumer.assignment, two.consumer.assignment
            events = [*one.events], [*two.events]
            kit.nodes[coordinator(one)].signal(how)
            await asyncio.wait_for(fill(lift, "s", 200, 200), 60)
            await eventually(lambda: len(one.offsets | two.offsets) == 400, 40)
            assert len(one.messages) + len(two.messages) == 400
            await asyncio.gather(one.consumer.commit(), two.consumer.commit())
            assert (one.consumer.assignment, two.consumer.assignment) == had
            assert (one.events, two.events) == events
            found = await committed(lift._session, "g", "s")
            assert sum(row.offset for row in found.values()) == 400
