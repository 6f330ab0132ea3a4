"""A cluster of NATS servers loses a route, or a server, or shuts one down: the node hears of it, and streams say so."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter

import pytest

import liftpy
from liftpy_server.nats.knocking import nobody_listens
from support.cluster import READY_S, NatsServer, eventually
from support.inprocess import running_node
from support.nats_proxy import NatsProxy
from support.ports import free_port, free_ports
from support.raw_nats import RawNats, pub
from support.reading import gaps, values

CONFIG = """
listen: 127.0.0.1:4222
server_name: %s
client_advertise: "127.0.0.1:%d"
cluster { name: c, listen: 127.0.0.1:%d, routes: [%s] }
lame_duck_grace_period: "60s"
lame_duck_duration: "180s"
"""


class Cluster:
    """Two nats-servers, and a proxy on the route between them."""

    def __init__(self, home, more="") -> None:
        self._home, self._more = home, more
        self._route = free_ports(2)
        self.proxy = NatsProxy(self._route[0])
        self.servers: list[NatsServer] = []

    async def __aenter__(self):
        await self.proxy.__aenter__()
        for number, routes in enumerate(("", f'"{self.proxy.url}"')):
            port = free_port()
            home = self._home / f"nats{number}"
            home.mkdir()
            config = CONFIG % (f"n{number}", port, self._route[number], routes) + self._more
            (home / "nats.conf").write_text(config)
            self.servers.append(NatsServer(port, home / "nats.conf", home / "nats-server.log"))
            await asyncio.to_thread(self.servers[-1].start)
        await eventually(lambda: all("Route connection created" in server._log.read_text() for server in self.servers))
        return self

    async def __aexit__(self, *exc):
        for server in self.servers:
            await asyncio.to_thread(server.stop)
        await self.proxy.__aexit__(*exc)


@pytest.fixture
async def cluster(tmp_path):
    async with Cluster(tmp_path) as found:
        yield found


@pytest.fixture
def knocks(monkeypatch):
    """What the node found out when it knocked at servers that were lost: whether nobody is there."""
    found = []

    async def noted(places):
        found.append(await nobody_listens(places))
        return found[-1]

    monkeypatch.setattr("liftpy_server.ingest.connection.nobody_listens", noted)
    return found


async def lapse(lift, name):
    known = await gaps(lift, name)
    return known[-1] if known and known[-1]["until_ns"] is None else None


async def no_lapse(lift, name):
    return await lapse(lift, name) is None


async def arrives(raw, lift):
    """Whether the other server passes the stream's subject on already."""
    raw.write(pub(b"s", b"probe"))
    await raw.flush()
    return (await lift.stream_info("s")).messages


async def test_what_is_published_behind_a_lost_route_lies_in_a_gap(cluster, knocks, tmp_path):
    first, second = cluster.servers
    async with (
        running_node(first.url, tmp_path / "node"),
        liftpy.connect(first.url) as lift,
        await RawNats.open(second.port) as raw,
    ):
        await lift.create_stream("s", subject="s")
        made_ns = time.time_ns()
        await eventually(lambda: arrives(raw, lift), READY_S)
        before_ns = time.time_ns()
        await cluster.proxy.cut()
        raw.write(b"".join(pub(b"s", b"lost %d" % number) for number in range(600)))
        await raw.flush()
        gap = await eventually(lambda: lapse(lift, "s"))
        assert f"a route between NATS servers was lost: 127.0.0.1:{second.port}" in gap["cause"]
        await eventually(lambda: _begins_earlier(lift, made_ns))  # as far back as the stream is there
        await eventually(lambda: False in knocks, READY_S)
        assert await lapse(lift, "s"), "the other server lives, and has publishers"
        cluster.proxy.mend()
        await eventually(lambda: no_lapse(lift, "s"), READY_S)
        raw.write(pub(b"s", b"after"))
        await raw.flush()
        (gap,) = await gaps(lift, "s")
        assert gap["since_ns"] <= before_ns < gap["until_ns"] <= time.time_ns()
        await eventually(lambda: _holds(lift, b"after"))
        stored = sum(value.startswith(b"lost") for value in await values(lift, "s"))
        lasted_s = (gap["until_ns"] - gap["since_ns"]) / 1e9
        print(
            f"{600 - stored} of 600 messages behind the lost route are missing; gap of {lasted_s:.2f} s: {gap['cause']}"
        )
        assert stored == 0


