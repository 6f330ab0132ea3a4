"""Proves that a link brings a leader's records unchanged, its news at once, and costs little when there are none."""

from __future__ import annotations

import asyncio
import time

import pytest

from liftpy_envelope.follow import FollowQuestion, FollowRefusal
from liftpy_log.ids.ordered import OrderedProducers, StoredBatch
from liftpy_log.partition_log import LogConfig
from support.cluster import eventually
from support.follow_kit import EPOCH, Follower, Leader, Wire, key_of

KEY = key_of()
ROUND_S = 0.25  # of the time-out after which a leader is suspected, see `Follower`
ROUNDS = 4


async def rounds_of(leader, count):
    """Wait for so many more requests."""
    first = len(leader.heard)
    async with asyncio.timeout(30):
        while len(leader.heard) - first < count:
            await asyncio.sleep(0.01)


async def test_ten_thousand_batches_arrive_unchanged(tmp_path):
    async with Leader(tmp_path, log=LogConfig(segment_bytes=1_000_000)) as leader:
        replica = leader.add()
        for number in range(5_000):
            replica.append(b"%d" % number * (1 + number % 90))
        async with Follower(leader.info) as follower:
            follower.fetch()
            for number in range(5_000, 10_000):
                replica.append(b"%d" % number * (1 + number % 90))
                if number % 100 == 0:
                    await asyncio.sleep(0)
            await follower.until(lambda: follower.requests[KEY].offset == 10_000)
            assert follower.data[KEY] == leader.data()
            assert replica.fetches[-1].last_epoch == EPOCH


@pytest.mark.parametrize("records", [0, 3])
async def test_what_is_told_of_ordered_producers_comes_before_the_batches(tmp_path, records):
    table = OrderedProducers()
    table.add(bytes(range(16)), StoredBatch(3, 70, 5, 1, 1), 0)
    async with Leader(tmp_path) as leader:
        replica = leader.add()
        replica.told = table.encode(6)
        for _ in range(records):
            replica.append(b"x")
        async with Follower(leader.info) as follower:
            follower.goes_on = False
            follower.fetch(knows=0)
            await follower.until(lambda: KEY in follower.answers)
            found = follower.fetched[KEY].records
            assert found.told == (6, table.known(6))
            assert [header.next_offset for header in found.headers] == list(range(1, records + 1))


async def test_damage_of_what_is_told_of_ordered_producers_breaks_the_connection(tmp_path):
    async with Leader(tmp_path) as leader:
        replica = leader.add()
        replica.told = OrderedProducers().encode(6)[:-1] + b"!"
        async with Follower(leader.info) as follower:
            follower.goes_on = False
            follower.fetch(knows=0)
            await eventually(lambda: len(replica.fetches) > 1)
            replica.told = OrderedProducers().encode(6)
            await follower.until(lambda: KEY in follower.answers)
            assert follower.fetched[KEY].records.told == (6, [])


async def test_epochs_of_an_answer_are_its_ranges(tmp_path):
    async with Leader(tmp_path) as leader:
        replica = leader.add()
        for epoch in (2, 2, 4, 7):
            replica.append(b"x", epoch=epoch)
        async with Follower(leader.info) as follower:
            follower.goes_on = False
            follower.fetch()
            await follower.until(lambda: KEY in follower.answers)
            ranges = [(found.epoch, found.base, found.end) for found in follower.fetched[KEY].ranges]
            assert ranges == [(2, 0, 2), (4, 2, 3), (7, 3, 4)]


async def test_a_fetch_from_the_midst_of_a_batch_is_told_what_is_new_of_it(tmp_path):
    async with Leader(tmp_path) as leader:
        replica = leader.add()
        for _ in range(3):
            replica.append(b"x")
        async with Follower(leader.info) as follower:
            follower.goes_on = False
            follower.fetch(offset=2, durable_end=2)
            await follower.until(lambda: KEY in follower.answers)
            (found,) = follower.fetched[KEY].ranges
            assert (found.base, found.end) == (2, 3)


