"""The admin service as a whole: discovery, many streams, many requests at once, and NATS permissions."""

from __future__ import annotations

import asyncio
import json

import nats
import pytest

import liftpy
from liftpy_envelope.errors import ErrorCode
from support.cluster import NodeProcess, eventually, make_nats
from support.reading import gaps, stored, values

STREAMS = 200


@pytest.fixture
def lift(shared_lift):
    return shared_lift


async def gather(lift, subject, count, timeout_s=30.0):
    """The first `count` answers to one request that many may answer."""
    inbox = lift.nats.new_inbox()
    subscription = await lift.nats.subscribe(inbox)
    await lift.nats.publish(subject, b"", reply=inbox)
    answers = [json.loads((await subscription.next_msg(timeout_s)).data) for _ in range(count)]
    await subscription.unsubscribe()
    return answers


async def test_the_service_is_discovered(lift):
    pings = await gather(lift, "$SRV.PING", 2)
    assert {(ping["name"], ping["metadata"]["node_id"]) for ping in pings} == {
        ("liftpy", "liftpy-1"),
        ("liftpy-find", "liftpy-1"),
    }
    (find,) = await gather(lift, "$SRV.INFO.liftpy-find", 1)
    subjects = {endpoint["subject"] for endpoint in find["endpoints"]}
    assert subjects == {"LIFT.API.METADATA", "LIFT.API.STREAM.FIND"}
    (info,) = await gather(lift, "$SRV.INFO.liftpy", 1)
    subjects = {endpoint["subject"] for endpoint in info["endpoints"]}
    assert {"LIFT.API.STREAM.CREATE", "LIFT.API.STREAM.PURGE", "LIFT.API.NODE.INFO"} <= subjects
    (ping,) = [ping for ping in pings if ping["name"] == "liftpy"]
    assert (info["version"], info["id"]) == (ping["version"], ping["id"])


async def test_the_service_counts_requests(lift):
    async def requests():
        (stats,) = await gather(lift, "$SRV.STATS.liftpy", 1)
        return {endpoint["subject"]: endpoint["num_requests"] for endpoint in stats["endpoints"]}

    before = (await requests())["LIFT.API.NODE.INFO"]
    for _ in range(7):
        await lift.node_info()
    assert (await requests())["LIFT.API.NODE.INFO"] == before + 7


async def test_node_info(lift, shared_node, shared_nats, name):
    await lift.create_stream(name, subject=name, partitions=3)
    info = await lift.node_info()
    assert info["node_id"] == "liftpy-1"
    assert info["nats_url"] == shared_nats.url
    assert info["nats_connected"] is True
    assert info["pull_address"] == f"127.0.0.1:{shared_node.pull_port}"
    assert info["data_dir"] == str(shared_node.data.resolve())
    assert (info["storage_full"], info["partitions_offline"], info["nats_reconnects"]) == (False, 0, 0)
    assert info["partitions"] >= 3
    assert info["now_ns"] > info["started_ns"]
    assert info["resident_bytes"] > 10_000_000
    (listed,) = await lift.nodes()
    assert (listed["node_id"], listed["pull_port"]) == ("liftpy-1", shared_node.pull_port)
    assert "pull_token" not in listed


async def test_a_node_that_is_alone_has_no_listener_for_others(lift):
    with pytest.raises(nats.errors.NoRespondersError):
        await lift.nats.request("LIFT.NODE.liftpy-1.NODE.INFO", b"{}", timeout=30)


async def test_find(lift, name):
    await lift.create_stream(f"{name}-1", subject=f"{name}.>")
    await lift.create_stream(f"{name}-2", subject=f"{name}.*.b", acks="off")
    assert await lift.find_streams(f"{name}.a.b") == [f"{name}-1", f"{name}-2"]
    assert await lift.find_streams(f"{name}.a") == [f"{name}-1"]
    assert await lift.find_streams(name) == []
    answer = json.loads(
        (await lift.nats.request("LIFT.API.STREAM.FIND", b'{"subject": "%b.a.b"}' % name.encode())).data
    )
    assert answer["streams"][1] == {"name": f"{name}-2", "acks": "off", "subject": f"{name}.*.b"}


async def test_find_of_a_pattern(lift, name):
    await lift.create_stream(f"{name}-1", subject=f"{name}.a.>")
    await lift.create_stream(f"{name}-2", subject=f"{name}.*.b")
    assert await lift.find_streams(f"{name}.>") == [f"{name}-1", f"{name}-2"]
    assert await lift.find_streams(f"{name}.*.b") == [f"{name}-1", f"{name}-2"]
    assert await lift.find_streams(f"{name}.*.c") == [f"{name}-1"]
    assert await lift.find_streams(f"{name}.c.*") == [f"{name}-2"]
    assert await lift.find_streams(f"{name}.*") == []


async def test_metadata_of_some_streams(lift, name):
    created = await lift.create_stream(name, subject=name)
    body = json.dumps({"streams": [name, "no-such-stream"]}).encode()
    answer = json.loads((await lift.nats.request("LIFT.API.METADATA", body)).data)
    assert [stream["uuid"] for stream in answer["streams"]] == [created.uuid]
    (place,) = answer["streams"][0]["partitions"]
    assert (place["partition"], place["leader"], place["leader_epoch"]) == (0, "liftpy-1", 1)
    assert (place["replicas"], place["isr"], place["observers"]) == (["liftpy-1"], ["liftpy-1"], [])


