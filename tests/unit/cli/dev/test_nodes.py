"""What `liftpy dev --nodes` keeps between runs, and its processes, with programs that only seem to be nodes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import pytest

from liftpy.cli.child_processes import NodeProcess
from liftpy.cli.dev.layout import DevLayout
from liftpy.cli.dev.nodes import DevNodes
from liftpy_client.errors import UsageError
from liftpy_envelope.errors import LiftError

NODE = """
import json, sys, time
arguments = sys.argv[1:]
node_id = arguments[arguments.index("--node-id") + 1]
print("starting", *arguments, file=sys.stderr, flush=True)
if node_id in arguments[arguments.index("--fail") + 1].split(","):
    sys.exit("error: this one does not want to")
print(json.dumps({"node_id": node_id, "pull_port": 1, "http_port": None}), flush=True)
time.sleep(60)
"""


def nodes_of(layout, fail=""):
    flags = [["--fail", fail]] * len(layout.nodes)
    return DevNodes(layout, [sys.executable, "-c", NODE], os.environ, flags)


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ('{"error": {"kind": "DataDirError", "message": "in use"}}', ": in use (see "),
        ('{"error": "odd"}', ': {"error": "odd"} (see '),
        ("Killed", ": Killed (see "),
        ("", ":  (see "),
    ],
)
async def test_what_a_node_said_last(tmp_path, last, told):
    log = tmp_path / "log"
    log.write_text(f"before\n{last}\n" if last else "")
    process = NodeProcess("node-1", [sys.executable, "-c", "raise SystemExit(3)"], os.environ, log)
    await process.spawn()
    await process.wait_ended()
    assert told in process.obituary()


def test_nodes_are_where_they_were(tmp_path):
    first = DevLayout.open(tmp_path, 3)
    assert [place.node_id for place in first.nodes] == ["node-1", "node-2", "node-3"]
    assert len({place.cluster_port for place in first.nodes}) == 3
    for place in first.nodes:
        socket.create_server(("127.0.0.1", place.cluster_port)).close()
    key = first.key_path.read_bytes()
    assert DevLayout.open(tmp_path, 3) == first
    assert first.key_path.read_bytes() == key
    assert len(key) >= 32
    assert stat.S_IMODE(first.key_path.stat().st_mode) == 0o600


def test_a_node_is_started_again_from_anywhere(tmp_path, monkeypatch):
    """A relative directory would be another one elsewhere, and the node empty."""
    monkeypatch.chdir(tmp_path)
    layout = DevLayout.open(Path(), 2)
    flags = layout.flags(layout.nodes[0], joins=False)
    assert flags[flags.index("--data-dir") + 1] == str(tmp_path / "node-1")
    assert flags[flags.index("--cluster-key-file") + 1] == str(tmp_path / "cluster.key")


def test_a_new_cluster_has_its_founders_as_peers(tmp_path):
    layout = DevLayout.open(tmp_path, 2)
    peers = [f"{place.node_id}@127.0.0.1:{place.cluster_port}" for place in layout.nodes]
    for place in layout.nodes:
        flags = layout.flags(place, joins=False)
        assert [flags[i + 1] for i, flag in enumerate(flags) if flag == "--peer"] == peers
        assert "--join" not in flags
        assert flags[flags.index("--cluster-port") + 1] == str(place.cluster_port)


def test_nodes_that_come_later_join(tmp_path):
    before = DevLayout.open(tmp_path, 2)
    layout = DevLayout.open(tmp_path, 4)
    assert layout.nodes[:2] == before.nodes
    assert layout.founders == before.nodes
    assert layout.joining == list(layout.nodes[2:])
    for place in layout.nodes[2:]:
        assert "--join" in layout.flags(place, joins=False)
        assert "--peer" not in layout.flags(place, joins=False)


def test_a_founder_that_lost_its_data_joins_again(tmp_path):
    layout = DevLayout.open(tmp_path, 3)
    layout.data_path(layout.nodes[0]).mkdir()
    assert layout.joining == []  # the cluster was never founded, so all of them are still to do that
    layout.data_path(layout.nodes[2]).mkdir()
    assert layout.joining == [layout.nodes[1]]
    assert "--join" in layout.flags(layout.nodes[1], joins=True)
    assert "--peer" not in layout.flags(layout.nodes[1], joins=True)


def test_a_minority_is_not_started(tmp_path):
    DevLayout.open(tmp_path, 5)
    assert len(DevLayout.open(tmp_path, 3).nodes) == 3
    with pytest.raises(UsageError, match="start at least 3 of them"):
        DevLayout.open(tmp_path, 2)


@pytest.mark.parametrize("text", ["", "[]", '{"nodes": 1}', '{"nodes": [{"node_id": "a"}]}'])
def test_what_is_kept_may_be_damaged(tmp_path, text):
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(LiftError, match=r"cluster\.json does not say which nodes there are"):
        DevLayout.open(tmp_path, 3)


async def test_all_come_up_and_all_are_stopped(tmp_path):
    layout = DevLayout.open(tmp_path, 3)
    nodes = nodes_of(layout)
    await nodes.start()
    shown = nodes.shown
    assert [node["node_id"] for node in shown] == ["node-1", "node-2", "node-3"]
    assert [node["cluster_port"] for node in shown] == [place.cluster_port for place in layout.nodes]
    assert nodes.obituaries == []
    await nodes.stop()
    for node in shown:
        with pytest.raises(ProcessLookupError):
            os.kill(node["pid"], 0)
    assert all("--cluster-port" in layout.log_path(place).read_text() for place in layout.nodes)


async def test_one_that_does_not_come_up(tmp_path):
    nodes = nodes_of(DevLayout.open(tmp_path, 3), fail="node-2")
    with pytest.raises(LiftError, match=r"node-2 \(pid \d+\) ended with code 1: error: this one does not want to"):
        await nodes.start()
    await nodes.stop()
    assert len(nodes.obituaries) == 3


async def test_those_that_join_wait_for_the_others(tmp_path):
    layout = DevLayout.open(tmp_path, 2)
    for place in layout.nodes:
        layout.data_path(place).mkdir()
    nodes = nodes_of(DevLayout.open(tmp_path, 4), fail="node-1")
    with pytest.raises(LiftError, match="node-1"):
        await nodes.start()
    await nodes.stop()
    assert not (tmp_path / "node-3.log").exists()
    nodes = nodes_of(DevLayout.open(tmp_path, 4), fail="node-3")
    with pytest.raises(LiftError, match="node-3"):
        await nodes.start()
    await nodes.stop()
    assert not (tmp_path / "node-4.log").exists()


async def test_each_end_is_told_once(tmp_path):
    nodes = nodes_of(DevLayout.open(tmp_path, 3))
    await nodes.start()
    try:
        os.kill(nodes.shown[1]["pid"], signal.SIGKILL)
        async with asyncio.timeout(20):
            assert "node-2" in (told := await nodes.next_end())
            assert "was ended by signal 9" in told
            assert nodes.obituaries == [told]
            for number in (0, 2):
                os.kill(nodes.shown[number]["pid"], signal.SIGTERM)
            ends = {(await nodes.next_end())[:6] for _ in range(2)}
            assert ends == {"node-1", "node-3"}
            assert await nodes.next_end() is None
    finally:
        await nodes.stop()


def test_what_is_kept_is_readable(tmp_path):
    layout = DevLayout.open(tmp_path, 2)
    kept = json.loads((tmp_path / "cluster.json").read_text())
    assert [node["cluster_port"] for node in kept["nodes"]] == [place.cluster_port for place in layout.nodes]
