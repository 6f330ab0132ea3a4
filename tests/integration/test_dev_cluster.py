"""A cluster as `liftpy dev --nodes` runs it, and the commands that change it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import contextmanager

import liftpy
from support.cli import Cli, DevProcess
from support.cluster import eventually
from support.reading import read_all

TOLD_S_MAX = 60


@contextmanager
def cluster(tmp_path, nodes):
    """A running cluster, and the command line for it."""
    dev = DevProcess(tmp_path / "data", tmp_path, "--nodes", str(nodes))
    assert dev.ready, dev.process.stderr.read().decode()
    try:
        yield dev, Cli(dev.url, tmp_path)
    finally:
        code, said = dev.stop()
    assert (code, b"Traceback" in said) == (0, False)


def told(look):
    """What a look shows, once it shows something."""
    deadline_s = time.monotonic() + TOLD_S_MAX
    while not (found := look()):
        assert time.monotonic() < deadline_s, f"not within {TOLD_S_MAX} s"
    return found


def partition_without(cli, node_id):
    """The only partition, once a node is not counted among those in sync any more."""
    (partition,) = cli.json("stream", "info", "orders")["partitions"]
    return partition if partition["leader"] and node_id not in partition["isr"] else None


def test_nothing_is_lost_when_a_node_dies(tmp_path):
    with cluster(tmp_path, 3) as (dev, cli):
        cli.run("stream", "add", "orders", "--subject", "orders.>", "--replicas", "3")
        assert cli.json("publish", "orders.a", "before", "--count", "100")["published"] == 100
        before = cli.json("stream", "info", "orders")["partitions"][0]
        pids = {node["node_id"]: node["pid"] for node in dev.ready["nodes"]}
        os.kill(pids[before["leader"]], signal.SIGKILL)
        assert cli.json("publish", "orders.a", "after", "--count", "100")["published"] == 100
        after = told(lambda: partition_without(cli, before["leader"]))
        assert after["leader"] != before["leader"]
        values = [message["value"] for message in cli.lines("consume", "orders", "--stop", "latest")]
        assert values == ["before"] * 100 + ["after"] * 100
        assert told(lambda: all(word in cli.out("status") for word in ("expired", "under-replicated")))
    with cluster(tmp_path, 3) as (_, cli):
        assert len(cli.lines("consume", "orders", "--stop", "latest")) == 200


def test_a_node_joins_and_another_leaves(tmp_path):
    with cluster(tmp_path, 3) as (_, cli):
        cli.run("stream", "add", "orders", "--subject", "orders.>", "--replicas", "3", "--partitions", "4")
        cli.run("publish", "orders.a", "x", "--count", "1000")
    with cluster(tmp_path, 4) as (dev, cli):
        assert told(lambda: [node["state"] for node in cli.json("node", "list")] == ["up"] * 4)
        planned = cli.json(
            "stream", "reassign", "orders", "--partition", "0", "--to", "node-4,node-2,node-3", "--dry-run"
        )
        assert planned["moves"][0]["removing"] == ["node-1"]
        cli.run("stream", "reassign", "orders", "--partition", "0", "--to", "node-4,node-2,node-3", "--watch")
        assert cli.json("stream", "info", "orders")["partitions"][0]["replicas"] == ["node-4", "node-2", "node-3"]
        assert "drain it first" in cli.error("node", "remove", "node-3", "--force")
        cli.run("node", "drain", "node-3", "--wait")
        assert cli.json("node", "info", "node-3")["replicas"] == 0
        cli.run("node", "remove", "node-3", "--force")
        assert [node["node_id"] for node in cli.json("node", "list")] == ["node-1", "node-2", "node-4"]
        assert len(asyncio.run(settled_messages(dev.url))) == 1_000


async def settled_messages(url):
    """What there is when all replicas are in sync again."""
    async with liftpy.connect(url) as lift:

        async def is_settled():
            return (await lift.cluster_info()).under_replicated_count == 0

        await eventually(is_settled)
        return await read_all(lift, "orders")
