"""Nodes that do not belong, or not any more: each is refused by name, says what to do, and harms nobody."""

from __future__ import annotations

import asyncio
import secrets
import shutil

import pytest

import liftpy
from support.bad_days import NODES, ends, in_sync, let_join, make_stream, reconfigure, remove, told, whole_again
from support.cluster import NodeProcess
from support.cluster_kit import running_cluster
from support.segments import fingerprint


@pytest.fixture
async def kit(tmp_path):
    async with running_cluster(tmp_path) as kit:
        yield kit


@pytest.fixture
async def lift(kit):
    async with kit.connect() as lift:
        yield lift


@pytest.mark.slow
async def test_another_key(kit, lift, tmp_path):
    published = await make_stream(lift)
    odd = kit.nodes["node-3"]
    right = kit.home / "cluster.key"
    wrong = tmp_path / "wrong.key"
    wrong.write_text(secrets.token_hex(32))
    wrong.chmod(0o600)
    await asyncio.to_thread(kit.kill, "node-3")
    reconfigure(odd, key_file=f'"{wrong}"')
    odd.spawn()
    await told(odd, "does not know the cluster key", "waiting for a majority of the metadata nodes")
    for name in ("node-1", "node-2"):
        await told(kit.nodes[name], "no connection with 'node-3'", "does not know the cluster key")
    await published.more(10)
    await asyncio.to_thread(odd.kill)
    reconfigure(odd, key_file=f'"{right}"')
    await asyncio.to_thread(odd.start)
    await whole_again(kit, lift, published)


@pytest.mark.slow
async def test_the_data_of_another_cluster(kit, tmp_path):
    """Once a node takes part in one, it can not do so in another with the same data."""
    odd, stale = kit.nodes["node-3"], tmp_path / "stale"
    async with kit.connect() as lift:
        await make_stream(lift)
    await asyncio.to_thread(kit.kill, *NODES)
    odd.data.rename(stale)
    for name in ("node-1", "node-2"):
        shutil.rmtree(kit.nodes[name].data)
    await asyncio.to_thread(kit.start_nodes)
    async with kit.connect() as lift:
        published = await make_stream(lift)
        await asyncio.to_thread(kit.kill, "node-3")
        odd.data.rename(tmp_path / "right")
        stale.rename(odd.data)
        before = fingerprint(odd.data)
        odd.spawn()
        await told(odd, "no connection with 'node-1'", "belongs to cluster", "waiting for a majority")
        for name in ("node-1", "node-2"):
            await told(kit.nodes[name], "'node-3' belongs to cluster", "the data directory of another cluster")
        await published.more(10)
        await asyncio.to_thread(odd.kill)
        assert fingerprint(odd.data) == before
        shutil.rmtree(odd.data)
        (tmp_path / "right").rename(odd.data)
        await asyncio.to_thread(odd.start)
        await whole_again(kit, lift, published)


async def test_a_second_node_of_the_same_id(kit, lift, tmp_path):
    published = await make_stream(lift)
    first = kit.nodes["node-3"]
    text = (first.home / "liftpy.toml").read_text()
    double = NodeProcess(kit.url, tmp_path / "double", "--node-id", "node-3", toml=text)
    elsewhere = moved_peers(text, "node-3")
    try:
        reconfigure(double, host='"127.0.0.9"', advertise_host='"127.0.0.9"', peers=elsewhere)
        double.spawn()  # by mistake with the peers, as if it were new
        await told(double, "refuses this node", "with another data directory", "two nodes have this node_id")
        await asyncio.to_thread(double.kill)
        shutil.rmtree(double.data)
        reconfigure(double, peers="", join="true")
        double.spawn()  # by mistake as one that joins
        assert "'node-3' is a member already" in await ends(double)
        await published.more(10)
        await whole_again(kit, lift, published)
    finally:
        double.kill()


