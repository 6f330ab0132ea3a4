"""Proves that a link survives what goes wrong between it and its leader, and hands on nothing that is damaged."""

from __future__ import annotations

import asyncio
import logging
import ssl

import pytest
import trustme

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.follow import FollowRefusal
from liftpy_server.replication.core.view import ReplicationTimes
from liftpy_server.replication.wire.link import FollowLink
from support.follow_kit import CLIENT_TOKEN, EPOCH, TOKEN, UUID, Follower, Leader, Wire, key_of
from support.raw_pull import RawPull

KEY = key_of()
FOLLOW = 12


async def test_a_connection_that_breaks_in_the_middle_is_made_again(tmp_path):
    async with Leader(tmp_path) as leader:
        replicas = [leader.add(number) for number in range(3)]
        for _ in range(300):
            for replica in replicas:
                replica.append(b"x" * 50_000)
        async with Wire(leader.server.port) as wire, Follower(lambda: leader.info(wire.port)) as follower:
            for number in range(3):
                follower.fetch(number)
            for cut in range(1, 4):
                async with asyncio.timeout(10):
                    while wire.down_bytes < cut * 6_000_000:
                        await asyncio.sleep(0)
                wire.cut()
            await follower.until(lambda: all(follower.requests[key_of(n)].offset == 300 for n in range(3)))
            assert wire.connections == 4
            for number in range(3):
                assert follower.data[key_of(number)] == leader.data(number)


async def test_fetches_that_waited_are_sent_again_on_the_next_connection(tmp_path):
    async with Leader(tmp_path) as leader:
        replica = leader.add()
        async with (
            Wire(leader.server.port) as wire,
            Follower(lambda: leader.info(wire.port), leader_timeout_s=240.0) as follower,  # nothing else sends it again
        ):
            follower.fetch()
            await follower.until_parked(0)
            wire.cut()
            async with asyncio.timeout(10):
                while follower.link.is_parked(KEY):
                    await asyncio.sleep(0.001)
            await follower.until_parked(0)
            replica.append(b"x")
            await follower.until(lambda: follower.requests[KEY].offset == 1)


async def test_an_answered_fetch_is_not_sent_again(tmp_path):
    async with Leader(tmp_path) as leader:
        replica = leader.add()
        replica.append(b"x")
        async with Wire(leader.server.port) as wire, Follower(lambda: leader.info(wire.port)) as follower:
            follower.goes_on = False
            follower.fetch()
            await follower.until(lambda: KEY in follower.answers)
            wire.cut()
            async with asyncio.timeout(10):
                while wire.connections < 2:
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0.1)
            assert len(replica.fetches) == 1


async def test_a_batch_that_is_damaged_on_the_way_is_fetched_again(tmp_path, caplog):
    async with Leader(tmp_path) as leader:
        replica = leader.add()
        for _ in range(20):
            replica.append(b"x" * 50_000)
        async with Wire(leader.server.port) as wire, Follower(lambda: leader.info(wire.port)) as follower:
            wire.flip_after = 300_000
            follower.fetch()
            await follower.until(lambda: follower.requests[KEY].offset == 20)
            assert wire.connections == 2
            assert follower.data[KEY] == leader.data()
            assert replica.stopped is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "damaged batch" in caplog.text


async def test_a_leader_finds_out_that_its_file_is_damaged(tmp_path):
    async with Leader(tmp_path) as leader:
        replica = leader.add()
        for _ in range(20):
            replica.append(b"x" * 5_000)
        path = replica.log.segments[0].path
        with path.open("r+b") as file:
            file.seek(50_000)
            file.write(b"damage")
        async with Follower(leader.info) as follower:
            follower.fetch()
            await follower.until(lambda: KEY in follower.answers)
            assert follower.answers[KEY].refusal is FollowRefusal.NOT_LEADER
            assert KEY not in follower.data
            assert str(path) in replica.stopped


async def test_a_leader_that_is_unreachable_at_first_is_found_later(tmp_path):
    async with Leader(tmp_path) as leader:
        replica = leader.add()
        replica.append(b"x")
        nodes = [None, leader.info(1), leader.info()]
        async with Follower(lambda: nodes.pop(0) if len(nodes) > 1 else nodes[0]) as follower:
            follower.fetch()
            await follower.until(lambda: follower.requests[KEY].offset == 1, timeout_s=5)


async def test_another_node_at_the_address_is_not_followed(tmp_path, caplog):
    async with Leader(tmp_path) as leader:
        replica = leader.add()
        times = ReplicationTimes()
        link = FollowLink("other", leader.info, lambda _: None, "follower", 3, times)
        link.start()
        async with asyncio.timeout(10):
            while "node leader answers" not in caplog.text:
                await asyncio.sleep(0.01)
        await link.close()
        assert replica.fetches == []


async def test_a_leader_that_falls_silent_is_given_up_and_connected_again(tmp_path):
    async with Leader(tmp_path) as leader, Wire(leader.server.port) as wire:
        replica = leader.add()
        async with Follower(lambda: leader.info(wire.port), leader_timeout_s=0.1) as follower:
            follower.fetch()
            await follower.until_parked(0)
            wire.swallow()
            replica.append(b"x")
            await follower.until(lambda: follower.requests[KEY].offset == 1)
            assert wire.connections >= 2


