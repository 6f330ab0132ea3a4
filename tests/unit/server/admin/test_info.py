"""What a node tells of itself and its streams."""

from __future__ import annotations

import json

import pytest

from liftpy_server.admin.info import cluster_info, node_info, resident_bytes, stream_info
from support.fake_node import fake_node
from support.metadata_commands import UUIDS, Author
from support.nats_frames import msg


@pytest.fixture
def author():
    given_author = Author()
    given_author.register("n1")
    given_author.create("orders", leaders=("n1", "n1"))
    given_author.create("flights", UUIDS[1])
    return given_author


def test_cluster(author):
    shown = cluster_info(author.state, None)
    assert (
        [node["node_id"] for node in shown["nodes"]],
        [stream["config"]["name"] for stream in shown["streams"]],
    ) == (["n1"], ["orders", "flights"])
    assert [{"partition": p, "leader": "n1", "leader_epoch": 1} for p in (0, 1)] == shown["streams"][0]["partitions"]
    assert (shown["nodes"][0]["pull_token"], shown["revision"]) == ("secret", 3)
    json.dumps(shown)


@pytest.mark.parametrize(
    ("wanted", "found"), [([], []), (["flights", "nothing"], ["flights"]), (["orders"], ["orders"])]
)
def test_cluster_of_some_streams(author, wanted, found):
    assert found == [stream["config"]["name"] for stream in cluster_info(author.state, wanted)["streams"]]


def test_stream(make_kit, tmp_path):
    author = Author()
    author.register("n1")
    author.create()
    kit = make_kit()
    kit.info = author.state.streams["orders"]
    node = fake_node(kit, tmp_path)
    kit.receive(*(msg(b"orders.a", b"v") for _ in range(3)))
    kit.sync()
    kit.receive(msg(b"orders.a", b"not durable yet"))
    kit.stream.open_gap(5, "lost")
    shown = stream_info(node, kit.info)
    (partition,) = shown["partitions"]
    assert (shown["name"], shown["messages"], shown["gap_count"]) == ("orders", 3, 1)
    assert tuple(partition[name] for name in ("log_start", "high_watermark", "log_end", "segments", "offline")) == (
        0,
        3,
        4,
        1,
        None,
    )
    assert (kit.clock.ns, kit.clock.ns) == (partition["first_timestamp_ns"], partition["last_timestamp_ns"])
    assert shown["gaps"] == [{"since_ns": 5, "until_ns": None, "cause": "lost", "messages": None}]
    assert "gaps" not in stream_info(node, kit.info, brief=True)
    json.dumps(shown)


def test_stream_that_is_led_elsewhere(author, kit, tmp_path):
    shown = stream_info(fake_node(kit, tmp_path), author.state.streams["flights"])
    assert (shown["messages"], shown["partitions"]) == (0, [])


def test_node(kit, tmp_path):
    shown = node_info(fake_node(kit, tmp_path))
    assert (
        shown["node_id"],
        shown["incarnation"],
        shown["group_commit_rounds"],
        shown["storage_full"],
    ) == ("n1", 4, 7, False)
    json.dumps(shown)


def test_resident_bytes():
    assert resident_bytes() > 1_000_000
