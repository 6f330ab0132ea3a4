"""Bytes on one node's disk that are not what was written: named, served to nobody, and made good from the others."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from liftpy_client.errors import CorruptRecordsError
from support.bad_days import NODES, ends, in_sync, let_join, make_stream, told, whole_again
from support.cluster import eventually, quick_options
from support.cluster_kit import leader_of, partitions, running_cluster
from support.reading import take
from support.segments import damage_middle, partition_directory, segment_files

QUICK = {"replica_lag_max_s": 2.0}


@pytest.fixture
async def kit(tmp_path):
    async with running_cluster(tmp_path, cluster=QUICK) as kit:
        yield kit


@pytest.fixture
async def lift(kit):
    async with kit.connect() as lift:
        yield lift


async def renew(kit, lift, name):
    """Take a node whose data directory can not be used out of the cluster, and let it join with an empty one."""
    others = [each for each in NODES if each != name]
    await lift.reassign_stream("s", partitions={0: others})
    await in_sync(lift, "s", others)
    await lift.remove_node(name)
    shutil.rmtree(kit.nodes[name].data)
    await let_join(kit.nodes[name])
    await lift.reassign_stream("s", replicas=3)
    await in_sync(lift, "s", NODES)


async def a_follower(lift):
    leader = await leader_of(lift, "s")
    return next(name for name in NODES if name != leader)


async def replaced(lift, name):
    """Have a replica copied anew: it is taken away, and given back."""
    await lift.reassign_stream("s", partitions={0: [each for each in NODES if each != name]})
    await in_sync(lift, "s", set(NODES) - {name})
    await lift.reassign_stream("s", replicas=3)
    await in_sync(lift, "s", NODES)


async def test_the_metadata_journal_is_damaged(kit, lift):
    published = await make_stream(lift)
    odd = kit.nodes["node-3"]
    await asyncio.to_thread(kit.kill, "node-3")
    (journal,) = [path for path in (odd.data / "metadata").iterdir() if path.suffix == ".db"]
    with journal.open("r+b") as file:
        file.seek(100)
        file.write(b"\x5a" * 8192)
    odd.spawn()
    last = await ends(odd)
    print(last)
    assert str(journal) in last
    assert "remove this node from the cluster, empty its data directory and let it join again" in last
    await published.more(10)
    await renew(kit, lift, "node-3")
    await published.more(10)
    await whole_again(kit, lift, published)


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
    await in_sync(lift, "s", set(NODES) - {victim})
    assert segment.exists()
    await replaced(lift, victim)
    await published.more(10)
    await whole_again(kit, lift, published)


async def test_a_bit_turns_on_the_leader(kit, lift):
    """Found when a consumer is sent the batch; that reads on at another node."""
    published = await make_stream(lift)
    victim = await leader_of(lift, "s")
    odd = kit.nodes[victim]
    (segment,) = segment_files(odd.data, "s")
    damage_middle(segment)
    seen = {}
    try:
        for message in await take(lift.consume("s", options=quick_options()), len(published.acked)):
            seen[message.offset] = message.value
    except CorruptRecordsError as error:
        print("consumer", error)
    print(len(seen))
    assert seen.items() <= published.acked.items()
    await told(odd, "stream s partition 0 is offline", str(segment))
    await eventually(lambda: _leads_not(lift, victim), 20.0)
    await published.more(10)
    await published.check()
    await in_sync(lift, "s", set(NODES) - {victim})
    await replaced(lift, victim)
    await whole_again(kit, lift, published)


async def _leads_not(lift, victim):
    (partition,) = await partitions(lift, "s")
    return partition.leader not in {None, victim}


async def test_a_bit_turns_where_a_follower_fetches(kit, lift):
    published = await make_stream(lift)
    victim = await leader_of(lift, "s")
    follower = await a_follower(lift)
    await asyncio.to_thread(kit.kill, follower)
    await published.more(20)
    odd = kit.nodes[victim]
    (segment,) = segment_files(odd.data, "s")
    # the last batch: what the follower lacks
    from support.segments import batches, flip_bit
    batch = batches(segment)[-1]
    flip_bit(segment, batch.position + batch.header.length - 20)
    await asyncio.to_thread(kit.start_nodes)
    await told(odd, "stream s partition 0 is offline", str(segment))
    await eventually(lambda: _leads_not(lift, victim), 20.0)
    await published.more(10)
    await published.check()
    await replaced(lift, victim)
    await whole_again(kit, lift, published)


async def test_a_replica_is_taken_away_and_given_back(kit, lift):
    """Also by a node that has started since: what it remembers of the replica that it had does not count."""
    published = await make_stream(lift)
    await asyncio.to_thread(kit.stop_nodes)
    await asyncio.to_thread(kit.start_nodes)
    await replaced(lift, "node-3")
    await whole_again(kit, lift, published)


async def test_the_directory_of_a_replica_is_gone(kit, lift, tmp_path):
    """A replica that lost its log has not what it helped to commit: it must not lead, and must not count."""
    published = await make_stream(lift)
    await asyncio.to_thread(kit.kill, "node-1")
    await in_sync(lift, "s", ("node-2", "node-3"))
    await published.more(10)
    odd = kit.nodes["node-2"]
    await asyncio.to_thread(kit.kill, "node-2")
    partition_directory(odd.data, "s").rename(tmp_path / "aside")
    (odd.data / "checkpoint").unlink(missing_ok=True)
    await asyncio.to_thread(kit.start_nodes, ["node-2"])
    print((await partitions(lift, "s")))
    await asyncio.to_thread(kit.kill, "node-3")
    await asyncio.to_thread(kit.start_nodes, ["node-1"])
    await asyncio.sleep(4)
    print((await partitions(lift, "s")))
    await asyncio.to_thread(kit.start_nodes, ["node-3"])
    await whole_again(kit, lift, published)
