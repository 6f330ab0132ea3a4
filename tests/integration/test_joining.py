"""A new node asks over NATS to be taken in; the answering side is played by the test, on a real store."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import nats
import pytest

from liftpy_client.connection.nats_options import NatsOptions
from liftpy_log.clock import SystemClock
from liftpy_log.data_dir import DataDir
from liftpy_server.consensus.settings import Voter
from liftpy_server.listeners.refusals import ListenerRefusals
from liftpy_server.node import metadata_opening
from liftpy_server.node.joining import JoinError
from liftpy_server.node.metadata_opening import open_metadata
from liftpy_server.requests.node_key import NodeKey
from liftpy_server.requests.node_listener import NodeListener
from liftpy_server.settings.cluster import ClusterConfig
from liftpy_server.settings.config import NodeConfig
from support.metadata_commands import NODE
from support.raft_kit import KEY


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(KEY)
    return str(path)


@asynccontextmanager
async def opened(tmp_path, node_id, url, key_file, **cluster):
    config = NodeConfig(
        node_id=node_id,
        data_dir=str(tmp_path / node_id),
        nats=NatsOptions(url=url),
        cluster=ClusterConfig(port=0, key_file=key_file, **cluster),
    )
    data_dir = DataDir.open(config.data_path, node_id)
    try:
        store = await open_metadata(config, data_dir, SystemClock())
        try:
            yield store
        finally:
            await store.stop()
    finally:
        data_dir.close()


@asynccontextmanager
async def answering(url, answer, secret=KEY):
    """Answers requests to join, that prove the key, with what `answer` makes of them."""
    client = await nats.connect(url)

    async def invite(message):
        await message.respond(b'{"node_id": "n1", "challenge": "c"}')

    async def respond(request):
        await request.respond(json.dumps(await answer(json.loads(request.data))).encode())

    listener = NodeListener("n1", lambda _: "c", NodeKey(secret), {"NODE.JOIN": respond}, ListenerRefusals())
    await client.subscribe("LIFT.API.NODE.JOIN", cb=invite)
    await client.subscribe(listener.subject, cb=listener.accept)
    await client.flush()
    try:
        yield
    finally:
        await client.close()


async def test_two_nodes_join_one_after_the_other(tmp_path, nats_server, key_file):
    async with opened(tmp_path, "n1", nats_server.url, key_file) as first:
        await first.propose("register_node", node=NODE)

        async def take_in(request):
            await first.add_voter(Voter(request["node_id"], request["host"], request["port"]))
            return {"cluster_id": first.cluster_id, "voters": [voter.to_plain()[:3] for voter in first.voters]}

        async with (
            answering(nats_server.url, take_in),
            opened(tmp_path, "n2", nats_server.url, key_file, join=True) as second,
        ):
            assert "n1" in second.state.nodes
            assert second.cluster_id == first.cluster_id
            async with opened(tmp_path, "n3", nats_server.url, key_file, join=True) as third:
                async with asyncio.timeout(40):
                    while len(third.voters) < 3:
                        await asyncio.sleep(0.02)
                assert await third.propose("register_node", node=NODE) == 2
        # Started again with the same settings it asks nobody: nobody answers any more.
        async with opened(tmp_path, "n2", nats_server.url, key_file, join=True) as second:
            await second.read()


async def test_a_refusal_is_told(tmp_path, nats_server, key_file):
    async def refuse(request):
        return {"error": {"code": 409, "err_code": 1, "description": f"{request['node_id']} votes already"}}

    async with answering(nats_server.url, refuse):
        with pytest.raises(JoinError, match="does not take 'n2' in: n2 votes already"):
            async with opened(tmp_path, "n2", nats_server.url, key_file, join=True):
                pass


async def test_a_cluster_that_is_just_starting_is_asked_again(tmp_path, nats_server, key_file):
    answers = [
        {"error": {"code": 503, "err_code": 1, "description": "no leader"}},
        {"cluster_id": "", "voters": []},
        {"error": {"code": 409, "err_code": 1, "description": "and then it refuses"}},
    ]

    async def start(_):
        return answers.pop(0)

    async with answering(nats_server.url, start):
        with pytest.raises(JoinError, match="and then it refuses"):
            async with opened(tmp_path, "n2", nats_server.url, key_file, join=True):
                pass
    assert answers == []


async def test_nobody_is_there(tmp_path, nats_server, key_file, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(metadata_opening, "_JOIN_TIMEOUT_S", 1.2)
    with pytest.raises(JoinError, match=r"within 1\.2 s: no node answers"):
        async with opened(tmp_path, "n2", nats_server.url, key_file, join=True):
            pass
    assert sum("waiting for the cluster" in message for message in caplog.messages) == 1  # not at every attempt


@pytest.mark.parametrize("answer", [[], {"voters": 5}, {"cluster_id": "c", "voters": []}, {"error": "no"}])
async def test_an_answer_that_is_none_is_an_error(tmp_path, nats_server, key_file, answer, monkeypatch):
    async def garbage(_):
        return answer

    monkeypatch.setattr(metadata_opening, "_JOIN_TIMEOUT_S", 1.2)
    async with answering(nats_server.url, garbage):
        with pytest.raises(JoinError):
            async with opened(tmp_path, "n2", nats_server.url, key_file, join=True):
                pass


async def test_a_cluster_with_another_key_is_said(tmp_path, nats_server, key_file, monkeypatch):
    """Neither does the cluster believe the node, nor the node what answers."""
    asked = []

    async def take_in(request):
        asked.append(request)

    monkeypatch.setattr(metadata_opening, "_JOIN_TIMEOUT_S", 3.0)
    async with answering(nats_server.url, take_in, b"another secret of 32 bytes......"):
        with pytest.raises(JoinError, match=r"within 3 s: .*all nodes of a cluster need the same cluster\.key_file"):
            async with opened(tmp_path, "n2", nats_server.url, key_file, join=True):
                pass
    assert asked == []


@pytest.mark.parametrize(
    "invitation", [b"nonsense", b"[]", b'{"node_id": "*", "challenge": "c"}', b'{"node_id": "n1"}']
)
async def test_who_only_plays_a_cluster_is_not_believed(tmp_path, nats_server, key_file, monkeypatch, invitation):
    """It says which addresses are those of the cluster, and the node connects to none of them."""
    dialed = []
    server = await asyncio.start_server(lambda _, writer: dialed.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = await nats.connect(nats_server.url)

    async def invite(message):
        await message.respond(invitation)

    async def pretend(message):
        await message.respond(json.dumps({"cluster_id": "c" * 32, "voters": [["n1", "127.0.0.1", port]]}).encode())

    await client.subscribe("LIFT.API.NODE.JOIN", cb=invite)
    await client.subscribe("LIFT.NODE.>", cb=pretend)
    await client.flush()
    monkeypatch.setattr(metadata_opening, "_JOIN_TIMEOUT_S", 1.2)
    with pytest.raises(JoinError, match="could not join"):
        async with opened(tmp_path, "n2", nats_server.url, key_file, join=True):
            pass
    assert dialed == []
    await client.close()
    server.close()