async def test_a_node_that_comes_while_a_route_is_lost_has_a_gap(cluster, knocks, tmp_path):
    """Its server does not name the other; the other one does so itself when it is asked."""
    first, second = cluster.servers
    url = f"{first.url},{second.url}"
    async with running_node(url, tmp_path / "node"), liftpy.connect(url) as lift:
        await lift.create_stream("s", subject="s")
        await eventually(lambda: lift.stream_info("s"), READY_S)
    await cluster.proxy.cut()
    await eventually(lambda: all("Router connection closed" in server._log.read_text() for server in cluster.servers))
    began_ns = time.time_ns()
    async with running_node(url, tmp_path / "node") as node:
        await eventually(lambda: node.ingest._cluster.cause, READY_S)
        await eventually(lambda: False in knocks, READY_S)
        assert node.ingest._cluster.cause, "the other server lives, and has publishers"
        cluster.proxy.mend()
        await eventually(lambda: node.ingest._cluster.cause is None, READY_S)
        async with liftpy.connect(url) as lift:
            await eventually(lambda: no_lapse(lift, "s"), READY_S)
            gap = (await gaps(lift, "s"))[-1]
            assert "a route between NATS servers was lost: 127.0.0.1:" in gap["cause"]
            assert gap["since_ns"] < gap["until_ns"]  # it may begin earlier, where the server has only just noticed
            assert began_ns < gap["until_ns"]


async def test_a_node_that_comes_while_all_routes_stand_has_none(cluster, tmp_path):
    first, second = cluster.servers
    async with (
        running_node(f"{first.url},{second.url}", tmp_path / "node") as node,
        liftpy.connect(first.url) as lift,
    ):
        await lift.create_stream("s", subject="s")
        await eventually(lambda: all(task.done() for name, task in node.ingest._tasks.items() if name != "retrying"))
        assert "checking servers" in node.ingest._tasks
        assert await gaps(lift, "s") == []


async def _begins_earlier(lift, since_ns):
    gap = await lapse(lift, "s")
    return gap is not None and gap["since_ns"] < since_ns


async def _holds(lift, value):
    return (await values(lift, "s"))[-1] == value


async def _holds_all(lift, expected):
    return expected.issubset(await values(lift, "s"))


async def test_a_server_that_ends_leaves_a_short_gap(cluster, tmp_path):
    """What it had taken and not passed on is gone; nobody publishes there any more."""
    first, second = cluster.servers
    async with (
        running_node(first.url, tmp_path / "node"),
        liftpy.connect(first.url) as lift,
        await RawNats.open(second.port) as raw,
    ):
        await lift.create_stream("s", subject="s")
        await eventually(lambda: arrives(raw, lift), READY_S)
        before_ns = time.time_ns()
        await asyncio.to_thread(second.kill)
        await eventually(lambda: gaps(lift, "s"))
        await eventually(lambda: no_lapse(lift, "s"))
        (gap,) = await gaps(lift, "s")
        assert before_ns - 10 * 10**9 < gap["since_ns"] <= before_ns < gap["until_ns"]


