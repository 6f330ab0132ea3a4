"""Bytes on one node's disk that are not what was written: named, served to nobody, and made good from the others."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress

import pytest

from liftpy_client.errors import CorruptRecordsError
from liftpy_server.consensus.storage.journal import JOURNAL_NAMES
from support.bad_days import NODES, ends, in_sync, let_join, make_stream, remove, told, whole_again
from support.cluster import eventually, quick_options
from support.cluster_kit import leader_of, partitions, running_cluster
from support.segments import batches, damage_middle, flip_bit, partition_directory, segment_files

QUICK = {"replica_lag_max_s": 2.0}


@pytest.fixture
async def kit(tmp_path):
    async with running_cluster(tmp_path, cluster=QUICK, toml="[storage]\nretention_interval_s = 0.5\n") as kit:
        yield kit


@pytest.fixture
async def lift(kit):
    async with kit.connect() as lift:
        yield lift


async def renew(kit, lift, name):
    """Take a node whose data directory can not be used out of the cluster, and let it join with an empty one."""
    others = [each for each in NODES if each != name]
    await lift.reassign_stream("s", partitions={0: others})
    await eventually(lambda: _is_kept_by(lift, others), 40.0)
    await remove(lift, name)
    shutil.rmtree(kit.nodes[name].data)
    await let_join(kit.nodes[name])
    await lift.reassign_stream("s", replicas=3)
    await in_sync(lift, "s", NODES)


async def _is_kept_by(lift, nodes):
    (partition,) = await partitions(lift, "s")
    return set(partition.replicas) == set(partition.isr) == set(nodes)


async def a_follower(lift):
    leader = await leader_of(lift, "s")
    return next(name for name in NODES if name != leader)


async def replaced(kit, lift, name):
    """Have a replica copied anew: it is taken away, and given back."""
    await lift.reassign_stream("s", partitions={0: [each for each in NODES if each != name]})
    await told(kit.nodes[name], "stream s partition 0 is kept by other nodes now")
    await lift.reassign_stream("s", replicas=3)
    await in_sync(lift, "s", NODES)


async def healed(lift, odd):
    """A replica whose log has failed is copied anew once nobody counts on it, and what was there is kept aside."""
    await told(odd, "stream s partition 0 is copied anew from node", "its damaged files are in")
    await in_sync(lift, "s", NODES)
    (aside,) = (odd.data / "quarantine").iterdir()
    assert list(aside.glob("*.log"))


def _scribble(path):
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\x5a" * 8192)


async def test_the_metadata_journal_is_damaged(kit, lift):
    published = await make_stream(lift)
    odd = kit.nodes["node-3"]
    await asyncio.to_thread(kit.kill, "node-3")
    copies = [odd.data / "metadata" / name for name in JOURNAL_NAMES]
    _scribble(copies[0])
    odd.spawn()
    await told(odd, "nothing is lost, it is restored from raft.journal.copy")
    await whole_again(kit, lift, published)
    await asyncio.to_thread(kit.kill, "node-3")
    assert copies[0].read_bytes() == copies[1].read_bytes()
    for copy in copies:
        _scribble(copy)
    odd.spawn()
    last = await ends(odd)
    print(last)
    assert all(str(copy) in last for copy in copies)
    assert "remove this node from the cluster, empty its data directory and let it join again" in last
    await published.more(10)
    await renew(kit, lift, "node-3")
    await published.more(10)
    await whole_again(kit, lift, published)


async def test_a_bit_turns_in_the_journal_where_a_stream_was_made(kit, lift):
    """A third voter that never heard of the stream does not outvote those that made it."""
    await make_stream(lift)
    await asyncio.to_thread(kit.kill, "node-3")
    published = await make_stream(lift, "late", 5, replicas=2)
    await asyncio.to_thread(kit.kill, "node-1", "node-2")
    odd = kit.nodes["node-1"]
    copies = [odd.data / "metadata" / name for name in JOURNAL_NAMES]
    _flip_in(copies[0], b"late")
    await asyncio.to_thread(kit.start_nodes, ["node-1", "node-3"])
    await told(odd, f"{copies[0]}", "nothing is lost, it is restored from raft.journal.copy")
    await asyncio.to_thread(kit.start_nodes, ["node-2"])
    await published.more(5)
    await whole_again(kit, lift, published)
    assert not list(kit.home.glob("*/*/quarantine/late*"))


async def test_both_copies_of_a_journal_are_damaged_where_a_stream_was_made(kit, lift):
    """The node ends and names the files; it neither votes nor forgets, and the others have the stream."""
    await make_stream(lift)
    await asyncio.to_thread(kit.kill, "node-3")
    published = await make_stream(lift, "late", 5, replicas=2, min_isr=1)
    await asyncio.to_thread(kit.kill, "node-1", "node-2")
    odd = kit.nodes["node-1"]
    copies = [odd.data / "metadata" / name for name in JOURNAL_NAMES]
    for copy in copies:
        _flip_in(copy, b"late")
    odd.spawn()
    last = await ends(odd)
    assert all(str(copy) in last for copy in copies)
    await asyncio.to_thread(kit.start_nodes, ["node-2", "node-3"])
    await in_sync(lift, "late", ["node-2"])
    await published.check()
    assert not list(kit.nodes["node-2"].data.glob("quarantine/*"))


def _flip_in(path, text):
    """Turn one bit of the last place where a file has a text."""
    flip_bit(path, path.read_bytes().rindex(text))


async def test_a_bit_turns_on_a_follower(kit, lift):
    """Found when the node starts; it leads the partition no more, and its replica is copied anew."""
    published = await make_stream(lift)
    victim = await a_follower(lift)
    odd = kit.nodes[victim]
    await asyncio.to_thread(kit.kill, victim)
    (segment,) = segment_files(odd.data, "s")
    damage_middle(segment)
    await asyncio.to_thread(odd.start)
    await told(odd, "stream s partition 0 is offline", str(segment))
    await published.more(10)
    await healed(lift, odd)
    await published.more(10)
    await whole_again(kit, lift, published)


async def test_a_bit_turns_on_the_leader(kit, lift):
    """Found when a consumer is sent the batch; that reads on at another node."""
    published = await make_stream(lift)
    victim = await leader_of(lift, "s")
    odd = kit.nodes[victim]
    (segment,) = segment_files(odd.data, "s")
    damage_middle(segment)
    seen = []
    with suppress(CorruptRecordsError):
        async for message in lift.consume("s", options=quick_options(), stop="latest"):
            seen += [message.value]
    assert seen == list(published.acked.values())[: len(seen)]
    await told(odd, "stream s partition 0 is offline", str(segment))
    await eventually(lambda: _leads_not(lift, victim), 40.0)
    await published.more(10)
    await published.check()
    await healed(lift, odd)
    await whole_again(kit, lift, published)


async def _leads_not(lift, victim):
    (partition,) = await partitions(lift, "s")
    return partition.leader not in {None, victim}


async def test_a_bit_turns_in_what_a_follower_fetches(kit, lift):
    """The follower does not take it, and the leader gives up."""
    published = await make_stream(lift)
    victim, follower = await leader_of(lift, "s"), await a_follower(lift)
    await asyncio.to_thread(kit.kill, follower)
    await published.more(20)
    odd = kit.nodes[victim]
    (segment,) = segment_files(odd.data, "s")
    last = batches(segment)[-1]
    flip_bit(segment, last.position + last.header.length - 20)
    await asyncio.to_thread(kit.start_nodes)
    await told(odd, "stream s partition 0 is offline", f"{segment} is damaged at byte {last.position}")
    await eventually(lambda: _leads_not(lift, victim), 40.0)
    await published.more(10)
    await published.check()
    await healed(lift, odd)
    await whole_again(kit, lift, published)


async def test_the_directory_of_a_replica_is_moved_away(kit, lift, tmp_path):
    """The way to have one replica copied anew by hand."""
    published = await make_stream(lift)
    odd = kit.nodes["node-3"]
    assert await asyncio.to_thread(odd.stop) == 0
    partition_directory(odd.data, "s").rename(tmp_path / "aside")
    await asyncio.to_thread(odd.start)
    await published.more(10)
    await in_sync(lift, "s", NODES)
    await whole_again(kit, lift, published)


async def test_a_replica_is_taken_away_and_given_back(kit, lift):
    """Also by a node that has started since: what it remembers of the replica that it had does not count."""
    published = await make_stream(lift)
    await asyncio.to_thread(kit.stop_nodes)
    await asyncio.to_thread(kit.start_nodes)
    await replaced(kit, lift, "node-3")
    await whole_again(kit, lift, published)


async def test_an_older_copy_of_a_segment_is_put_back(kit, lift):
    """After damage a replica does not count for whole, whatever is found in its place."""
    published = await make_stream(lift)
    await asyncio.to_thread(kit.kill, "node-1")
    await in_sync(lift, "s", ("node-2", "node-3"))
    await published.more(10)
    odd = kit.nodes["node-2"]
    await asyncio.to_thread(kit.kill, "node-2")
    (segment,) = segment_files(odd.data, "s")
    copy = segment.read_bytes()[: batches(segment)[5].position]
    damage_middle(segment)
    await asyncio.to_thread(kit.start_nodes, ["node-2"])
    await told(odd, "stream s partition 0 is offline")
    await asyncio.to_thread(kit.kill, "node-2", "node-3")
    segment.write_bytes(copy)
    for index in (*segment.parent.glob("*.index"), *segment.parent.glob("*.timeindex")):
        index.unlink()
    await whole_only_with(kit, lift, "node-3", published)


async def test_the_directory_of_a_replica_is_gone(kit, lift, tmp_path):
    """A replica that lost its log has not what it helped to commit: it must not lead, and must not count."""
    published = await make_stream(lift)
    await asyncio.to_thread(kit.kill, "node-1")
    await in_sync(lift, "s", ("node-2", "node-3"))
    await published.more(10)
    await asyncio.to_thread(kit.kill, "node-2", "node-3")
    partition_directory(kit.nodes["node-2"].data, "s").rename(tmp_path / "aside")
    await whole_only_with(kit, lift, "node-3", published)


async def whole_only_with(kit, lift, last, published):
    """Of the in-sync replicas one has lost its log: without the other, `last`, nobody leads."""
    # A checkpoint may tell a log that is too short from one that is whole; here there is none.
    (kit.nodes["node-2"].data / "checkpoint").unlink(missing_ok=True)
    await asyncio.to_thread(kit.start_nodes, ["node-1", "node-2"])

    async def is_leaderless():
        (partition,) = await partitions(lift, "s")
        assert partition.leader in {last, None}
        return partition.leader is None and partition.isr == (last,)

    await eventually(is_leaderless, 40.0, f"{last} is away and goes on leading")
    await asyncio.to_thread(kit.start_nodes, [last])
    await whole_again(kit, lift, published)