async def test_five_thousand_idle_partitions_enter_fast_and_then_cost_next_to_nothing(tmp_path):
    count = 5_000
    async with Leader(tmp_path, log=LogConfig()) as leader:
        shared = leader.add(0)  # thousands of real logs would measure the disk; what the session holds is the same
        for number in range(1, count):
            leader.replicas[key_of(number)] = type(shared)(shared.log)
        async with Wire(leader.server.port) as wire, Follower(lambda: leader.info(wire.port)) as follower:
            began_s = time.process_time()
            for number in range(count):
                follower.fetch(number)
            last = leader.replicas[key_of(count - 1)]
            async with asyncio.timeout(10):
                while not last.wakes:
                    await asyncio.sleep(0.001)
            entered_s = time.process_time() - began_s  # others may use the machine
            assert all(replica.wakes for replica in leader.replicas.values())
            await asyncio.sleep(0.3)  # the rounds that are under way end
            await rounds_of(leader, 1)
            requests, up, down = len(leader.heard), wire.up_bytes, wire.down_bytes
            began_s = time.monotonic()
            await rounds_of(leader, ROUNDS)
            assert time.monotonic() - began_s > (ROUNDS - 1.5) * ROUND_S, "one request per quarter of a second"
            rounds = len(leader.heard) - requests
            assert wire.up_bytes - up <= rounds * 40 + 40
            assert wire.down_bytes - down <= rounds * 40 + 40
            up, down = wire.up_bytes - up, wire.down_bytes - down
            print(f"entered in {entered_s:.3f} s; {up} bytes up, {down} down in {rounds} idle rounds")
            assert entered_s < 1.5
            assert leader.heard[-1][0] == "follower"
            assert time.monotonic() - follower.link.heard_s < 5


async def test_news_wake_at_once(tmp_path):
    async with Leader(tmp_path) as leader, Follower(leader.info) as follower:
        replica = leader.add()
        follower.fetch()
        await follower.until_parked(0)
        delays_s = []
        for number in range(50):
            while not replica.wakes:
                await asyncio.sleep(0.001)
            began_s = time.perf_counter()
            replica.append(b"x")
            await follower.until(lambda end=number + 1: follower.requests[KEY].offset == end)
            delays_s.append(time.perf_counter() - began_s)
        print(f"median {sorted(delays_s)[25] * 1_000:.2f} ms")
        assert sorted(delays_s)[25] < 0.05


async def test_a_high_watermark_is_told_with_those_of_others(tmp_path):
    async with Leader(tmp_path) as leader, Follower(leader.info) as follower:
        replicas = [leader.add(number) for number in range(20)]
        for number, replica in enumerate(replicas):
            replica.append(b"x")
            follower.fetch(number)
        await follower.until(lambda: all(follower.requests[key_of(number)].offset == 1 for number in range(20)))
        await follower.until_parked(*range(20))
        await asyncio.sleep(0.05)
        rounds = len(leader.heard)
        began_s = time.perf_counter()
        for half in (replicas[:10], replicas[10:]):
            for replica in half:
                replica.commit(1)
            await asyncio.sleep(0.01)
        await follower.until(lambda: all(follower.requests[key_of(n)].high_watermark == 1 for n in range(20)))
        assert time.perf_counter() - began_s >= 0.045
        assert len(leader.heard) - rounds <= 3


async def test_records_do_not_wait_for_a_high_watermark_to_be_told(tmp_path, monkeypatch):
    monkeypatch.setattr("liftpy_server.pull.follow_session.FOLLOW_HW_DELAY_S", 60.0)
    async with Leader(tmp_path) as leader, Follower(leader.info, leader_timeout_s=240.0) as follower:
        replica = leader.add()
        replica.append(b"x")
        follower.fetch()
        await follower.until(lambda: follower.requests[KEY].offset == 1)
        await follower.until_parked(0)
        while not replica.wakes:
            await asyncio.sleep(0.001)
        replica.commit(1)
        await asyncio.sleep(0.05)
        assert follower.requests[KEY].high_watermark == 0
        replica.append(b"y")
        await follower.until(lambda: follower.requests[KEY].offset == 2, timeout_s=5)
        assert follower.requests[KEY].high_watermark == 1


@pytest.mark.parametrize("epoch", [None, EPOCH + 1])
async def test_a_role_that_ends_answers_a_fetch_that_waits(tmp_path, epoch):
    async with Leader(tmp_path) as leader, Follower(leader.info) as follower:
        replica = leader.add()
        follower.fetch()
        await follower.until_parked(0)
        while not replica.wakes:
            await asyncio.sleep(0.001)
        replica.lead(epoch)
        await follower.until(lambda: KEY in follower.answers, timeout_s=5)
        assert follower.answers[KEY].refusal is FollowRefusal.NOT_LEADER
        assert not follower.link.is_parked(KEY)


async def test_a_partition_that_is_not_here_is_not_led_here(tmp_path):
    async with Leader(tmp_path) as leader, Follower(leader.info) as follower:
        follower.fetch()
        await follower.until(lambda: KEY in follower.answers)
        assert follower.answers[KEY].refusal is FollowRefusal.NOT_LEADER
        assert follower.answers[KEY].leader_epoch == -1


