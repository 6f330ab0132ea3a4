"""NATS is absent, goes away, comes back or refuses the node: the node goes on, and tells what it may have missed."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

import liftpy
from liftpy_envelope.errors import ErrorCode
from support.acked import assert_stored_once, start_publishers
from support.cluster import READY_S, NatsServer, NodeProcess, eventually, make_nats
from support.inprocess import running_node
from support.nats_proxy import NatsProxy
from support.ports import free_port, free_ports
from support.raw_nats import RawNats, pub
from support.reading import gaps, http, metric, stored, values

TICK_S = 0.05


async def logged(node, text, timeout_s=40.0):
    await eventually(lambda: text in node.log(), timeout_s, f"not in the log: {text}\n{node.log()}")


async def closed_gaps(lift, name, count):
    """The stream's gaps, when there are so many and all are over."""

    async def found():
        try:
            known = await gaps(lift, name)
        except liftpy.NodeUnavailableError:  # its admin connection comes back when it comes back
            return None
        return known if len(known) == count and all(gap["until_ns"] for gap in known) else None

    return await eventually(found, 40)


async def test_time_limits_hold_while_the_server_stands_still(nats_server, tmp_path):
    """What does not fit into the socket any more is not waited for longer than the caller said."""
    value, clock = bytes(900_000), time.monotonic

    async def publish(lift, number):
        begun_s, limit_s = clock(), 60.0 if number % 2 else 2.0
        try:
            async with asyncio.timeout(limit_s):
                await lift.publish("s", value, timeout_s=1.0 if number % 2 else 60.0, retries=0)
        except (TimeoutError, liftpy.DisconnectedError):
            return clock() - begun_s
        raise AssertionError("a server that stands still has acknowledged it")

    async with running_node(nats_server.url, tmp_path / "node"), liftpy.connect(nats_server.url) as lift:
        await lift.create_stream("s", subject="s")
        await lift.publish("s", b"first")
        async with liftpy.connect(nats_server.url) as another:
            await another.publish("s", b"second")
            os.kill(nats_server._process.pid, signal.SIGSTOP)
            try:
                tasks = [asyncio.create_task(publish(lift, number)) for number in range(40)]
                ended, waiting = await asyncio.wait(tasks, timeout=12.0)
                begun_s = clock()
                await another.close()
                closed_s = clock() - begun_s
            finally:
                os.kill(nats_server._process.pid, signal.SIGCONT)
            for task in waiting:
                task.cancel()
            assert not waiting, f"{len(waiting)} of 40 publishes waited for the server"
            took_s = sorted(task.result() for task in ended)
            print(
                f"limits of 1 and 2 s: 40 publishes took {took_s[0]:.1f} to {took_s[-1]:.1f} s; close {closed_s:.1f} s"
            )
            assert took_s[-1] < 8.0
            assert closed_s < 30.0
        assert (await lift.publish("s", b"last", timeout_s=20.0)).offset >= 2


async def test_a_server_that_is_not_there_is_waited_for(nats_server, tmp_path):
    nats_server.stop()
    node = NodeProcess(nats_server.url, tmp_path / "node")
    node.spawn()
    try:
        await logged(node, f"connecting to NATS at {nats_server.url}")
        await logged(node, "WARNING NATS connection liftpy liftpy-1 acks to ")
        assert node.is_running
        nats_server.start()
        await asyncio.to_thread(node.wait_ready)
        async with liftpy.connect(nats_server.url) as lift:
            await lift.create_stream("s", subject="s")
            assert (await lift.publish("s", b"x")).offset == 0
            assert await gaps(lift, "s") == []
        assert "Traceback" not in node.log()
    finally:
        node.stop()