async def in_waves(requests, at_once=100):
    for start in range(0, len(requests), at_once):
        await asyncio.gather(*(request() for request in requests[start : start + at_once]))


async def test_hundreds_of_streams(lift, shared_node, name):
    """They are listed in pages, deleted and recreated in one go, and all there after a restart."""
    before = [stream.name async for stream in lift.streams()]
    names = [f"{name}-{number:03d}" for number in range(STREAMS)]
    await in_waves([lambda each=each: lift.create_stream(each, subject=f"{name}.{each}") for each in names])
    assert [stream.name async for stream in lift.streams()] == sorted(before + names)
    seen = []
    for offset in range(0, STREAMS + len(before), 7):
        request = json.dumps({"offset": offset, "limit": 7}).encode()
        page = json.loads((await lift.nats.request("LIFT.API.STREAM.LIST", request)).data)
        assert page["total"] == STREAMS + len(before)
        seen += [stream["name"] for stream in page["streams"]]
    assert seen == sorted(before + names)
    for each in names[::50]:
        await lift.publish(f"{name}.{each}", each.encode())
    await asyncio.to_thread(shared_node.restart)
    assert [stream.name async for stream in lift.streams()] == sorted(before + names)
    for each in names[::50]:
        await lift.publish(f"{name}.{each}", b"again")
        assert await values(lift, each) == [each.encode(), b"again"]
    await in_waves([lambda each=each: lift.delete_stream(each) for each in names])
    assert [stream.name async for stream in lift.streams()] == before
    await eventually(lambda: not list((shared_node.data / "streams").glob(f"{name}-*")))


async def test_a_list_that_is_too_large_for_one_answer(tmp_path):
    """NATS takes only so much as one payload: the list comes in more pages, and what can not be cut is refused."""
    server = make_nats(tmp_path / "nats", config="listen: 127.0.0.1:4222\nmax_payload: 16384\n")
    node = NodeProcess(server.url, tmp_path / "node").start()
    try:
        async with liftpy.connect(server.url) as lift:
            names = [f"s{number}" for number in range(8)]
            for each in names:
                await lift.create_stream(each, subject=each, partitions=24)
            assert [stream.name async for stream in lift.streams()] == names
            assert len((await lift.stream_info("s0")).partitions) == 24
            answer = json.loads((await lift.nats.request("LIFT.API.METADATA", b"{}", timeout=30)).data)
            assert answer["error"]["err_code"] == ErrorCode.INVALID_REQUEST
            assert "ask for fewer streams" in answer["error"]["description"]
            body = json.dumps({"streams": names[:3]}).encode()
            answer = json.loads((await lift.nats.request("LIFT.API.METADATA", body, timeout=30)).data)
            assert [stream["config"]["name"] for stream in answer["streams"]] == names[:3]
    finally:
        node.stop()
        server.stop()


async def test_a_hundred_requests_at_once(lift, name):
    """Creates of one name agree on one stream; everything is answered."""

    async def create(number):
        body = json.dumps({"name": name, "subject": f"{name}.>"}).encode()
        answer = json.loads((await lift.nats.request("LIFT.API.STREAM.CREATE", body, timeout=30)).data)
        return answer["stream"]["uuid"], answer["created"]

    async def conflict(number):
        with pytest.raises(liftpy.AdminError) as error:
            await lift.create_stream(name, subject=f"other.{number}")
        return error.value.code

    await create(0)
    uuid = (await lift.stream_info(name)).uuid
    mixed = await asyncio.gather(
        *(create(number) for number in range(25)),
        *(conflict(number) for number in range(25)),
        *(lift.stream_info(name) for _ in range(25)),
        *(lift.set_read_only(name, read_only=bool(number % 2)) for number in range(25)),
    )
    assert set(mixed[:25]) == {(uuid, False)}
    assert set(mixed[25:50]) == {ErrorCode.STREAM_EXISTS}
    assert {stream.uuid for stream in mixed[50:]} == {uuid}


async def test_the_first_of_many_creates_wins(lift, name):
    async def create(subject):
        body = json.dumps({"name": name, "subject": subject}).encode()
        return json.loads((await lift.nats.request("LIFT.API.STREAM.CREATE", body, timeout=30)).data)

    answers = await asyncio.gather(*(create(f"{name}.{number % 2}") for number in range(100)))
    winners = [answer for answer in answers if "error" not in answer]
    assert len(winners) == 50
    assert sum(answer["created"] for answer in winners) == 1
    assert len({answer["stream"]["uuid"] for answer in winners}) == 1
    await lift.publish((await lift.stream_info(name)).config.subject, b"x")
    await stored(lift, name, 1)


