"""Consumer groups on one real node, asked over raw pull connections."""

from __future__ import annotations

import asyncio
import secrets
import signal

import pytest

from liftpy_envelope.group_routing import GROUPS_STREAM
from liftpy_envelope.groups import GroupError
from liftpy_envelope.pull import Api, PartitionKey
from support.group_kit import fill
from support.group_requests import GroupPull, assigned, offsets_of


@pytest.fixture
async def pull(lift, node):
    async with await GroupPull.open(lift, node.pull_port) as pull:
        yield pull


async def made(lift, name="orders", partitions=2):
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


async def test_a_group_lives(lift, node, pull):
    uuid = await made(lift)
    found = await pull.find("g")
    assert (found.node_id, found.port) == ("liftpy-1", node.pull_port)
    one = await pull.join("g", nonce(), ["orders"])
    assert assigned(one) == {"orders": (0, 1)}
    committed = await pull.commit("g", one, 1, [offsets_of(uuid, "orders", {0: 5, 1: 7})])
    assert (committed.error, committed.refusals) == (GroupError.NONE, ())
    keys = [PartitionKey(uuid, number) for number in range(2)]
    assert await pull.offsets("g", keys) == {keys[0]: 5, keys[1]: 7}
    two = await pull.join("g", nonce(), ["orders"])
    one = await adopt(pull, "g", one)
    two = await pull.heartbeat("g", two)
    assert {*assigned(one)["orders"], *assigned(two)["orders"]} == {0, 1}
    (lost,) = assigned(two)["orders"]
    refused = await pull.commit("g", one, 2, [offsets_of(uuid, "orders", {lost: 9})])
    assert [(row.key, row.error) for row in refused.refusals] == [(keys[lost], GroupError.NOT_ASSIGNED)]
    assert (await pull.leave("g", one)).error is GroupError.NONE
    assert assigned(await pull.heartbeat("g", two)) == {"orders": (0, 1)}
    assert (await pull.heartbeat("g", one)).error is GroupError.UNKNOWN_MEMBER


async def test_a_parked_heartbeat_brings_news_at_once(lift, node, pull):
    await made(lift)
    await pull.find("g")
    one = await pull.join("g", nonce(), ["orders"], session_timeout_ms=60_000)
    one = await adopt(pull, "g", one)
    waiting = asyncio.ensure_future(pull.heartbeat("g", one, wait_ms=15_000))
    async with await GroupPull.open(lift, node.pull_port) as other:
        await other.join("g", nonce(), ["orders"])
        async with asyncio.timeout(5):
            news = await waiting
    assert len(assigned(news)["orders"]) == 1