async def test_a_server_that_stands_still_is_left_and_what_it_takes_as_it_wakes_is_stored_or_lies_in_a_gap(
    cluster, tmp_path
):
    first, second = cluster.servers
    async with (
        running_node(first.url, tmp_path / "node") as node,
        liftpy.connect(second.url) as lift,
        await RawNats.open(first.port) as raw,
    ):
        await lift.create_stream("s", subject="s")
        await eventually(lambda: arrives(raw, lift), READY_S)
        known = node.ingest.hearing
        sent = [b"%d" % number for number in range(2_000)]
        os.kill(first._process.pid, signal.SIGSTOP)
        try:
            raw.write(b"".join(pub(b"s", value) for value in sent[:1_000]))
            await eventually(lambda: node.ingest.hearing not in {known, None}, READY_S)
            raw.write(b"".join(pub(b"s", value) for value in sent[1_000:]))
            (partition,) = (each for each in node.streams.by_key.values() if each.stream.name == "s")
            cause = f"a NATS server stood still when this node subscribed: 127.0.0.1:{first.port}"
            await eventually(lambda: partition.gaps.cause == cause)  # requests are answered at the first server still
        finally:
            woke_ns = time.time_ns()
            os.kill(first._process.pid, signal.SIGCONT)
        await raw.flush()
        flushed_ns = time.time_ns()
        await eventually(lambda: no_lapse(lift, "s"), READY_S)
        raw.write(pub(b"s", b"after"))
        await raw.flush()
        await eventually(lambda: _holds(lift, b"after"))
        stored = await values(lift, "s")
        missing = set(sent).difference(stored)
        spans = [(gap["since_ns"], gap["until_ns"], gap["cause"]) for gap in await gaps(lift, "s")]
        print(f"{len(missing)} of {len(sent)} are missing; gaps {spans}")
        assert any(since_ns < woke_ns < flushed_ns < until_ns for since_ns, until_ns, _ in spans)


async def test_a_server_that_shuts_down_slowly_is_left_without_a_loss(cluster, tmp_path, caplog):
    """Publishers at both servers go on all the time; each message is stored once, and those of each in their order."""
    assert await left_slowly(cluster, tmp_path) == []
    assert "may be stored twice" not in caplog.text


NO_MARKS = """
authorization { users = [ {user: u, password: p, permissions: { subscribe: { deny: ["LIFT.NODE.MARK.>"] } } } ] }
no_auth_user: u
"""


@pytest.mark.parametrize("trouble", ["marks are refused", "too much is published"])
async def test_where_marks_do_not_help_messages_may_come_twice(tmp_path, caplog, monkeypatch, trouble):
    if trouble == "too much is published":
        monkeypatch.setattr("liftpy_server.handover.server_change.HELD_BYTES_MAX", 1_000)
    async with Cluster(tmp_path, NO_MARKS if trouble == "marks are refused" else "") as cluster:
        assert await left_slowly(cluster, tmp_path)
    why = {"marks are refused": "marks did not come", "too much is published": "too much is published meanwhile"}
    assert f"may be stored twice: {why[trouble]}" in caplog.text


async def left_slowly(cluster, home):
    """Publishers at both go on, and nothing is missing. Returns the numbers that are stored twice."""
    first, second = cluster.servers
    async with (
        running_node(first.url, home / "node") as node,
        liftpy.connect(second.url) as lift,
        await RawNats.open(first.port) as at_first,
        await RawNats.open(second.port) as at_second,
    ):
        await lift.create_stream("s", subject="s")
        await eventually(lambda: arrives(at_second, lift), READY_S)
        publishing = {b"a": Numbered(at_first, b"a"), b"b": Numbered(at_second, b"b")}
        await eventually(lambda: all(each.published > 100 for each in publishing.values()))
        os.kill(first.pid, signal.SIGUSR2)
        await eventually(lambda: node.ingest.reconnects == 1)
        goals = {name: each.published + 100 for name, each in publishing.items()}
        await eventually(lambda: all(each.published > goals[name] for name, each in publishing.items()))
        for each in publishing.values():
            await each.stop()
        ends = {name + b"end" for name in publishing}  # the route may bring what was published earlier later
        await eventually(lambda: _holds_all(lift, ends))
        stored = [value for value in await values(lift, "s") if value not in ends]
        assert await gaps(lift, "s") == []
        again = []
        for name, each in publishing.items():
            mine = [int(value[1:]) for value in stored if value.startswith(name)]
            first_times = list(dict.fromkeys(mine))
            assert first_times == list(range(each.published))
            again += list((Counter(mine) - Counter(first_times)).elements())
        return again


class Numbered:
    """Publishes numbered messages on a connection until it is stopped."""

    def __init__(self, raw, name) -> None:
        self.published = 0
        self._raw, self._name = raw, name
        self._task = asyncio.ensure_future(self._run())

    async def _run(self):
        while True:
            for _ in range(10):
                self._raw.write(pub(b"s", self._name + b"%d" % self.published))
                self.published += 1
            await self._raw.flush()

    async def stop(self):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._raw.write(pub(b"s", self._name + b"end"))
        await self._raw.flush()