async def test_a_flood_of_requests_is_answered(lift):
    async def ask():
        return json.loads((await lift.nats.request("LIFT.API.NODE.INFO", b"{}", timeout=30)).data)

    answers = await asyncio.gather(*(ask() for _ in range(1_000)))
    codes = {answer["error"]["err_code"] for answer in answers if "error" in answer}
    assert codes <= {int(ErrorCode.TOO_MANY_REQUESTS)}
    assert sum("node" in answer for answer in answers) >= 200


PERMISSIONS = """
listen: 127.0.0.1:4222
authorization {
  users = [
    {user: node, password: n, permissions: {subscribe: {deny: ["secret.>", "Secret.>"]}, publish: {allow: [">"]}}}
    {user: app, password: a}
  ]
}
"""


@pytest.fixture
async def confined(tmp_path):
    """A node that may not subscribe to everything, and a client."""
    server = make_nats(tmp_path / "nats", config=PERMISSIONS)
    node = NodeProcess(server.url.replace("//", "//node:n@"), tmp_path / "node")
    try:
        node.start()
        async with liftpy.connect(server.url, user="app", password="a") as client:
            yield client, node
    finally:
        node.stop()
        server.stop()


@pytest.mark.parametrize(
    ("subject", "settings"),
    [
        ("secret.plans", {}),
        ("secret.plans", {"group": "workers"}),
        ("secret.>", {"partitions": 3}),
        ("Secret.Plans", {}),
    ],
    ids=str,
)
async def test_a_subscription_that_nats_refuses(confined, subject, settings):
    lift, node = confined
    await lift.create_stream("open", subject="open.>")
    with pytest.raises(liftpy.AdminError) as error:
        await lift.create_stream("closed", subject=subject, **settings)
    assert error.value.code is ErrorCode.SUBSCRIPTION_REFUSED
    assert subject.lower() in str(error.value).lower()
    assert [stream.name async for stream in lift.streams()] == ["open"]
    assert (await lift.publish("open.x", b"1")).offset == 0
    await eventually(lambda: not list((node.data / "streams").glob("closed.*")))
    await lift.create_stream("closed", subject="allowed.now")
    assert (await lift.publish("allowed.now", b"1")).offset == 0
    assert (await lift.node_info())["nats_reconnects"] == 0


async def test_a_refusal_is_never_missed(confined):
    """What `create` says is what NATS said: it does not return before the server has seen the subscription."""
    lift, _ = confined
    for number in range(100):
        with pytest.raises(liftpy.AdminError) as refused:
            await lift.create_stream(f"closed{number}", subject="secret.>")
        assert refused.value.code is ErrorCode.SUBSCRIPTION_REFUSED


async def test_a_move_to_a_subject_that_nats_refuses_is_no_silent_loss(confined):
    lift, _ = confined
    await lift.create_stream("s", subject="open.s")
    with pytest.raises(liftpy.AdminError) as error:
        await lift.update_stream("s", subject="secret.s")
    assert error.value.code is ErrorCode.SUBSCRIPTION_REFUSED
    assert (await lift.stream_info("s")).config.subject == "open.s"
    assert (await lift.publish("open.s", b"still stored")).offset == 0


async def test_a_stream_that_may_not_listen_after_a_restart_has_a_gap(tmp_path):
    """Its messages are lost while the node's connection stands, so the stream must say so."""
    config = PERMISSIONS.replace('"secret.>", "Secret.>"', '"other.>"')
    server = make_nats(tmp_path / "nats", config=config)
    node = NodeProcess(server.url.replace("//", "//node:n@"), tmp_path / "node").start()
    try:
        async with liftpy.connect(server.url, user="app", password="a") as lift:
            await lift.create_stream("s", subject="secret.s")
            await lift.publish("secret.s", b"1")
        node.stop()
        server.stop()
        (tmp_path / "nats" / "nats.conf").write_text(PERMISSIONS)
        server.start()
        node.start()
        async with liftpy.connect(server.url, user="app", password="a") as lift:
            await lift.nats.publish("secret.s", b"not stored")
            assert await values(lift, "s") == [b"1"]
            newest = (await gaps(lift, "s"))[-1]
            assert newest["until_ns"] is None, "messages are missing now, and the stream must say so"
            assert "ermission" in newest["cause"] or "refuse" in newest["cause"]
    finally:
        node.stop()
        server.stop()


async def test_more_subscriptions_than_nats_allows(tmp_path):
    """One stream too many is refused; those that are there go on without a gap. The marks of handovers take one."""
    server = make_nats(tmp_path / "nats", config="listen: 127.0.0.1:4222\nmax_subs: 41\n")
    node = NodeProcess(server.url, tmp_path / "node").start()
    client = await nats.connect(server.url)
    try:
        async with liftpy.connect(server.url) as lift:
            for number in range(40):
                await lift.create_stream(f"s{number}", subject=f"s{number}")
            with pytest.raises(liftpy.AdminError, match="maximum subscriptions exceeded"):
                await lift.create_stream("too-many", subject="too-many")
            assert "too-many" not in [stream.name async for stream in lift.streams()]
            assert (await lift.publish("s0", b"1")).offset == 0
            assert await gaps(lift, "s0") == []
            assert (await lift.node_info())["nats_reconnects"] == 0
    finally:
        await client.close()
        node.stop()
        server.stop()