async def test_a_parked_heartbeat_makes_room_for_what_comes_behind_it(lift, pull):
    uuid = await made(lift)
    await pull.find("g")
    one = await adopt(pull, "g", await pull.join("g", nonce(), ["orders"], session_timeout_ms=60_000))
    waiting = asyncio.ensure_future(pull.heartbeat("g", one, wait_ms=15_000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    pull.pull.send(Api.METADATA, None)
    async with asyncio.timeout(5):
        assert (await waiting).assignment is None
        assert (await pull.pull.receive()).error == 0
    assert (await pull.commit("g", one, 1, [offsets_of(uuid, "orders", {0: 1})])).error is GroupError.NONE


@pytest.mark.parametrize("is_clean", [False, True])
async def test_a_restart_keeps_offsets_generation_and_members(lift, node, pull, is_clean):
    uuid = await made(lift)
    await pull.find("g")
    own = nonce()
    one = await adopt(pull, "g", await pull.join("g", own, ["orders"]))
    await pull.commit("g", one, 1, [offsets_of(uuid, "orders", {0: 5})])
    if is_clean:
        await asyncio.to_thread(node.stop)
        await asyncio.to_thread(node.start)
    else:
        await asyncio.to_thread(node.restart)
    async with await GroupPull.open(lift, node.pull_port) as again:
        answer = await again.heartbeat("g", one)
        assert (answer.error, answer.generation, answer.assignment) == (GroupError.NONE, one.generation, None)
        assert await again.offsets("g", [PartitionKey(uuid, 0)]) == {PartitionKey(uuid, 0): 5}
        older = await again.commit("g", one, 0, [offsets_of(uuid, "orders", {0: 4})])
        assert [row.error for row in older.refusals] == [GroupError.STALE_GENERATION]
        assert (await again.commit("g", one, 2, [offsets_of(uuid, "orders", {0: 6})])).refusals == ()
        joined = await again.join("g", own, ["orders"])
        assert joined.member_id == one.member_id


async def test_a_member_that_froze_can_not_commit(lift, node, pull):
    uuid = await made(lift, partitions=1)
    await pull.find("g")
    frozen = await pull.join("g", nonce(), ["orders"], session_timeout_ms=1_000)
    other = await pull.join("g", nonce(), ["orders"])
    async with asyncio.timeout(20):
        while not (other.assignment and assigned(other)):
            other = await pull.heartbeat("g", other, wait_ms=1_000)
    refused = await pull.commit("g", frozen, 1, [offsets_of(uuid, "orders", {0: 3})])
    assert refused.error is GroupError.UNKNOWN_MEMBER
    assert await pull.offsets("g", [PartitionKey(uuid, 0)]) == {}


async def test_a_static_member_is_fenced_by_its_successor(lift, pull):
    uuid = await made(lift)
    await pull.find("g")
    first = await pull.join("g", nonce(), ["orders"], instance_id="a")
    second = await pull.join("g", nonce(), ["orders"], instance_id="a")
    assert assigned(second) == assigned(first)
    offsets = [offsets_of(uuid, "orders", {0: 3})]
    assert (await pull.commit("g", first, 1, offsets, instance_id="a")).error is GroupError.FENCED_MEMBER
    assert (await pull.commit("g", second, 1, offsets, instance_id="a")).refusals == ()


async def test_a_node_that_stood_still_puts_nobody_out(lift, node, pull):
    await made(lift)
    await pull.find("g")
    one = await adopt(pull, "g", await pull.join("g", nonce(), ["orders"], session_timeout_ms=3_000))
    node.signal(signal.SIGSTOP)
    await asyncio.sleep(5)
    node.signal(signal.SIGCONT)
    await asyncio.sleep(0.3)
    assert (await pull.heartbeat("g", one)).error is GroupError.NONE


@pytest.mark.parametrize("group", ["x" * 10_000, "", "line\nbreak", "\x00", b"\xff\xfe", 7, None])
async def test_odd_names_of_groups_are_refused(lift, pull, group):
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


async def test_commits_without_members(lift, pull):
    uuid = await made(lift)
    await pull.find("g")
    unknown = await pull.commit("g", None, 0, [offsets_of(bytes(16), "nothing", {0: 1})])
    assert [row.error for row in unknown.refusals] == [GroupError.UNKNOWN_STREAM]
    recreated = await pull.commit("g", None, 0, [offsets_of(bytes(16), "orders", {0: 1})])
    assert [row.error for row in recreated.refusals] == [GroupError.STREAM_RECREATED]
    beyond = await pull.commit("g", None, 0, [offsets_of(uuid, "orders", {2: 1})])
    assert [row.error for row in beyond.refusals] == [GroupError.INVALID_REQUEST]
    assert (await pull.commit("g", None, 0, [offsets_of(uuid, "orders", {1: 9})])).refusals == ()
    one = await pull.join("g", nonce(), ["orders"])
    assert (await pull.commit("g", None, 0, [offsets_of(uuid, "orders", {1: 1})])).error is GroupError.GROUP_NOT_EMPTY
    assert await pull.offsets("g", [PartitionKey(uuid, 1)]) == {PartitionKey(uuid, 1): 9}
    assert (await pull.leave("g", one)).error is GroupError.NONE


async def test_nobody_is_asked_before_the_stream_of_the_groups_is_there(lift, pull):
    answer = await pull.pull.request(Api.OFFSET_FETCH, ["g", "", "", -1, []])
    assert (answer.error, answer.result[0]) == (0, int(GroupError.NOT_LEADER))
    await pull.find("g")
    assert await pull.offsets("g", []) == {}
    details = await lift.stream_info(GROUPS_STREAM)
    assert (details.config.compact, details.config.partitions, details.config.replicas) == (True, 16, 1)
