"""Consumer groups on one real node, asked over raw pull connections."""

from __future__ import annotations

import asyncio
import secrets
import signal

import pytest

import liftpy
from liftpy_envelope.group_routing import GROUPS_STREAM
from liftpy_envelope.groups import GroupError
from liftpy_envelope.pull import Api, PartitionKey
from support.cluster import NodeProcess, make_nats
from support.group_kit import fill
from support.group_requests import GroupPull, assigned, offsets_of


@pytest.fixture
async def pull(lift, node):
    async with await GroupPull.open(lift, node.pull_port) as pull:
        yield pull


async def made(lift, name, partitions=2):
    details = await lift.create_stream(name, subject=f"{name}.>", partitions=partitions)
    await fill(lift, name, 60 * partitions)  # nothing beyond the end of a partition can be committed
    return bytes.fromhex(details.uuid)


def nonce():
    return secrets.token_bytes(16)


async def adopt(pull, group, member):
    """Heartbeat until the member has adopted all that there is for it."""
    while (answer := await pull.heartbeat(group, member)).assignment is not None:
        assert answer.error is GroupError.NONE
        member = answer
    return member


async def test_a_group_lives(lift, node, pull, name):
    uuid = await made(lift, name)
    found = await pull.find(name)
    assert (found.node_id, found.port) == ("liftpy-1", node.pull_port)
    one = await pull.join(name, nonce(), [name])
    assert assigned(one) == {name: (0, 1)}
    committed = await pull.commit(name, one, 1, [offsets_of(uuid, name, {0: 5, 1: 7})])
    assert (committed.error, committed.refusals) == (GroupError.NONE, ())
    keys = [PartitionKey(uuid, number) for number in range(2)]
    assert await pull.offsets(name, keys) == {keys[0]: 5, keys[1]: 7}
    two = await pull.join(name, nonce(), [name])
    one = await adopt(pull, name, one)
    two = await pull.heartbeat(name, two)
    assert {*assigned(one)[name], *assigned(two)[name]} == {0, 1}
    (lost,) = assigned(two)[name]
    refused = await pull.commit(name, one, 2, [offsets_of(uuid, name, {lost: 9})])
    assert [(row.key, row.error) for row in refused.refusals] == [(keys[lost], GroupError.NOT_ASSIGNED)]
    assert (await pull.leave(name, one)).error is GroupError.NONE
    assert assigned(await pull.heartbeat(name, two)) == {name: (0, 1)}
    assert (await pull.heartbeat(name, one)).error is GroupError.UNKNOWN_MEMBER


async def test_a_parked_heartbeat_brings_news_at_once(lift, node, pull, name):
    await made(lift, name)
    await pull.find(name)
    one = await pull.join(name, nonce(), [name], session_timeout_ms=60_000)
    one = await adopt(pull, name, one)
    waiting = asyncio.ensure_future(pull.heartbeat(name, one, wait_ms=15_000))
    async with await GroupPull.open(lift, node.pull_port) as other:
        await other.join(name, nonce(), [name])
        async with asyncio.timeout(10):
            news = await waiting
    assert len(assigned(news)[name]) == 1


