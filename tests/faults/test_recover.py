"""No replica can prove that it has all that was acknowledged: nobody leads before an operator says who does."""

from __future__ import annotations

import asyncio
import shutil

import pytest

import liftpy
from liftpy_client.errors import AdminError
from liftpy_client.group.offsets import committed
from support.bad_days import NODES, in_sync, make_stream, told, whole_again
from support.cluster import eventually
from support.cluster_kit import leader_of, partitions, running_cluster
from support.group_kit import reading
from support.reading import read_all
from support.segments import batches, stream_directory

QUICK = {"replica_lag_max_s": 2.0}
TOML = "[storage]\nretention_interval_s = 0.5\n[groups]\npartitions = 1\n"
OFFSETS = "__consumer_offsets"


@pytest.fixture
async def kit(tmp_path):
    async with running_cluster(tmp_path, cluster=QUICK, toml=TOML) as kit:
        yield kit


@pytest.fixture
async def lift(kit):
    async with kit.connect() as lift:
        yield lift


def lose(kit, *names, stream="s"):
    """The volume with a node's logs of a stream is not mounted any more."""
    for name in names:
        shutil.rmtree(stream_directory(kit.nodes[name].data, stream))


async def leave(kit, lift, name):
    """Stop a node cleanly; the others go on without it."""
    assert await asyncio.to_thread(kit.nodes[name].stop) == 0
    await in_sync(lift, "s", set(NODES) - {name})


async def looked(lift, stream="s", **more):
    """What a dry run shows of the partition; asked again while nodes start."""

    async def look():
        (partition,) = (await lift.recover_stream(stream, partition=0, dry_run=True, **more)).partitions
        return partition if all(log.state != "unknown" for log in partition.logs if log.up) else None

    return await eventually(look, 40.0)


async def is_committed(lift, end, nodes=NODES, stream="s"):
    """Wait until these nodes know that the records below an offset are committed."""

    async def do_they_know():
        (partition,) = (await lift.recover_stream(stream, partition=0, dry_run=True)).partitions
        return all(log.high_watermark == end for log in partition.logs if log.node in nodes)

    await eventually(do_they_know, 40.0)


async def has_no_leader(lift):
    (partition,) = await partitions(lift, "s")
    return partition.leader is None


def states(partition):
    return {log.node: log.state for log in partition.logs}


async def test_the_intact_replica_leads_and_not_those_that_lost_theirs(kit, lift):
    published = await make_stream(lift)
    await is_committed(lift, 20)
    await leave(kit, lift, "node-1")
    await asyncio.to_thread(kit.stop_nodes)
    lose(kit, "node-2", "node-3")
    await asyncio.to_thread(kit.start_nodes)
    seen = await looked(lift)
    assert states(seen) == {"node-1": "ok", "node-2": "missing", "node-3": "missing"}
    assert (seen.leader, seen.chosen, seen.known_end, seen.lost, seen.loss) == (None, "node-1", 20, 0, None)
    await lift.recover_stream("s", versions={0: seen.version})
    assert await leader_of(lift, "s") == "node-1"
    await published.more(10)
    await in_sync(lift, "s", NODES)
    await whole_again(kit, lift, published)


async def test_no_empty_log_leads_where_all_are_lost(kit, lift):
    await make_stream(lift)
    await asyncio.to_thread(kit.stop_nodes)
    lose(kit, *NODES)
    await asyncio.to_thread(kit.start_nodes)
    seen = await looked(lift)
    assert set(states(seen).values()) <= {"missing", "empty"}
    assert (seen.known_end, seen.lost) == (20, 20)
    await asyncio.to_thread(kit.stop_nodes)  # what the nodes knew, the metadata know by now
    await asyncio.to_thread(kit.start_nodes)
    assert (await looked(lift)).known_end == 20
    assert await has_no_leader(lift)
    with pytest.raises(AdminError, match="committed records from offset 0 to 19 are lost"):
        await lift.recover_stream("s")
    await lift.recover_stream("s", accept_data_loss=True)
    await in_sync(lift, "s", NODES)
    assert (await lift.publish("s", b"anew")).offset == 0


