"""Requests between nodes: what proves the cluster's key is taken, once; everything else is refused and counted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.msg import Msg

from liftpy_envelope.errors import ErrorCode
from liftpy_server.requests.errors import AdminError, NodeSilentError
from liftpy_server.requests.node_key import PROOF_HEADER, SENDER_HEADER, NodeKey, NotProvenError, Replays
from support.admin_cluster import AdminCluster, partition


@pytest.fixture
def cluster(tmp_path):
    return AdminCluster(tmp_path)


class Wire:
    """Sees everything that is said between the nodes of a cluster."""

    def __init__(self, cluster, monkeypatch):
        self.said = []
        publish = cluster.publish

        async def tapped(subject, data, reply="", headers=None):
            self.said.append((subject, data, reply, headers))
            await publish(subject, data, reply, headers)

        monkeypatch.setattr(cluster, "publish", tapped)


async def send(cluster, node_id, endpoint, data, headers=None, reply="_INBOX.stranger"):
    """What a node answers to a message, if it does."""
    answers = []

    async def take(message):
        answers.append(message)

    cluster.inboxes[reply] = take
    message = Msg(cluster, subject=f"LIFT.NODE.{node_id}.{endpoint}", reply=reply, data=data, headers=headers)
    await cluster[node_id].listener.accept(message)
    (answer,) = answers
    return json.loads(answer.data)


@pytest.mark.parametrize("endpoint", ["NODE.LEFT", "STREAM.PURGE", "NODE.JOIN", "NODE.REMOVE", "NODE.INFO", "NONSENSE"])
async def test_a_stranger_is_refused_at_every_endpoint(cluster, endpoint, caplog):
    for headers in (None, {SENDER_HEADER: "n1 x 1"}, {SENDER_HEADER: "n1 x 1", PROOF_HEADER: "00" * 32}):
        answer = await send(cluster, "n2", endpoint, b'{"incarnation": 1}', headers)
        assert answer["error"]["code"] == 401
        assert answer["error"]["err_code"] == ErrorCode.UNAUTHENTICATED
    assert cluster["n2"].asked == []
    assert cluster["n2"].silence is None
    assert cluster["n2"].refusals.auth_failures["node"] == 3
    assert f"node: refused LIFT.NODE.n2.{endpoint} (reply to _INBOX.stranger)" in caplog.text


async def test_a_request_that_was_overheard_is_worth_nothing(cluster, monkeypatch):
    """Repeated, for another endpoint, another node, with another body, or to be answered elsewhere."""
    wire = Wire(cluster, monkeypatch)
    assert (await cluster["n1"].ask("NODE.INFO", node_id="n2"))["node"]["node_id"] == "n2"
    (subject, data, reply, headers) = wire.said[0]
    assert subject == "LIFT.NODE.n2.NODE.INFO"
    for node_id, endpoint, body, inbox in (
        ("n2", "NODE.INFO", data, reply),
        ("n2", "NODE.LEFT", data, reply),
        ("n3", "NODE.INFO", data, reply),
        ("n2", "NODE.INFO", b"{ }", reply),
        ("n2", "NODE.INFO", data, "_INBOX.stranger"),
    ):
        answer = await send(cluster, node_id, endpoint, body, headers, inbox)
        assert answer["error"]["code"] == 401
    assert (cluster["n2"].asked, cluster["n3"].asked) == (["NODE.INFO"], [])
    cluster["n2"].listener._token_of = lambda _: "token of the next run"
    cluster["n2"].listener._replays = Replays()
    assert (await send(cluster, "n2", "NODE.INFO", data, headers, reply))["error"]["code"] == 401


async def test_an_answer_of_somebody_else_is_passed_over(cluster, monkeypatch):
    cluster.create("a", ["n2"])
    cluster["n2"].lead("a", partition(0, 9))
    publish = cluster.publish

    async def forged(subject, data, reply="", headers=None):
        if subject.startswith("LIFT.NODE."):
            await publish(reply, b'{"error": {"code": 404, "err_code": 4, "description": "gone"}}')
            await publish(reply, b'{"streams": {}, "rest": []}', headers={PROOF_HEADER: "00" * 32})
            await publish(reply, b"nonsense", headers=headers)
        await publish(subject, data, reply, headers)

    monkeypatch.setattr(cluster, "publish", forged)
    assert (await cluster["n1"].ask("STREAM.INFO", name="a"))["stream"]["messages"] == 9
    assert cluster["n1"].refusals.auth_failures["node"] == 3


async def test_a_node_that_is_only_played_is_silent_and_says_what_came(cluster):
    async def stranger(message):
        await cluster.publish(message.reply, b'{"error": {"code": 409, "err_code": 19, "description": "no"}}')

    cluster["n2"].listener.accept = stranger
    with pytest.raises(NodeSilentError, match="an answer that does not prove the cluster's key"):
        await cluster["n1"].requests.ask("n2", "NODE.INFO", {}, 0.05)


async def test_a_node_with_another_key_is_refused_and_told_why(cluster):
    cluster["n1"].requests._key = NodeKey(b"x" * 32)
    with pytest.raises(NodeSilentError, match=r"the same cluster\.key_file"):
        await cluster["n1"].requests.ask("n2", "NODE.INFO", {}, 0.05)
    assert cluster["n2"].asked == []


async def test_a_node_leaves_only_when_the_metadata_say_so(cluster):
    with pytest.raises(AdminError, match="belongs to the cluster by its metadata"):
        await cluster["n2"].ask_as_node("NODE.LEFT")
    assert cluster["n2"].silence is None
    assert cluster.metadata.reads == 2  # the others were asked, and looked for what is newest


async def test_a_node_that_finds_nobody_stays(cluster):
    cluster["n1"].silence = cluster["n3"].silence = OSError("cut off")
    with pytest.raises(AdminError, match="finds nobody who has the metadata"):
        await cluster["n2"].ask_as_node("NODE.LEFT")
    assert cluster["n2"].silence is None


async def test_nobody_purges_a_stream_of_the_system(cluster):
    uuid = cluster.create("__consumer_offsets", ["n1"], subject="")
    cluster["n1"].lead("__consumer_offsets", partition(0, 5))
    for name in ("__consumer_offsets", "orders"):
        with pytest.raises(AdminError, match="liftpy's own, and can not be purged"):
            await cluster["n1"].ask_as_node("STREAM.PURGE", name=name, uuid=uuid, partitions=[0], offset=None)
    assert cluster.metadata.proposed == []


@given(st.lists(st.integers(0, 3_000), max_size=200))
def test_no_request_is_taken_twice(counts):
    replays = Replays()
    taken = []
    for count in counts:
        try:
            replays.check(f"n1 run {count}")
        except NotProvenError:
            assert count in taken or count <= max(taken) - 1_024
        else:
            assert count not in taken
            taken.append(count)


def test_runs_are_told_apart_and_bounded():
    replays = Replays()
    for number in range(3_000):
        replays.check(f"n1 {number} 1")
        replays.check(f"n1 always {number}")
    assert len(replays._seen) == 1_024
    with pytest.raises(NotProvenError):
        replays.check("n1 always 5")
    for text in ("n1", "n1 run", "n1 run -1", "n1 run ²", "n1 run 1" + "0" * 30, " 5"):
        with pytest.raises(NotProvenError):
            replays.check(text)
