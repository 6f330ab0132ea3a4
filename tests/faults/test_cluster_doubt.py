"""A node that can not prove that its logs are whole, and has a stream that nobody else has a copy of."""

from __future__ import annotations

import asyncio
import json

from support.cluster_kit import create, leader_of, running_cluster
from support.reading import read_all


async def test_the_only_replica_leads_again(tmp_path):
    async with running_cluster(tmp_path) as kit, kit.connect() as lift:
        await create(lift, "alone", "alone.>", replicas=1, min_isr=1)
        name = await leader_of(lift, "alone")
        await lift.publish("alone.x", b"v", ack_policy="all")
        await asyncio.to_thread(kit.kill, name)
        path = kit.nodes[name].data / "standing.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"doubtful": True}))
        await asyncio.to_thread(kit.start_nodes, [name])
        assert await leader_of(lift, "alone") == name
        assert [message.value for message in await read_all(lift, "alone")] == [b"v"]
