"""A node that follows is answered in plain calls, from memory where it can be, with the bounds of everybody else."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from liftpy_envelope.errors import ErrorCode
from liftpy_log.recent import RecentBatches, RecentTail
from support.follow_kit import EPOCH, TOKEN, UUID, Follower, Leader, key_of
from support.raw_pull import RawPull, frame

KEY = key_of()
FOLLOW, METADATA = 12, 1
WAIT_MS = 10_000


def fetch_row(offset=0, durable_end=None, seen=0, partition=0, verify=0):
    return [[UUID, partition], 3, EPOCH, offset, -1, offset if durable_end is None else durable_end, 0, seen, verify, 0]


def body(*rows, bytes_max=8_000_000, wait_ms_max=WAIT_MS, questions=()):
    return ["follower", bytes_max, wait_ms_max, list(rows), list(questions), [], 0]


def report(*rows, **more):
    return frame(0, FOLLOW, 1, body(*rows, **more))


async def until(is_so, timeout_s=5.0):
    async with asyncio.timeout(timeout_s):
        while not is_so():
            await asyncio.sleep(0.001)


@pytest.fixture
async def leader(tmp_path):
    async with Leader(tmp_path, send_timeout_s=0.3) as leader:
        yield leader


@pytest.fixture
async def peer(leader):
    async with await RawPull.open(leader.server.port) as peer:
        await peer.hello(TOKEN)
        yield peer


def remember(replica):
    replica.log.recent = RecentBatches().tail()
    return replica


async def test_who_is_at_the_end_is_sent_what_is_in_memory(leader):
    replica = leader.add()
    replica.append(b"on disk" * 50_000)
    remember(replica)
    with patch.object(leader.files, "pin", wraps=leader.files.pin) as pin:
        async with Follower(leader.info) as follower:
            follower.fetch()
            await follower.until(lambda: follower.requests[KEY].offset == 1)
            assert pin.call_count == 1
            for size in (10, 100_000, 3_000_000):
                replica.append(b"x" * size)
                end = replica.log.log_end
                await follower.until(lambda end=end: follower.requests[KEY].offset == end)
            assert pin.call_count == 1
            assert follower.data[KEY] == leader.data()


async def test_memory_and_files_go_into_one_response(leader, peer):
    for number in range(3):
        replica = leader.add(number)
        if number == 1:
            remember(replica)
        replica.append(b"%d" % number * 100_000)
    answer = await peer.request(FOLLOW, body(*(fetch_row(partition=number) for number in range(3))))
    assert [row[0][1] for row in answer.result[0]] == [0, 1, 2]
    assert answer.body == b"".join(leader.data(number) for number in range(3))


async def test_what_was_purged_or_is_to_be_checked_is_not_sent_from_memory(leader, peer):
    replica = remember(leader.add())
    for _ in range(3):
        replica.append(b"x")
    with patch.object(RecentTail, "read", side_effect=AssertionError("told to fail")):
        answer = await peer.request(FOLLOW, body(fetch_row(verify=1)))
    assert answer.body == leader.data()
    replica.log.purge(1)
    answer = await peer.request(FOLLOW, body(fetch_row(seen=1)))
    assert answer.result[0][0][1] == 3
    assert answer.body == b""


async def test_a_report_counts_and_leaves_the_request_that_waits(leader, peer):
    replica = remember(leader.add())
    waiting = peer.send(FOLLOW, body(fetch_row()))
    peer.write(report(fetch_row()))
    peer.write(report(fetch_row()))
    await until(lambda: len(replica.fetches) == 3)
    assert len(leader.heard) == 3
    replica.append(b"x")
    answer = await peer.receive()
    assert answer.correlation_id == waiting
    assert answer.offsets == [0]
    peer.write(report(fetch_row(1, 0, seen=waiting)))
    peer.write(report(fetch_row(1, 1, seen=waiting)))
    await until(lambda: len(replica.fetches) == 5)
    assert [fetch.durable_end for fetch in replica.fetches] == [0, 0, 0, 0, 1]
    replica.append(b"y")
    assert (await peer.request(FOLLOW, body())).offsets == [1], "the next request has news for what was reported"


async def test_a_report_of_what_is_new_is_answered_by_the_request_that_waits(leader, peer):
    leader.add()
    leader.add(1).append(b"x")
    waiting = peer.send(FOLLOW, body(fetch_row()))
    peer.write(report(fetch_row(partition=1)))
    answer = await peer.receive()
    assert (answer.correlation_id, answer.offsets) == (waiting, [0])


async def test_a_report_must_not_ask(leader, peer):
    replica = leader.add()
    peer.write(report(fetch_row(), questions=[[[UUID, 0], 3, EPOCH, 1, 0]]))
    assert (await peer.receive()).error == ErrorCode.INVALID_REQUEST
    assert replica.fetches == []


async def test_what_is_due_at_once_is_looked_for_again(leader, peer):
    """On the loop that nodes run on, the handle of a timer that is due within the millisecond is of another kind."""
    replica = remember(leader.add())
    waiting = peer.send(FOLLOW, body(fetch_row()))
    await until(lambda: replica.fetches)
    with patch("liftpy_server.pull.follow_session.FOLLOW_HW_DELAY_S", 0.0001):
        replica.commit(1)
        peer.write(report(fetch_row()) * 20)
        answer = await peer.receive()
    assert answer.correlation_id == waiting
    assert answer.result[0][0][5] == 1


async def test_a_second_request_ends_the_wait_of_the_first(leader, peer):
    replica = remember(leader.add())
    first = peer.send(FOLLOW, body(fetch_row()))
    await until(lambda: replica.fetches)
    second = peer.send(FOLLOW, body())
    answer = await peer.receive()
    assert (answer.correlation_id, answer.body) == (first, b"")
    replica.append(b"x")
    answer = await peer.receive()
    assert (answer.correlation_id, answer.offsets) == (second, [0])


async def test_a_request_waits_no_longer_than_it_says(leader, peer):
    leader.add()
    loop = asyncio.get_running_loop()
    for wait_ms in (0, 100):
        began_s = loop.time()
        answer = await peer.request(FOLLOW, body(fetch_row(), wait_ms_max=wait_ms))
        assert answer.result == [[], [], None]
        assert wait_ms / 1_000 - 0.01 <= loop.time() - began_s < wait_ms / 1_000 + 5


async def test_requests_of_all_kinds_are_answered_in_order_however_many_come_at_once(leader, peer):
    replica = remember(leader.add())
    replica.append(b"x")
    sent = []
    for number in range(100):
        api = METADATA if number % 3 == 0 else FOLLOW
        sent.append(peer.send(api, None if api == METADATA else body(fetch_row(), wait_ms_max=0)))
    assert [(await peer.receive()).correlation_id for _ in sent] == sent


async def test_a_follower_that_stops_reading_from_memory_is_cut_off(leader):
    replica = remember(leader.add())
    async with await RawPull.open(leader.server.port, receive_bytes=4_096) as peer:
        await peer.hello(TOKEN)
        peer.send(FOLLOW, body(fetch_row(), bytes_max=60_000_000))
        await until(lambda: replica.fetches)
        offset = 0
        while leader.server.connection_count:
            replica.append(b"x" * 900_000)
            offset += 1
            peer.send(FOLLOW, body(fetch_row(offset), bytes_max=60_000_000))
            await asyncio.sleep(0.01)
            assert offset < 1_000, "it is cut off in bounded time"
    assert replica.wakes == {}


async def test_a_replica_that_fails_costs_the_connection_and_nothing_else(leader, caplog):
    replica = leader.add()
    async with Follower(leader.info) as follower:
        follower.fetch()
        await follower.until_parked(0)
        await until(lambda: replica.wakes)
        with patch.object(replica, "follower_news", side_effect=ZeroDivisionError("told to fail")):
            replica.append(b"x")
            await until(lambda: "told to fail" in caplog.text)
        await follower.until(lambda: follower.requests[KEY].offset == 1)


async def test_a_batch_costs_one_response_also_where_it_becomes_durable_later(leader):
    replica = remember(leader.add())
    async with Follower(leader.info) as follower:
        follower.goes_on = False
        follower.fetch()
        await follower.until_parked(0)
        responses = []
        responded = follower.link._responded
        follower.link._connection.listen(
            lambda response: (responses.append(response), responded(response)), follower.link._lost
        )
        for number in range(20):
            replica.append(b"x" * 1_000)
            end = number + 1
            await follower.until(lambda end=end: follower.answers and follower.answers[KEY].offset == end - 1)
            follower.fetch(offset=end, durable_end=end - 1, last_epoch=EPOCH)
            await follower.until_parked(0)
            follower.fetch(durable_end=end)
            await until(lambda end=end: replica.fetches[-1].durable_end == end)
        assert sum(1 for response in responses if response.body.size) == 20
        assert len(responses) <= 20 + 4, "beside those that end a wait of a quarter of a second"
