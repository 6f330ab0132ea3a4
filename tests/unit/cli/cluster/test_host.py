"""Several nodes on one host: what each is told, how one that ends is started again, and what the host tells of them."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from liftpy.cli.cluster import host as module
from liftpy.cli.cluster.host import Host, HostNode, node_variables
from liftpy.cli.cluster.host_pages import host_pages, merged_metrics
from liftpy_envelope.errors import ConfigError
from liftpy_server.settings.cluster import ClusterConfig
from liftpy_server.settings.config import NodeConfig, PullConfig, load_config

PEERS = ("a@10.0.0.1:4280", "b@10.0.0.2:4280", "c@10.0.0.3:4280")


def settings(tmp_path, node_id="a", peers=PEERS, **cluster):
    given = {"host": "10.0.0.1", "port": 4280, "key_file": str(tmp_path / "key"), "peers": peers} | cluster
    return NodeConfig(node_id=node_id, data_dir=str(tmp_path / "data"), cluster=ClusterConfig(**given))


def nodes_of(host, count):
    """The settings of the nodes, as these read them."""
    return [load_config(None, variables, {"cluster.key_file": "key"}) for variables in node_variables(host, count)]


def test_ids_ports_directories_and_rack_are_derived(tmp_path):
    nodes = nodes_of(settings(tmp_path), 3)
    assert [node.node_id for node in nodes] == ["a", "a-2", "a-3"]
    assert [node.data_dir for node in nodes] == [str(tmp_path / "data" / node.node_id) for node in nodes]
    assert [node.pull.port for node in nodes] == [4270, 4271, 4272]
    assert [node.cluster.port for node in nodes] == [4280, 4281, 4282]
    assert {(node.http.host, node.http.port) for node in nodes} == {("127.0.0.1", 0)}
    assert {node.rack for node in nodes} == {"a"}
    assert nodes_of(replace(settings(tmp_path), rack="room 1"), 2)[1].rack == "room 1"


@pytest.mark.parametrize("hosts", [3, 4, 5])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_no_host_has_a_majority_of_the_votes(tmp_path, hosts, count):
    peers = tuple(f"h{number}@10.0.0.{number}:4280" for number in range(hosts))
    founders = {}
    for number in range(hosts):
        for node in nodes_of(settings(tmp_path, f"h{number}", peers), count):
            if node.cluster.join:
                assert node.cluster.peers == ()
            else:
                founders[node.node_id] = (number, node.cluster.peers)
    assert len(founders) == 5
    assert len({told for _, told in founders.values()}) == 1  # all are told the same
    votes = [number for number, _ in founders.values()]
    assert max(votes.count(number) for number in range(hosts)) * 2 < len(votes)


def test_a_host_alone_founds_a_cluster_and_a_host_that_joins_founds_none(tmp_path):
    alone = nodes_of(settings(tmp_path, peers=()), 6)
    assert [node.cluster.join for node in alone] == [False] * 5 + [True]
    joining = nodes_of(settings(tmp_path, peers=(), join=True), 2)
    assert all(node.cluster.join and not node.cluster.peers for node in joining)


def test_settings_that_do_not_do_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cluster\.port: the nodes of a host are nodes of a cluster"):
        node_variables(NodeConfig(), 2)
    with pytest.raises(ConfigError, match="too near: 11 processes"):
        node_variables(settings(tmp_path), 11)
    with pytest.raises(ConfigError, match=r"pull\.port: 65535 leaves no room"):
        node_variables(replace(settings(tmp_path), pull=PullConfig(port=65_535)), 2)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "liftpy.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"data_dir: .* holds the data of a single node"):
        node_variables(settings(tmp_path), 2)


def script(text):
    return [sys.executable, "-c", text]


async def test_a_node_that_ends_is_started_again_ever_more_slowly(monkeypatch, caplog, capfd):
    caplog.set_level("INFO")
    monkeypatch.setattr(module, "_PAUSE_S", 0.01)
    ready = json.dumps({"http_port": 1})
    node = HostNode("a", script(f"import sys; print('{ready}', flush=True); sys.exit('gone')"), {})
    host = Host("a", [node])
    host.start()
    async with asyncio.timeout(60):
        await host.wait_up()
        while node.restarts < 3:
            await asyncio.sleep(0.01)
    await host.stop()
    pauses = [record.args[1] for record in caplog.records if "started again in" in record.getMessage()]
    assert pauses[:3] == [0.01, 0.02, 0.04]
    assert "a (pid" in caplog.text
    assert "ended with code 1" in caplog.text
    assert caplog.text.count("host a: 1 of 1 nodes are up") >= len(pauses)
    assert "a: gone" in capfd.readouterr().err
    assert node.pid is None


async def test_a_host_that_stops_ends_its_nodes_and_starts_none_again():
    ready = json.dumps({"http_port": 1})
    nodes = [HostNode(name, script(f"import time; print('{ready}', flush=True); time.sleep(600)"), {}) for name in "ab"]
    host = Host("a", nodes)
    host.start()
    async with asyncio.timeout(60):
        await host.wait_up()
        assert host.status == "2 of 2 nodes are up"
        await host.stop()
    assert host.status == "0 of 2 nodes are up, without a, b"
    assert [node.restarts for node in nodes] == [0, 0]


async def test_what_cannot_be_started_is_said(caplog, monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_S", 0.01)
    host = Host("a", [HostNode("a", ["/nowhere/liftpy"], {})])
    host.start()
    async with asyncio.timeout(60):
        while "a cannot be started" not in caplog.text:
            await asyncio.sleep(0.01)
    await host.stop()


def test_metrics_of_all_nodes_are_one_text():
    text = (
        "# HELP liftpy_streams streams\n# TYPE liftpy_streams gauge\nliftpy_streams 2.0\n"
        '# HELP liftpy_acks_total acks\n# TYPE liftpy_acks_total counter\nliftpy_acks_total{stream="x"} 5.0\n'
        "# HELP liftpy_ack_seconds time\n# TYPE liftpy_ack_seconds histogram\n"
        'liftpy_ack_seconds_bucket{le="+Inf"} 5.0\nliftpy_ack_seconds_count 5.0\nliftpy_ack_seconds_sum 0.5\n'
    )
    host = Host("a", [HostNode("a", [], {}), HostNode("a-2", [], {})])
    merged = merged_metrics(host, {"a": text, "a-2": text}).decode()
    assert merged.count("# TYPE liftpy_streams gauge") == 1
    families = {family.name: family for family in text_string_to_metric_families(merged)}
    assert {sample.labels["host_node"]: sample.value for sample in families["liftpy_streams"].samples} == {
        "a": 2.0,
        "a-2": 2.0,
    }
    assert 'liftpy_acks_total{host_node="a-2",stream="x"} 5.0' in merged
    assert len(families["liftpy_ack_seconds"].samples) == 6
    assert [sample.value for sample in families["liftpy_host_node_up"].samples] == [0.0, 0.0]


async def test_nodes_that_are_not_up_are_problems_of_the_host():
    page = host_pages(Host("a", [HostNode("a", [], {})]))
    alive, ready = await page("/healthz"), await page("/readyz")
    assert (alive.is_ok, ready.is_ok) == (True, False)
    assert json.loads(ready.body)["problems"] == ["a: it is not up"]
    assert json.loads((await page("/varz")).body)["status"] == "0 of 1 nodes are up, without a"
    assert await page("/") is None