async def test_a_silent_leader_is_not_heard(tmp_path):
    async with Leader(tmp_path) as leader, Wire(leader.server.port) as wire:
        leader.add()
        async with Follower(lambda: leader.info(wire.port)) as follower:
            follower.fetch()
            await follower.until_parked(0)
            wire.swallow()
            await asyncio.sleep(0.1)
            heard_s = follower.link.heard_s
            await asyncio.sleep(0.6)
            assert follower.link.heard_s == heard_s


async def test_answers_that_fail_here_do_not_end_the_link(tmp_path, caplog):
    async with Leader(tmp_path) as leader, Follower(leader.info) as follower:
        leader.add().append(b"x")
        leader.add(1).append(b"y")
        calls = []

        def fail_once(key, answer):
            calls.append(key)
            if len(calls) == 1:
                raise ZeroDivisionError("told to fail")

        follower.on_answer = fail_once
        follower.fetch()
        async with asyncio.timeout(30):
            while not calls:
                await asyncio.sleep(0.001)
        follower.fetch(1)
        await follower.until(lambda: key_of(1) in follower.data)
        assert "told to fail" in caplog.text


async def test_tls(tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    paths = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    certificate.private_key_and_cert_chain_pem.write_to_path(paths["tls_cert"])
    certificate.private_key_pem.write_to_path(paths["tls_key"])
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with Leader(tmp_path, **{name: str(path) for name, path in paths.items()}) as leader:
        leader.add().append(b"x" * 200_000)
        async with Follower(leader.info) as stranger, Follower(leader.info, tls=context) as follower:
            stranger.fetch()
            follower.fetch()
            await follower.until(lambda: follower.requests[KEY].offset == 1)
            assert follower.data[KEY] == leader.data()
            assert stranger.answers == {}


def fetch_row(**changed):
    row = {"key": [UUID, 0], "incarnation": 3, "leader_epoch": EPOCH, "offset": 0, "last_epoch": -1}
    return list(
        (row | {"durable_end": 0, "high_watermark": 0, "seen": 0, "verify": 0, "version": 0} | changed).values()
    )


def body(*rows, node_id="follower", bytes_max=1_000, wait_ms_max=0, questions=(), forget=(), hears=0):
    return [node_id, bytes_max, wait_ms_max, list(rows), list(questions), list(forget), hears]


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        [],
        body(node_id="no name"),
        body(node_id=7),
        body(bytes_max=0),
        body(wait_ms_max=-1),
        body(hears=2),
        body(hears=True),
        body()[:2],
        body(fetch_row(incarnation="3")),
        body(fetch_row(incarnation=None)),
        body(fetch_row(incarnation=-1)),
        body(fetch_row(durable_end=1)),
        body(fetch_row(version=-1)),
        body(fetch_row(key=[b"short", 0])),
        body(fetch_row()[:6]),
        body(questions=[[[UUID, 0], 3, EPOCH, "1", 0]]),
        body(forget=[[UUID, -1]]),
    ],
)
async def test_malformed_requests_are_refused_and_change_nothing(tmp_path, malformed):
    async with Leader(tmp_path) as leader, await RawPull.open(leader.server.port) as peer:
        replica = leader.add()
        await peer.hello(TOKEN)
        assert (await peer.request(FOLLOW, malformed)).error == ErrorCode.INVALID_REQUEST
        assert replica.fetches == []
        assert (await peer.request(FOLLOW, body(fetch_row()))).error == ErrorCode.NONE
        assert len(replica.fetches) == 1


async def test_who_has_no_token_follows_nothing(tmp_path):
    async with Leader(tmp_path) as leader, await RawPull.open(leader.server.port) as peer:
        replica = leader.add()
        assert (await peer.request(FOLLOW, [])).error == ErrorCode.UNAUTHENTICATED
        assert (await peer.request(FOLLOW, body(fetch_row()))).error == ErrorCode.UNAUTHENTICATED
        assert replica.fetches == []


async def test_a_client_can_not_pass_for_a_node(tmp_path):
    async with Leader(tmp_path) as leader, await RawPull.open(leader.server.port) as peer:
        replica = leader.add()
        await peer.hello(CLIENT_TOKEN)
        assert (await peer.request(FOLLOW, body(fetch_row()))).error == ErrorCode.UNAUTHENTICATED
        assert replica.fetches == []


async def test_a_follower_that_stops_reading_is_cut_off(tmp_path):
    async with Leader(tmp_path, send_timeout_s=0.3) as leader:
        replica = leader.add()
        for _ in range(100):
            replica.append(b"x" * 1_000_000)
        async with await RawPull.open(leader.server.port, receive_bytes=4_096) as peer:
            await peer.hello(TOKEN)
            peer.send(FOLLOW, body(fetch_row(), bytes_max=60_000_000))
            async with asyncio.timeout(30):
                while leader.server.connection_count:
                    await asyncio.sleep(0.01)
        assert replica.wakes == {}