async def test_a_parked_heartbeat_makes_room_for_what_comes_behind_it(lift, pull, name):
    uuid = await made(lift, name)
    await pull.find(name)
    one = await adopt(pull, name, await pull.join(name, nonce(), [name], session_timeout_ms=60_000))
    waiting = asyncio.ensure_future(pull.heartbeat(name, one, wait_ms=15_000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    pull.pull.send(Api.METADATA, None)
    async with asyncio.timeout(10):
        assert (await waiting).assignment is None
        assert (await pull.pull.receive()).error == 0
    assert (await pull.commit(name, one, 1, [offsets_of(uuid, name, {0: 1})])).error is GroupError.NONE


@pytest.mark.parametrize("is_clean", [False, True])
async def test_a_restart_keeps_offsets_generation_and_members(lift, node, pull, is_clean, name):
    uuid = await made(lift, name)
    await pull.find(name)
    own = nonce()
    one = await adopt(pull, name, await pull.join(name, own, [name]))
    await pull.commit(name, one, 1, [offsets_of(uuid, name, {0: 5})])
    if is_clean:
        await asyncio.to_thread(node.stop)
        await asyncio.to_thread(node.start)
    else:
        await asyncio.to_thread(node.restart)
    async with await GroupPull.open(lift, node.pull_port) as again:
        answer = await again.heartbeat(name, one)
        assert (answer.error, answer.generation, answer.assignment) == (GroupError.NONE, one.generation, None)
        assert await again.offsets(name, [PartitionKey(uuid, 0)]) == {PartitionKey(uuid, 0): 5}
        older = await again.commit(name, one, 0, [offsets_of(uuid, name, {0: 4})])
        assert [row.error for row in older.refusals] == [GroupError.STALE_GENERATION]
        assert (await again.commit(name, one, 2, [offsets_of(uuid, name, {0: 6})])).refusals == ()
        joined = await again.join(name, own, [name])
        assert joined.member_id == one.member_id


async def test_a_member_that_froze_can_not_commit(lift, node, pull, name):
    uuid = await made(lift, name, partitions=1)
    await pull.find(name)
    frozen = await pull.join(name, nonce(), [name], session_timeout_ms=1_000)
    other = await pull.join(name, nonce(), [name])
    async with asyncio.timeout(40):
        while not (other.assignment and assigned(other)):
            other = await pull.heartbeat(name, other, wait_ms=1_000)
    refused = await pull.commit(name, frozen, 1, [offsets_of(uuid, name, {0: 3})])
    assert refused.error is GroupError.UNKNOWN_MEMBER
    assert await pull.offsets(name, [PartitionKey(uuid, 0)]) == {}


async def test_a_static_member_is_fenced_by_its_successor(lift, pull, name):
    uuid = await made(lift, name)
    await pull.find(name)
    first = await pull.join(name, nonce(), [name], instance_id="a")
    second = await pull.join(name, nonce(), [name], instance_id="a")
    assert assigned(second) == assigned(first)
    offsets = [offsets_of(uuid, name, {0: 3})]
    assert (await pull.commit(name, first, 1, offsets, instance_id="a")).error is GroupError.FENCED_MEMBER
    assert (await pull.commit(name, second, 1, offsets, instance_id="a")).refusals == ()


async def test_a_node_that_stood_still_puts_nobody_out(lift, node, pull, name):
    await made(lift, name)
    await pull.find(name)
    one = await adopt(pull, name, await pull.join(name, nonce(), [name], session_timeout_ms=3_000))
    node.signal(signal.SIGSTOP)
    await asyncio.sleep(4)  # longer than the session
    node.signal(signal.SIGCONT)
    await asyncio.sleep(0.3)
    assert (await pull.heartbeat(name, one)).error is GroupError.NONE


@pytest.mark.parametrize("group", ["x" * 10_000, "", "line\nbreak", "\x00", b"\xff\xfe", 7, None])
async def test_odd_names_of_groups_are_refused(pull, group):
    for api, body in (
        (Api.FIND_COORDINATOR, [[group]]),
        (Api.OFFSET_COMMIT, [group, "", "", -1, 0, []]),
        (Api.OFFSET_FETCH, [group, "", "", -1, []]),
        (Api.GROUP_JOIN, [group, bytes(16), 0, "", "", "", 10_000, 10_000, []]),
        (Api.GROUP_HEARTBEAT, [group, "", "", 0, 0]),
        (Api.GROUP_LEAVE, [group, "", ""]),
    ):
        answer = await pull.pull.request(api, body)
        assert answer.error == 1, (api, answer)
    assert (await pull.pull.request(Api.METADATA, None)).error == 0


async def test_commits_without_members(lift, pull, name):
    uuid = await made(lift, name)
    await pull.find(name)
    unknown = await pull.commit(name, None, 0, [offsets_of(bytes(16), "nothing", {0: 1})])
    assert [row.error for row in unknown.refusals] == [GroupError.UNKNOWN_STREAM]
    recreated = await pull.commit(name, None, 0, [offsets_of(bytes(16), name, {0: 1})])
    assert [row.error for row in recreated.refusals] == [GroupError.STREAM_RECREATED]
    beyond = await pull.commit(name, None, 0, [offsets_of(uuid, name, {2: 1})])
    assert [row.error for row in beyond.refusals] == [GroupError.INVALID_REQUEST]
    assert (await pull.commit(name, None, 0, [offsets_of(uuid, name, {1: 9})])).refusals == ()
    one = await pull.join(name, nonce(), [name])
    assert (await pull.commit(name, None, 0, [offsets_of(uuid, name, {1: 1})])).error is GroupError.GROUP_NOT_EMPTY
    assert await pull.offsets(name, [PartitionKey(uuid, 1)]) == {PartitionKey(uuid, 1): 9}
    assert (await pull.leave(name, one)).error is GroupError.NONE


async def test_nobody_is_asked_before_the_stream_of_the_groups_is_there(tmp_path):
    server = make_nats(tmp_path / "nats")
    node = NodeProcess(server.url, tmp_path / "node").start()
    try:
        async with liftpy.connect(server.url) as lift, await GroupPull.open(lift, node.pull_port) as pull:
            answer = await pull.pull.request(Api.OFFSET_FETCH, ["g", "", "", -1, []])
            assert (answer.error, answer.result[0]) == (0, int(GroupError.NOT_LEADER))
            await pull.find("g")
            assert await pull.offsets("g", []) == {}
            config = (await lift.stream_info(GROUPS_STREAM)).config
            assert (config.compact, config.partitions, config.replicas) == (True, 16, 1)
    finally:
        node.stop()
        server.stop()
