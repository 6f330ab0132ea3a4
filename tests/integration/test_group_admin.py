"""Consumer groups in admin requests, and the stream in which they are kept, which is liftpy's own."""

from __future__ import annotations

import secrets

import pytest

import liftpy
from liftpy_client.errors import AdminError, LiftError
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.events import EVENTS_STREAM
from liftpy_envelope.group_routing import GROUPS_STREAM
from liftpy_envelope.groups import GroupError
from support.group_kit import fill
from support.group_requests import SESSION_MS, GroupPull, offsets_of


@pytest.fixture
async def pull(lift, node):
    async with await GroupPull.open(lift, node.pull_port) as pull:
        yield pull


async def uuid_of(lift, name, partitions=4):
    details = await lift.create_stream(name, subject=f"{name}.>", partitions=partitions)
    await fill(lift, name, 240)  # nothing beyond the end of a partition can be committed
    return bytes.fromhex(details.uuid)


async def test_groups_are_listed_described_and_deleted(lift, pull):
    assert await lift.groups() == []
    with pytest.raises(AdminError, match="no group 'g'"):
        await lift.group("g")
    uuid = await uuid_of(lift, "orders")
    await pull.find("g")
    member = await pull.join("g", secrets.token_bytes(16), ["orders"], client_id="one", rack="r")
    await pull.commit("g", member, 1, [offsets_of(uuid, "orders", {0: 5, 3: 7})])
    await pull.commit("other", None, 1, [offsets_of(uuid, "orders", {1: 9})])
    listed = await lift.groups()
    assert [(each.group, each.state, each.members, each.partitions) for each in listed] == [
        ("g", "active", 1, 4),
        ("other", "empty", 0, 1),
    ]
    assert {each.coordinator for each in listed} == {"liftpy-1"}
    details = await lift.group("g")
    assert (details.state, details.generation) == ("active", member.generation)
    (shown,) = details.members
    assert (shown.member_id, shown.client, shown.rack) == (member.member_id, "one", "r")
    assert (shown.assigned, shown.session_timeout_ms) == ({"orders": (0, 1, 2, 3)}, SESSION_MS)
    assert [(row.stream, row.uuid, row.partition, row.offset) for row in details.offsets] == [
        ("orders", uuid.hex(), 0, 5),
        ("orders", uuid.hex(), 3, 7),
    ]
    with pytest.raises(AdminError, match="has members: stop them first") as refused:
        await lift.delete_group("g")
    assert refused.value.code is ErrorCode.CONFLICT
    await pull.leave("g", member)
    await lift.delete_group("g")
    assert [each.group for each in await lift.groups()] == ["other"]
    with pytest.raises(AdminError) as refused:
        await lift.delete_group("g")
    assert refused.value.code is ErrorCode.UNKNOWN_GROUP


async def test_many_groups_and_many_offsets_come_in_pages(lift, pull):
    uuid = await uuid_of(lift, "orders", 600)
    await pull.find("g")
    await pull.commit("g", None, 0, [offsets_of(uuid, "orders", dict.fromkeys(range(600), 0))])
    assert [row.partition for row in (await lift.group("g")).offsets] == list(range(600))
    names = [f"group {number:04}" for number in range(1_100)]
    for name in names:
        await pull.commit(name, None, 0, [offsets_of(uuid, "orders", {0: 0})])
    assert [each.group for each in await lift.groups()] == ["g", *names]


async def test_odd_names_are_refused(lift, pull):
    await pull.find("g")
    for name in ("", "x" * 10_000, "line\nbreak"):
        for request in (lift.group, lift.delete_group):
            with pytest.raises(AdminError, match=r"1 to 255 bytes|empty"):
                await request(name)


async def test_the_stream_of_the_groups_is_liftpys_own(lift, pull):
    with pytest.raises(LiftError, match="own"):
        await lift._cluster.request("STREAM.CREATE", {"name": "__mine", "subject": ""})
    uuid = await uuid_of(lift, "orders")
    await pull.find("g")
    await pull.commit("g", None, 0, [offsets_of(uuid, "orders", {0: 1})])
    assert [stream.name async for stream in lift.streams()] == ["orders"]
    assert {stream.name async for stream in lift.streams(internal=True)} - {EVENTS_STREAM} == {GROUPS_STREAM, "orders"}
    for forbidden in (
        lift.delete_stream(GROUPS_STREAM),
        lift.purge_stream(GROUPS_STREAM),
        lift.pause_stream(GROUPS_STREAM),
        lift.set_read_only(GROUPS_STREAM),
        lift.update_stream(GROUPS_STREAM, subject="x"),
        lift.update_stream(GROUPS_STREAM, retention_messages=1),
        lift.update_stream(GROUPS_STREAM, compact=False),
    ):
        with pytest.raises(AdminError, match="own"):
            await forbidden
    changed = await lift.update_stream(GROUPS_STREAM, min_dirty_ratio=0.3)
    assert changed.config.min_dirty_ratio == 0.3
    assert await lift.find_streams("x") == []
    with pytest.raises((liftpy.NoStreamError, liftpy.PublishTimeoutError)):
        await lift.publish(GROUPS_STREAM, b"x", timeout_s=0.5, retries=0)
    assert (await pull.fetch("g", [])).error is GroupError.NONE


async def test_offsets_of_a_stream_that_was_created_again_do_not_count(lift, pull):
    before = await uuid_of(lift, "orders")
    await pull.find("g")
    await pull.commit("g", None, 0, [offsets_of(before, "orders", {0: 5})])
    await lift.delete_stream("orders")
    await uuid_of(lift, "orders")
    refused = await pull.commit("g", None, 0, [offsets_of(before, "orders", {0: 6})])
    assert [row.error for row in refused.refusals] == [GroupError.STREAM_RECREATED]
