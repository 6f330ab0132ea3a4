"""A table while leaders fail: nobody who reads it notices, and what was written is read."""

from __future__ import annotations

import asyncio
import signal

import pytest

from support.cluster import quick_options
from support.cluster_kit import create, leader_of, running_cluster, settled


@pytest.mark.parametrize("read_from", ["leader", "nearest"])
async def test_a_leader_is_killed_under_a_table(tmp_path, read_from):
    async with running_cluster(tmp_path) as kit, kit.connect() as lift, kit.connect() as reader:
        await create(lift, "s", "s.>", partitions=2, compact=True)
        await settled(lift, ["s"])
        async with reader.table("s", options=quick_options(read_from=read_from)) as table:
            changes = table.changes()
            for number in range(60):
                if number == 20:
                    kit.nodes[await leader_of(lift, "s")].signal(signal.SIGKILL)
                value = None if number % 10 == 9 else b"%d" % number
                ack = await lift.publish("s.x", value, key=b"k%d" % (number % 30), timeout_s=10)
                await table.wait_for(ack)
                assert table.get(b"k%d" % (number % 30)) == value
            await table.refresh()
            expected = {b"k%d" % (number % 30): b"%d" % number for number in range(60) if number % 10 != 9}
            assert dict(table.items()) == expected
            seen = [await asyncio.wait_for(anext(changes), 40) for _ in range(54)]
            assert len({(change.partition, change.offset) for change in seen}) == 54