async def test_a_node_that_waits_can_be_stopped(nats_server, lift, node):
    """And the time in which it waited in vain is part of the gap."""
    await lift.create_stream("s", subject="s")
    node.stop()
    stopped_ns = time.time_ns()
    nats_server.stop()
    node.spawn()
    await logged(node, "WARNING NATS connection liftpy liftpy-1 acks to ")
    assert node.stop() == 0
    assert "Traceback" not in node.log()
    nats_server.start()
    await asyncio.to_thread(node.start)
    await eventually(lambda: lift.nats.is_connected)
    (gap,) = await closed_gaps(lift, "s", 1)
    assert gap["cause"] == "the node was stopped"
    assert gap["since_ns"] <= stopped_ns


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_server_that_goes_away_and_comes_back(nats_server, tmp_path, end):
    node = NodeProcess(nats_server.url, tmp_path / "node", "--http-port", "0").start()
    try:
        async with liftpy.connect(nats_server.url) as lift:
            for name in ("one", "many"):
                await lift.create_stream(name, subject=f"{name}.>", partitions=1 if name == "one" else 3)
            await lift.publish("one.x", b"1")
            before_ns = time.time_ns()
            getattr(nats_server, end)()
            port = node.ready["http_port"]

            async def unhealthy():
                status, text = await http(port, "/readyz")
                return status == 503 and "not connected to NATS" in text

            await eventually(unhealthy)
            assert await metric(port, "liftpy_stream_gaps_total", stream="one") == 1
            nats_server.start()
            await eventually(lambda: lift.nats.is_connected)
            for name, partitions in (("one", 1), ("many", 3)):
                known = await closed_gaps(lift, name, partitions)
                assert {gap["partition"] for gap in known} == set(range(partitions))
                for gap in known:
                    assert gap["cause"] == "the NATS connection was lost"
                    assert gap["since_ns"] - 10**9 <= before_ns < gap["until_ns"] <= time.time_ns()
            assert (await lift.publish("one.x", b"2")).offset == 1
            assert await values(lift, "one") == [b"1", b"2"]
            assert (await lift.node_info())["nats_reconnects"] == 1
        assert node.log().count("streams one, many, 4 partitions: messages may be missing") == 1
        assert "Traceback" not in node.log()
    finally:
        node.stop()


async def test_acked_messages_outlive_a_server_that_comes_and_goes(nats_server, lift, node):
    await lift.create_stream("s", subject="s")
    publishers = start_publishers(nats_server.url, ["s"], 2)
    try:
        for _ in range(2):
            goal = sum(len(one.acked) for one in publishers) + 500
            await eventually(lambda goal=goal: sum(len(one.acked) for one in publishers) >= goal, 40)
            nats_server.kill()
            nats_server.start()
        for publisher in publishers:
            await publisher.finish()
    finally:
        for publisher in publishers:
            await publisher.cancel()
    await eventually(lambda: _answered(lift))
    await assert_stored_once(lift, "s", publishers)


USERS = 'listen: 127.0.0.1:4222\nauthorization { users = [ {user: node, password: "%s"}, {user: app, password: a} ] }\n'


async def test_wrong_credentials_are_told_and_not_shown(tmp_path):
    server = make_nats(tmp_path / "nats", config=USERS % "right")
    node = NodeProcess(server.url.replace("//", "//node:hush-hush@"), tmp_path / "node")
    try:
        node.spawn()
        assert await asyncio.to_thread(node.process.wait, 60) == 1
        last = node.log().strip().splitlines()[-1]
        assert f"{server.url} refuses our credentials" in last
        assert "Traceback" not in node.log()
        assert "hush-hush" not in node.log()
    finally:
        node.kill()
        server.stop()