async def test_a_replica_with_more_than_the_elected_leader_goes_to_quarantine_whole(kit, lift):
    """`node-3` left after 20 messages; of those with 30, `node-2` loses its log, and `node-1` does not return."""
    published = await make_stream(lift)
    await leave(kit, lift, "node-3")
    await published.more(10)
    await is_committed(lift, 30, ("node-1", "node-2"))
    assert await asyncio.to_thread(kit.nodes["node-1"].stop) == 0
    assert await asyncio.to_thread(kit.nodes["node-2"].stop) == 0
    lose(kit, "node-2")
    await asyncio.to_thread(kit.start_nodes, ["node-2", "node-3"])
    seen = await looked(lift)
    assert states(seen) == {"node-1": "unknown", "node-2": "missing", "node-3": "ok"}
    assert "node-1 can not be left out" in seen.refusal
    seen = await looked(lift, give_up=["node-1"])
    assert (seen.chosen, seen.chosen_end, seen.lost) == ("node-3", 20, 10)
    with pytest.raises(AdminError, match="committed records from offset 20 to 29 are lost"):
        await lift.recover_stream("s", give_up=["node-1"])
    await lift.recover_stream("s", give_up=["node-1"], accept_data_loss=True, versions={0: seen.version})
    await in_sync(lift, "s", ("node-2", "node-3"))
    deposed = kit.nodes["node-1"]
    await asyncio.to_thread(deposed.start)
    await told(deposed, "are gone after an unclean election", "is copied anew from node", "its damaged files are in")
    await in_sync(lift, "s", NODES)
    (aside,) = (each for each in (deposed.data / "quarantine").iterdir() if each.is_dir())
    (segment,) = aside.glob("*.log")
    assert batches(segment)[-1].header.next_offset == 30, "nothing of it was dropped"
    (listed,) = (await lift.quarantine("s")).items
    assert (listed.node, listed.name, listed.stream, listed.partition) == ("node-1", aside.name, "s", 0)
    assert "copied anew from node node-3" in listed.why
    assert "are gone after an unclean election" in listed.why
    assert listed.size_bytes >= segment.stat().st_size
    for offset in range(20, 30):
        del published.acked[offset]
    await lift.publish("s", b"20", message_id="after")
    published.acked[20] = b"20"
    await whole_again(kit, lift, published)


async def test_the_only_replica_has_lost_its_log(kit, lift):
    await make_stream(lift, replicas=1, min_isr=1)
    owner = kit.nodes[await leader_of(lift, "s")]
    assert await asyncio.to_thread(owner.stop) == 0
    shutil.rmtree(stream_directory(owner.data, "s"))
    await asyncio.to_thread(owner.start)
    seen = await looked(lift)
    assert (seen.leader, seen.chosen, seen.chosen_end, seen.known_end) == (None, owner.home.name, 0, 20)
    assert "committed records from offset 0 to 19 are lost" in seen.loss
    assert await has_no_leader(lift)
    await lift.recover_stream("s", accept_data_loss=True)
    assert await leader_of(lift, "s") == owner.home.name
    assert (await lift.publish("s", b"anew")).offset == 0
    assert await asyncio.to_thread(owner.stop) == 0
    await asyncio.to_thread(owner.start)
    assert await leader_of(lift, "s") == owner.home.name
    (message,) = await read_all(lift, "s")
    assert (message.offset, message.value) == (0, b"anew")


async def test_the_only_replica_loses_its_log_before_the_first_checkpoint(kit, lift):
    await make_stream(lift, replicas=1, min_isr=1, count=1)
    owner = kit.nodes[await leader_of(lift, "s")]
    await told_of_records(lift)
    await asyncio.to_thread(owner.kill)
    shutil.rmtree(stream_directory(owner.data, "s"))
    (owner.data / "checkpoint").unlink(missing_ok=True)
    await asyncio.to_thread(owner.start)
    seen = await looked(lift)
    assert (seen.leader, seen.chosen, seen.known_end) == (None, owner.home.name, 1)


async def told_of_records(lift):
    """Wait until the metadata know that the first record was committed."""

    async def is_told():
        (partition,) = (await lift.recover_stream("s", partition=0, dry_run=True)).partitions
        return partition.known_end == 1

    await eventually(is_told, 4.0)  # quicker than a checkpoint


async def test_committed_offsets_are_recovered(kit, lift):
    """Of their three replicas the intact one leads by an operator's word, and a group goes on where it was."""
    await make_stream(lift)
    async with reading(lift, "s", "g") as one:
        await eventually(lambda: len(one.values) == 20)
    (log, *_) = (await looked(lift, OFFSETS)).logs
    await is_committed(lift, log.log_end, stream=OFFSETS)
    await asyncio.to_thread(kit.nodes["node-1"].stop)
    for stream in ("s", OFFSETS):
        await in_sync(lift, stream, ("node-2", "node-3"))
    await asyncio.to_thread(kit.stop_nodes)
    lose(kit, "node-2", "node-3", stream=OFFSETS)
    await asyncio.to_thread(kit.start_nodes)
    seen = await looked(lift, OFFSETS)
    assert states(seen) == {"node-1": "ok", "node-2": "missing", "node-3": "missing"}
    assert (seen.leader, seen.chosen, seen.loss) == (None, "node-1", None)
    await lift.recover_stream(OFFSETS, versions={0: seen.version})
    await in_sync(lift, OFFSETS, NODES)
    found = await eventually(lambda: asked(lift), 40.0)
    assert {number: row.offset for number, row in found.items()} == {0: 20}
    await lift.publish("s", b"20", message_id="after")
    async with reading(lift, "s", "g") as two:
        await eventually(lambda: two.values, 40.0)
    assert two.values == [b"20"]


async def asked(lift):
    try:
        return await committed(lift._session, "g", "s")
    except liftpy.LiftError:
        return None