async def test_a_copy_of_a_data_directory(kit, lift, tmp_path):
    """A copy passes for the original as long as that is away; while it is there the copy is refused."""
    published = await make_stream(lift)
    first = kit.nodes["node-3"]
    text = (first.home / "liftpy.toml").read_text()
    double = NodeProcess(kit.url, tmp_path / "double", "--node-id", "node-3", toml=text)
    try:
        await asyncio.to_thread(kit.kill, "node-3")
        shutil.copytree(first.data, double.data)
        await asyncio.to_thread(kit.start_nodes)
        reconfigure(double, host='"127.0.0.9"', advertise_host='"127.0.0.9"', peers=moved_peers(text, "node-3"))
        double.spawn()
        await told(double, "is connected already, by another process", "two nodes have this node_id")
        await published.more(10)
        await asyncio.to_thread(double.kill)
        await whole_again(kit, lift, published)
    finally:
        double.kill()


async def test_an_emptied_data_directory(kit, lift):
    """Refused under its old name, counted by nobody; it is back once it was removed and has joined."""
    published = await make_stream(lift)
    wiped = kit.nodes["node-3"]
    await asyncio.to_thread(kit.kill, "node-3")
    shutil.rmtree(wiped.data)
    wiped.spawn()
    await told(wiped, "refuses this node", "its data directory was lost")
    for name in ("node-1", "node-2"):
        await told(kit.nodes[name], "'node-3' with another data directory")
    await published.more(10)
    await asyncio.to_thread(kit.kill, "node-1")  # now its vote would make a majority
    with pytest.raises(liftpy.LiftError):
        await lift.create_stream("other", subject="other")
    assert "up, incarnation" not in wiped.log().rpartition("refuses this node")[2]
    await asyncio.to_thread(kit.start_nodes, ["node-1"])
    await asyncio.to_thread(wiped.kill)
    shutil.rmtree(wiped.data)
    await lift.reassign_stream("s", replicas=2)
    await in_sync(lift, "s", ("node-1", "node-2"))
    await remove(lift, "node-3")
    await let_join(wiped)
    await lift.reassign_stream("s", replicas=3)
    await in_sync(lift, "s", NODES)
    await published.more(10)
    await whole_again(kit, lift, published)


@pytest.mark.slow
async def test_a_disk_is_replaced_where_there_is_a_node_to_spare(kit, lift, tmp_path):
    """A new node joins, the lost one is drained and removed; then it joins as a new one would."""
    published = await make_stream(lift)
    lost = kit.nodes["node-3"]
    settings = (lost.home / "liftpy.toml").read_text()
    await asyncio.to_thread(kit.kill, "node-3")
    lost.data.rename(tmp_path / "old disk")
    spare = kit.nodes["node-4"] = NodeProcess(kit.url, tmp_path / "node-4", "--node-id", "node-4", toml=settings)
    reconfigure(spare, port="0")
    await let_join(spare)
    await published.more(10)
    await lift.drain_node("node-3")
    await in_sync(lift, "s", ("node-1", "node-2", "node-4"))
    await remove(lift, "node-3")
    await published.more(10)
    await let_join(lost)
    assert {node.node_id for node in (await lift.cluster_info()).nodes} == set(kit.nodes)
    await lift.reassign_stream("s", partitions={0: ["node-3", "node-1", "node-2"]})
    await in_sync(lift, "s", NODES)
    await whole_again(kit, lift, published)


def moved_peers(settings, name):
    """The line of peers, with one node at another address of this machine."""
    (line,) = [line for line in settings.splitlines() if line.startswith("peers = ")]
    return line.removeprefix("peers = ").replace(f"{name}@127.0.0.1", f"{name}@127.0.0.9")


async def test_a_new_node_is_started_alone_beside_a_cluster(kit, tmp_path):
    """It would answer admin requests that are meant for the cluster."""
    lone = NodeProcess(kit.url, tmp_path / "lone", "--node-id", "lone")
    lone.spawn()
    last = await ends(lone)
    assert "another liftpy cluster" in last
    assert "start the node with --join" in last