async def test_credentials_that_are_refused_for_a_while(tmp_path):
    """The node is there again when it may be, and says since when it was not."""
    server = make_nats(tmp_path / "nats", config=USERS % "n")
    conf = tmp_path / "nats" / "nats.conf"
    node = NodeProcess(server.url.replace("//", "//node:n@"), tmp_path / "node").start()
    try:
        async with liftpy.connect(server.url, user="app", password="a", timeout_s=5.0) as lift:
            await lift.create_stream("s", subject="s")
            await lift.publish("s", b"1")
            before_ns = time.time_ns()
            server.stop()
            conf.write_text(USERS % "other")
            server.start()
            await logged(node, "uthorization")
            assert node.is_running
            server.stop()
            conf.write_text(USERS % "n")
            server.start()
            await eventually(lambda: lift.nats.is_connected)
            (gap,) = await closed_gaps(lift, "s", 1)
            assert gap["since_ns"] - 10**9 <= before_ns < gap["until_ns"]
            assert (await lift.publish("s", b"2")).offset == 1
        assert "Traceback" not in node.log()
    finally:
        node.stop()
        server.stop()


async def test_a_stream_created_while_the_ingest_is_cut_off(nats_server, tmp_path):
    """It is not said to be listening before it is; then it is, and the time between is a gap."""
    async with NatsProxy(nats_server.port) as proxy, liftpy.connect(nats_server.url) as lift:
        node = NodeProcess(proxy.url, tmp_path / "node")
        try:
            await asyncio.to_thread(node.start)
            await lift.create_stream("old", subject="old")
            await proxy.cut("ingest")
            await eventually(lambda: _is_down(lift))
            creating = asyncio.ensure_future(lift.create_stream("new", subject="new.>", partitions=2))
            await eventually(lambda: list((node.data / "streams").glob("new.*")))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(creating), 10 * TICK_S)
            await lift.nats.publish("new.x", b"lost")
            assert await eventually(lambda: _lapse(lift, "new")), "it says that it does not listen"
            proxy.mend()
            await asyncio.wait_for(creating, 40)
            await lift.publish("new.x", b"stored")
            assert await values(lift, "new") == [b"stored"]
            for gap in await closed_gaps(lift, "new", 2):
                assert "no connection to NATS" in gap["cause"]
            (gap,) = await closed_gaps(lift, "old", 1)
            assert gap["cause"] == "the NATS connection was lost"
        finally:
            await asyncio.to_thread(node.stop)


async def _is_down(lift):
    return not (await lift.node_info())["nats_connected"]


async def test_changes_while_the_ingest_is_cut_off(nats_server, tmp_path):
    """Streams that are moved and deleted meanwhile are where they should be afterwards, and get every message once."""
    async with NatsProxy(nats_server.port) as proxy, liftpy.connect(nats_server.url) as lift:
        node = NodeProcess(proxy.url, tmp_path / "node")
        try:
            await asyncio.to_thread(node.start)
            for name in ("kept", "moved", "deleted"):
                await lift.create_stream(name, subject=name)
            await proxy.cut("ingest")
            await eventually(lambda: _is_down(lift))
            await lift.update_stream("moved", subject="elsewhere")
            await lift.delete_stream("deleted")
            proxy.mend()
            for name in ("kept", "moved"):
                await closed_gaps(lift, name, 1)
            for subject in ("kept", "moved", "elsewhere", "deleted"):
                await lift.nats.publish(subject, subject.encode())
            await lift.publish("kept", b"last")
            await lift.publish("elsewhere", b"last")
            assert await values(lift, "kept") == [b"kept", b"last"]
            assert await values(lift, "moved") == [b"elsewhere", b"last"]
            assert (await lift.node_info())["unbound_messages"] == 0
        finally:
            await asyncio.to_thread(node.stop)


DENY = (
    "listen: 127.0.0.1:4222\nauthorization { users = [ {user: node, password: n, permissions: "
    '{subscribe: {deny: "%s"}}}, {user: app, password: a} ] }\n'
)


