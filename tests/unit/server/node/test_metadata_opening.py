"""A node's metadata opened as its settings say."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from liftpy_envelope.errors import ConfigError
from liftpy_log.data_dir import DataDir
from liftpy_log.errors import DataDirError
from liftpy_server.consensus.settings import RaftSettings, Voter
from liftpy_server.consensus.storage.journal import JOURNAL_NAMES
from liftpy_server.metadata.errors import JournalError
from liftpy_server.node import metadata_opening
from liftpy_server.node.metadata_opening import open_metadata
from liftpy_server.settings.cluster import ClusterConfig
from liftpy_server.settings.config import NodeConfig
from support.metadata_commands import NODE
from support.ports import free_port
from support.raft_kit import KEY
from support.server_kit import SetClock


def node_config(root, node_id="n1", **cluster):
    return NodeConfig(node_id=node_id, data_dir=str(root), cluster=ClusterConfig(**cluster))


@asynccontextmanager
async def opened(root, node_id="n1", clock=None, **cluster):
    config = node_config(root, node_id, **cluster)
    data_dir = DataDir.open(config.data_path, config.node_id)
    try:
        store = await open_metadata(config, data_dir, clock or SetClock())
        try:
            yield store
        finally:
            await store.stop()
    finally:
        data_dir.close()


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(KEY)
    return str(path)


async def test_a_node_alone_listens_nowhere_and_leads_at_once(tmp_path, monkeypatch):
    patient = partial(RaftSettings, election_timeout_min_s=600.0)
    monkeypatch.setattr(metadata_opening, "RaftSettings", patient)  # no election is waited for
    async with opened(tmp_path / "data") as store:
        assert (store.is_leader, store.port, store._transport._listener) == (True, 0, None)
        assert await store.propose("register_node", node=NODE) == 1
    async with opened(tmp_path / "data") as store:
        assert "n1" in store.state.nodes


async def test_a_damaged_journal_is_named_with_what_to_do(tmp_path):
    async with opened(tmp_path) as store:
        await store.propose("register_node", node=NODE)
    for name in JOURNAL_NAMES:
        path = tmp_path / "metadata" / name
        data = bytearray(path.read_bytes())
        data[data.rindex(b"register_node")] ^= 1
        path.write_bytes(data)
    text = r"damaged: both copies, .*raft\.journal and .*remove this node.*restore the data directory"
    with pytest.raises(JournalError, match=text):
        async with opened(tmp_path):
            pass


async def test_one_damaged_copy_of_a_lone_node_costs_nothing(tmp_path, caplog):
    """One bit in the newest entry: it is told from a write that was cut short, and repaired."""
    async with opened(tmp_path) as store:
        await store.propose("register_node", node=NODE)
        wanted, cluster_id = store.state, store.cluster_id
    for name in JOURNAL_NAMES:
        path = tmp_path / "metadata" / name
        data = bytearray(path.read_bytes())
        data[data.rindex(b"register_node")] ^= 1
        path.write_bytes(data)
        async with opened(tmp_path) as store:
            assert (store.state.nodes, store.cluster_id) == (wanted.nodes, cluster_id)
        assert f"{path} is damaged at byte" in caplog.text


async def test_the_journal_of_before_the_first_release_is_refused(tmp_path):
    DataDir.open(tmp_path, "n1").close()
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "raft.db").write_bytes(b"SQLite format 3")
    with pytest.raises(
        JournalError, match=r"raft\.db is the metadata journal of a liftpy from before the first release"
    ):
        async with opened(tmp_path):
            pass


async def test_metadata_of_before_there_were_clusters_are_refused(tmp_path):
    DataDir.open(tmp_path, "n1").close()
    (tmp_path / "metadata.db").write_bytes(b"SQLite format 3")
    with pytest.raises(
        DataDirError, match=r"metadata\.db holds the metadata of a liftpy from before the first release"
    ):
        async with opened(tmp_path):
            pass


async def test_three_nodes_start_as_one_cluster_and_their_clocks_do_not_matter(tmp_path, key_file):
    ports = [free_port() for _ in range(3)]
    peers = tuple(f"n{number}@127.0.0.1:{port}" for number, port in enumerate(ports, 1))
    hour_ns = 3600 * 10**9
    stores = {}
    contexts = []
    try:
        for number, port in enumerate(ports, 1):
            clock = SetClock(now_ns=number * hour_ns)
            context = opened(tmp_path / str(number), f"n{number}", clock, peers=peers, port=port, key_file=key_file)
            stores[f"n{number}"] = await context.__aenter__()
            contexts.append(context)
        for name, store in stores.items():
            assert await store.propose("register_node", node=NODE | {"node_id": name}) == 1
        assert len({store.cluster_id for store in stores.values()}) == 1
        assert stores["n1"].cluster_id
        for store in stores.values():
            assert set((await store.read()).nodes) == set(stores)
    finally:
        for context in contexts:
            await context.__aexit__(None, None, None)


async def test_settings_that_do_not_fit_are_named(tmp_path, key_file):
    with pytest.raises(ConfigError, match="is not among them"):
        async with opened(tmp_path / "a", peers=("n2@127.0.0.1:1",), port=2, key_file=key_file):
            pass
    with pytest.raises(ConfigError, match=r"cluster\.key_file.*can not be read"):
        async with opened(tmp_path / "b", port=free_port(), key_file=str(tmp_path / "none")):
            pass


async def test_a_node_that_listens_later_tells_its_address(tmp_path, key_file):
    root = tmp_path / "data"
    async with opened(root) as store:
        assert [voter.port for voter in store.voters] == [0]
        cluster_id = store.cluster_id
    port = free_port()
    async with opened(root, port=port, key_file=key_file) as store:
        assert store.voters == (Voter("n1", "127.0.0.1", port),)
        assert store.cluster_id == cluster_id
    async with opened(root, port=0, key_file=key_file) as store:
        assert store.voters == (Voter("n1", "127.0.0.1", store.port),)
        assert store.port not in {0, port}
        await store.add_voter(Voter("n2", "127.0.0.1", port))
    with pytest.raises(ConfigError, match="belongs to a cluster with n2, and must listen"):
        async with opened(root):
            pass
    assert Path(root / "metadata" / "raft.journal").exists()
