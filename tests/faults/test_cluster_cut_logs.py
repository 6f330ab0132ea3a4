"""All nodes are killed at once, and one copy is damaged at its end: it leads nobody, and nothing acked is lost."""

from __future__ import annotations

import asyncio

import pytest

from support.bad_days import NODES, make_stream, told, whole_again
from support.cluster import eventually
from support.cluster_kit import create, leader_of, partitions, running_cluster, settled
from support.reading import values
from support.segments import batches, flip_bit, segment_files

MESSAGES = 50
ROUNDS_MAX = 20
PARTITIONS = 8  # more dirty ones in a round than are synced one by one: it goes to the write-ahead log


@pytest.fixture
async def kit(tmp_path):
    async with running_cluster(tmp_path, cluster={"preferred_return_s": 600.0}) as kit:
        yield kit


@pytest.fixture
async def lift(kit):
    async with kit.connect() as lift:
        yield lift


async def led_by_others(lift, victim):
    """Wait until another node leads each partition; a cut log would lead at once."""

    async def ask():
        found = await partitions(lift, "s")
        return all(each.leader not in {None, victim} for each in found) and found

    return await eventually(ask, 40.0, f"nobody but {victim} leads")


async def start_with_one_damaged(kit, lift, victim, spoil):
    """Kill all, damage one copy, start all."""
    await asyncio.to_thread(kit.kill, *NODES)
    odd = kit.nodes[victim]
    spoil(odd)
    # It is written every few seconds, and would tell that the end of the log had been durable.
    (odd.data / "checkpoint").unlink(missing_ok=True)
    await asyncio.to_thread(kit.start_nodes)


def same_everywhere(kit, partition=0):
    """What the newest segment holds is the same on all nodes."""
    held = {segment_files(kit.nodes[name].data, "s", partition)[-1].read_bytes() for name in NODES}
    return len(held) == 1


@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_a_bit_turns_in_the_last_batch_of_one_log(kit, lift, role):
    published = await make_stream(lift, count=MESSAGES)
    leader = await leader_of(lift, "s")
    victim = leader if role == "leader" else next(name for name in NODES if name != leader)

    def spoil(node):
        (segment,) = segment_files(node.data, "s")
        last = batches(segment)[-1]
        assert last.header.next_offset == MESSAGES
        flip_bit(segment, last.position + last.header.length - 20)

    await start_with_one_damaged(kit, lift, victim, spoil)
    await told(kit.nodes[victim], "stream s partition 0: the end of its log can not be read, from offset")
    (partition,) = await led_by_others(lift, victim)
    assert partition.log_end == MESSAGES
    await published.check()
    await published.more(10)
    await whole_again(kit, lift, published)
    assert same_everywhere(kit)


async def test_every_log_ends_with_a_torn_tail_and_a_bit_turned_in_one(kit, lift):
    """All report how far their logs reach, and one of the longest leads without an operator."""
    published = await make_stream(lift, count=MESSAGES)
    victim = await leader_of(lift, "s")

    def spoil(_node):
        for name, node in kit.nodes.items():
            (segment,) = segment_files(node.data, "s")
            last = batches(segment)[-1]
            with segment.open("ab") as file:
                file.write(segment.read_bytes()[last.position :][:50])
            if name == victim:
                flip_bit(segment, last.position + last.header.length - 20)

    await start_with_one_damaged(kit, lift, victim, spoil)
    for node in kit.nodes.values():
        await told(node, "stream s partition 0: the end of its log can not be read, from offset")
    (partition,) = await led_by_others(lift, victim)
    assert partition.log_end == MESSAGES
    await published.check()
    await whole_again(kit, lift, published)
    assert same_everywhere(kit)


async def test_a_bit_turns_in_the_last_round_of_the_write_ahead_log(kit, lift):
    await create(lift, "s", "s.*", partitions=PARTITIONS)
    acked, victim = set(), await leader_of(lift, "s")

    def newest(node):
        return max((path for path in (node.data / "wal").iterdir() if path.stat().st_size), default=None)

    for start in range(0, ROUNDS_MAX * MESSAGES, MESSAGES):  # at once: many partitions are dirty in one round
        if start > MESSAGES and newest(kit.nodes[victim]) is not None:
            break  # on a machine that is busy messages come in so slowly that few are
        sent = [f"s.{number}" for number in range(start, start + MESSAGES)]
        await asyncio.gather(*(lift.publish(subject, subject.encode(), message_id=subject) for subject in sent))
        acked.update(subject.encode() for subject in sent)

    def spoil(node):
        path = newest(node)
        flip_bit(path, path.stat().st_size - 20)

    await start_with_one_damaged(kit, lift, victim, spoil)
    await told(kit.nodes[victim], "bytes of an unfinished write")
    await led_by_others(lift, victim)
    await settled(lift, ["s"])
    assert sorted(await values(lift, "s")) == sorted(acked)
    assert all(same_everywhere(kit, number) for number in range(PARTITIONS))
