"""The flags of `liftpy server` and `liftpy dev`, as settings."""

from __future__ import annotations

import pytest

from liftpy.cli.dev.commands import _environment, _port_flags
from support.cli import Cli

PEERS = ("node-1@10.0.0.1:4280", "node-2@10.0.0.2:4280", "node-3@10.0.0.3:4280")
KEY = ("--cluster-key-file", "cluster.key")


@pytest.fixture(autouse=True)
def key_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.key").write_text("k" * 32)


@pytest.fixture
def cli(tmp_path):
    return Cli(None, tmp_path)


def test_a_new_cluster(cli):
    peers = [word for peer in PEERS for word in ("--peer", peer)]
    settings = cli.json(
        "server", "--check", "--node-id", "node-1", "--rack", "a",
        "--cluster-host", "10.0.0.1", "--cluster-port", "4280", *KEY, *peers,
    )  # fmt: skip
    assert settings["rack"] == "a"
    cluster = settings["cluster"]
    assert (cluster["host"], cluster["port"], cluster["key_file"]) == ("10.0.0.1", 4280, "cluster.key")
    assert tuple(cluster["peers"]) == PEERS
    assert cluster["join"] is False


def test_one_more_node(cli):
    assert cli.json("server", "--check", "--join", "--cluster-port", "0", *KEY)["cluster"]["join"] is True


def test_flags_win(tmp_path):
    path = tmp_path / "liftpy.toml"
    path.write_text(
        'rack = "a"\n[cluster]\nport = 1\nkey_file = "cluster.key"\nhost = "127.0.0.2"\npeers = ["x@h:1"]\n'
    )
    cli = Cli(None, tmp_path, LIFTPY_CLUSTER_PORT="2", LIFTPY_CLUSTER_HOST="127.0.0.3")
    settings = cli.json("server", "-c", str(path), "--check", "--cluster-port", "3", "--peer", "liftpy-1@h:2")
    assert (settings["cluster"]["port"], settings["cluster"]["host"]) == (3, "127.0.0.3")
    assert settings["cluster"]["peers"] == ["liftpy-1@h:2"]
    assert (settings["cluster"]["key_file"], settings["rack"]) == ("cluster.key", "a")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--peer", "node-1"), "is not of the form node-1@host:port"),
        (("--join",), "needs a port for the others"),
        (("--cluster-port", "4280"), "nodes that listen for others need a secret"),
        (("--cluster-port", "4280", "--peer", PEERS[0], *KEY), "this node, 'liftpy-1', is not among them"),
        (("--cluster-port", "4280", "--cluster-key-file", "none"), "none can not be read"),
        (("--cluster-port", "70000", *KEY), "must be a port between"),
        (("--join", "--peer", PEERS[0], "--cluster-port", "1", *KEY), "leave cluster.peers out"),
        (("--cluster-port", "1", "--cluster-host", "0.0.0.0", *KEY), "name an address"),
    ],
)
def test_mistakes(cli, arguments, said):
    assert said in cli.error("server", "--check", *arguments, code=2)


def test_the_environment_of_dev(monkeypatch, tmp_path):
    """What the environment says of other servers and other nodes is not meant for these."""
    given = {
        "NATS_URL": "nats://x", "NATS_CONTEXT": "y", "LIFTPY_NATS_URL": "z", "LIFTPY_CLUSTER_PEERS": "a@b:1",
        "LIFTPY_NODE_ID": "a", "LIFTPY_DATA_DIR": "/x", "LIFTPY_CLUSTER_LEADER_TIMEOUT_S": "2",
        "LIFTPY_LOG_LEVEL": "debug", "SOMETHING": "else",
    }  # fmt: skip
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    kept = {"LIFTPY_CLUSTER_LEADER_TIMEOUT_S": "2", "LIFTPY_LOG_LEVEL": "debug", "XDG_CONFIG_HOME": str(tmp_path)}
    assert {
        name: text for name, text in _environment(tmp_path, None).items() if name.startswith(("LIFTPY", "XDG"))
    } == kept
    assert "SOMETHING" not in _environment(tmp_path, None)
    whole = _environment(tmp_path, None, dict(given))
    assert {name: whole.get(name) for name in given} == dict.fromkeys(given) | kept_of(given)


def kept_of(given):
    return {name: given[name] for name in ("LIFTPY_CLUSTER_LEADER_TIMEOUT_S", "LIFTPY_LOG_LEVEL", "SOMETHING")}


def test_the_ports_of_several_nodes():
    assert _port_flags(2, 0, None) == ["--pull-port", "0"]
    assert _port_flags(2, 4270, 8270) == ["--pull-port", "4272", "--http-port", "8272"]
    assert _port_flags(2, 0, 0) == ["--pull-port", "0", "--http-port", "0"]


@pytest.mark.parametrize("count", ["0", "6", "x"])
def test_how_many_nodes(cli, count, tmp_path):
    assert "--nodes" in cli.error("dev", "--nodes", count, "--data-dir", str(tmp_path / "d"), code=2)
    assert not (tmp_path / "d").exists()