async def test_permissions_that_change_while_the_node_runs(tmp_path, monkeypatch):
    """The server ends the subscription and keeps the connection: the stream has a gap until it may listen again."""
    monkeypatch.setattr("liftpy_server.ingest.connection.SUBSCRIBE_RETRY_S", TICK_S)
    server = make_nats(tmp_path / "nats", config=DENY % "unused")
    conf = tmp_path / "nats" / "nats.conf"
    try:
        async with (
            running_node(server.url.replace("//", "//node:n@"), tmp_path / "node"),
            liftpy.connect(server.url, user="app", password="a") as lift,
        ):
            await lift.create_stream("s", subject="secret.s")
            await lift.create_stream("other", subject="other")
            assert (await lift.publish("secret.s", b"1")).offset == 0
            conf.write_text(DENY % "secret.>")
            os.kill(server.pid, signal.SIGHUP)
            gap = await eventually(lambda: _lapse(lift, "s"))
            assert gap["until_ns"] is None
            conf.write_text(DENY % "unused")
            os.kill(server.pid, signal.SIGHUP)
            await eventually(lambda: _no_lapse(lift, "s"))
            assert (await lift.publish("secret.s", b"2")).offset == 1
            assert await values(lift, "s") == [b"1", b"2"]
            assert (await lift.publish("other", b"1")).offset == 0
    finally:
        server.stop()


async def _lapse(lift, name):
    known = await gaps(lift, name)
    return known[-1] if known and known[-1]["until_ns"] is None else None


async def _no_lapse(lift, name):
    return await _lapse(lift, name) is None


CLUSTER = """
listen: 127.0.0.1:4222
server_name: %s
max_pending: %d
write_deadline: "1s"
cluster { name: c, listen: 127.0.0.1:%d, routes: ["nats://127.0.0.1:%d", "nats://127.0.0.1:%d"], no_advertise: true }
"""


@pytest.fixture
def pair(tmp_path):
    """Two nats-servers that are a cluster; what they hold for a client that does not read is bounded."""
    routes = free_ports(2)
    servers = []
    for number in (0, 1):
        home = tmp_path / f"nats{number}"
        home.mkdir()
        (home / "nats.conf").write_text(CLUSTER % (f"n{number}", 4 << 20, routes[number], *routes))
        servers.append(NatsServer(free_port(), home / "nats.conf", home / "nats-server.log"))
        servers[-1].start()
    for server in servers:
        deadline = time.monotonic() + READY_S
        while "Route connection created" not in server._log.read_text():
            assert time.monotonic() < deadline, "the servers do not find each other"
            time.sleep(TICK_S)
    yield servers
    for server in servers:
        server.stop()


async def test_the_node_moves_on_to_the_other_server(pair, tmp_path):
    """The server that the node is connected to dies; publishers are at the other one all the time."""
    first, second = pair
    node = NodeProcess(f"{first.url},{second.url}", tmp_path / "node").start()
    publishers = []
    try:
        async with liftpy.connect(second.url) as lift:
            await lift.create_stream("s", subject="s")
            publishers = start_publishers(second.url, ["s"], 2)
            await eventually(lambda: sum(len(one.acked) for one in publishers) >= 500, 40)
            first.kill()
            goal = sum(len(one.acked) for one in publishers) + 2_000
            await eventually(lambda: sum(len(one.acked) for one in publishers) >= goal, 40)
            for publisher in publishers:
                await publisher.finish()
            info = await eventually(lambda: _answered(lift))
            await assert_stored_once(lift, "s", publishers)
            assert info["nats_connected"]
            known = await gaps(lift, "s")
            assert len(known) == info["nats_reconnects"]  # none when the ingest was at the second server already
            for gap in known:
                assert gap["cause"] == "the NATS connection was lost"
                assert gap["until_ns"] is not None
        assert "Traceback" not in node.log()
    finally:
        for publisher in publishers:
            await publisher.cancel()
        node.stop()


async def _answered(lift):
    try:
        return await lift.node_info()
    except liftpy.NodeUnavailableError:
        return None