async def test_questions_are_answered_and_end_a_fetch(tmp_path):
    async with Leader(tmp_path) as leader, Follower(leader.info) as follower:
        replica = leader.add()
        for epoch in (2, 2, 5):
            replica.append(b"x", epoch=epoch)
        follower.fetch(offset=3, durable_end=3)
        await follower.until_parked(0)
        question = FollowQuestion(KEY, incarnation=3, leader_epoch=EPOCH, question=9, last_epoch=4)
        follower.link.ask(question)
        assert not follower.link.is_parked(KEY)
        await follower.until(lambda: KEY in follower.answers)
        answer = follower.answers[KEY]
        assert (answer.question, answer.epoch, answer.end, answer.incarnation) == (9, 2, 2, 3)
        assert not replica.wakes


async def test_what_is_durable_counts_at_once_and_sends_no_records_twice(tmp_path):
    async with Leader(tmp_path) as leader, Follower(leader.info) as follower:
        replica = leader.add()
        follower.goes_on = False
        follower.fetch()
        await follower.until_parked(0)
        replica.append(b"x" * 100_000)
        async with asyncio.timeout(30):
            while KEY not in follower.answers:  # as one whose earlier records become durable while new ones come
                follower.fetch()
                await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        assert len(follower.data[KEY]) == len(leader.data())
        assert len(replica.fetches) > 1
        before = len(replica.fetches)
        follower.fetch(durable_end=0)  # it could not append them after all
        follower.data.clear()
        await follower.until(lambda: KEY in follower.data)
        assert len(replica.fetches) == before + 1
        assert follower.data[KEY] == leader.data()


async def test_a_partition_that_is_dropped_is_silent_and_may_come_back(tmp_path):
    async with Leader(tmp_path) as leader, Follower(leader.info) as follower:
        replica = leader.add()
        leader.add(1)
        follower.fetch()
        follower.fetch(1)
        await follower.until_parked(0, 1)
        follower.link.drop(KEY)
        async with asyncio.timeout(10):
            while replica.wakes:
                await asyncio.sleep(0.001)
        replica.append(b"x")
        await asyncio.sleep(0.1)
        assert KEY not in follower.answers
        assert follower.link.is_parked(key_of(1))
        follower.fetch()
        await follower.until(lambda: follower.requests[KEY].offset == 1)
        assert follower.data[KEY] == leader.data()


async def test_a_busy_partition_does_not_starve_the_others(tmp_path):
    async with Leader(tmp_path) as leader:
        busy = leader.add()
        for _ in range(400):
            busy.append(b"x" * 100_000)
        quiet = [leader.add(number) for number in range(1, 20)]
        for replica in quiet:
            replica.append(b"x")
        async with Follower(leader.info) as follower:
            for number in range(20):
                follower.fetch(number)
            await follower.until(lambda: all(key_of(number) in follower.data for number in range(1, 20)))
            assert len(follower.data.get(KEY, b"")) < 9 * 2**20, "the others came with its first share"
            await follower.until(lambda: follower.requests[KEY].offset == 400)
            assert follower.data[KEY] == leader.data()


async def test_a_batch_beyond_the_size_of_a_response_fits(tmp_path):
    async with Leader(tmp_path) as leader, Follower(leader.info) as follower:
        leader.add().append(b"x" * (9 * 2**20))
        follower.fetch()
        await follower.until(lambda: follower.requests[KEY].offset == 1)
        assert follower.data[KEY] == leader.data()


async def test_what_is_whole_is_known_from_before_the_request_was_sent(tmp_path):
    """The leader tells for how long it has been so; clocks of different nodes are not compared."""
    told = []
    loop = asyncio.get_running_loop()
    async with Leader(tmp_path) as leader:
        leader.add().append(b"x")
        leader.add(1)
        leader.replicas[KEY].is_whole = True
        leader.asked_s = 7.0
        async with Follower(leader.info) as follower:
            follower.link._on_whole = lambda at_s, ends: told.append((at_s, dict(ends), loop.time()))
            began_s = loop.time()
            follower.fetch()
            follower.fetch(1)
            await eventually(lambda: told)
            at_s, ends, heard_s = told.pop()
            assert ends == {KEY: 1}
            assert began_s - 2.0 <= at_s <= heard_s - 2.0
            leader.replicas[key_of(1)].is_whole = True
            leader.replicas[KEY].append(b"y")
            leader.asked_s = 8.0
            await eventually(lambda: told and told[-1][1] == {KEY: 2, key_of(1): 0})
            leader.replicas[KEY].is_whole = False
            leader.asked_s = 9.0
            await eventually(lambda: told and told[-1][1] == {key_of(1): 0})


async def test_a_node_says_whether_it_hears_nats(tmp_path):
    async with Leader(tmp_path) as leader:
        leader.add()
        async with Follower(leader.info) as follower:
            follower.fetch()
            await eventually(lambda: ("follower", False) in leader.heard)
            follower.link._hears = lambda: True
            await eventually(lambda: ("follower", True) in leader.heard)