async def test_a_node_that_is_dropped_as_a_slow_consumer_says_so(pair, tmp_path):
    """Messages of a publisher behind a route are stored, or the stream has a gap over the time of their loss."""
    first, second = pair
    node = NodeProcess(first.url, tmp_path / "node").start()
    try:
        async with liftpy.connect(first.url) as lift, await RawNats.open(second.port) as raw:
            await lift.create_stream("s", subject="s")
            await eventually(lambda: _arrives(raw, lift))
            before = (await lift.stream_info("s")).messages
            node.signal(signal.SIGSTOP)
            stopped_ns = time.time_ns()
            payload = bytes(1_000)
            for _ in range(40_000):  # ten times of what the server holds for the node
                raw.write(pub(b"s", payload))
            await raw.flush(30)
            await eventually(lambda: "Slow Consumer" in first._log.read_text(), 40)
            await eventually(lambda: time.time_ns() > stopped_ns + 3 * 10**9)  # it is behind, and not a moment late
            node.signal(signal.SIGCONT)
            (gap,) = await closed_gaps(lift, "s", 1)
            assert gap["since_ns"] - 10**9 <= stopped_ns < gap["until_ns"]
            assert "as it does with slow consumers" in gap["cause"]
            assert (await lift.publish("s", b"after")).offset >= before
            stored = (await lift.stream_info("s")).messages - before - 1
            lasted_s = (gap["until_ns"] - gap["since_ns"]) / 1e9
            print(f"{40_000 - stored:,} of 40,000 messages are missing; gap of {lasted_s:.2f} s: {gap['cause']}")
            assert 0 <= stored < 40_000 - 1
    finally:
        node.signal(signal.SIGCONT)
        node.stop()


async def _arrives(raw, lift):
    """Whether the route passes the stream's subject on already."""
    raw.write(pub(b"s", b"probe"))
    await raw.flush()
    return (await lift.stream_info("s")).messages


async def test_a_publisher_behind_a_route_that_goes_flat_out_loses_nothing(pair, tmp_path):
    """The node keeps up; if a loaded machine made it fall behind, the stream says so."""
    first, second = pair
    node = NodeProcess(first.url, tmp_path / "node").start()
    try:
        async with liftpy.connect(first.url) as lift, await RawNats.open(second.port) as raw:
            await lift.create_stream("s", subject="s")
            await eventually(lambda: _arrives(raw, lift))
            for number in range(100_000):
                raw.write(pub(b"s", b"%d" % number))
            await raw.flush(30)
            known = await gaps(lift, "s")
            if not known:
                await eventually(lambda: _holds(lift, b"99999"), 40)
                numbers = [int(value) for value in await values(lift, "s") if value != b"probe"]
            if not known and not (known := await gaps(lift, "s")):
                assert numbers == list(range(100_000))
            assert all(gap["until_ns"] is None or gap["until_ns"] >= gap["since_ns"] for gap in known)
    finally:
        node.stop()


async def _holds(lift, value):
    """Whether the newest message is the one that was published last, or the stream says that it may miss some."""
    newest = [message.value async for message in lift.consume("s", start="latest", stop="latest")]
    return newest == [value] or bool(await gaps(lift, "s"))


async def test_a_refused_subject_is_named_to_whoever_asks(tmp_path):
    """Refusals of one stream do not show in another, and many of them leave the connection alone."""
    server = make_nats(tmp_path / "nats", config=DENY % "secret.>")
    node = NodeProcess(server.url.replace("//", "//node:n@"), tmp_path / "node").start()
    try:
        async with liftpy.connect(server.url, user="app", password="a") as lift:
            await lift.create_stream("good", subject="good")

            async def refused(number):
                with pytest.raises(liftpy.AdminError) as error:
                    await lift.create_stream(f"bad{number}", subject=f"secret.{number}")
                assert error.value.code is ErrorCode.SUBSCRIPTION_REFUSED
                assert f"secret.{number}:" in str(error.value)

            await asyncio.gather(*(refused(number) for number in range(20)))
            assert [stream.name async for stream in lift.streams()] == ["good"]
            assert (await lift.publish("good", b"x")).offset == 0
            await stored(lift, "good", 1)
            assert await gaps(lift, "good") == []
            assert (await lift.node_info())["nats_reconnects"] == 0
    finally:
        node.stop()
        server.stop()
