"""What a node tells of itself and its streams."""

from __future__ import annotations

import json

import pytest

from liftpy_log.segments.recovery import TornTail
from liftpy_server.admin.info import cluster_info, follower_lags, led_stream, node_info, node_load, resident_bytes
from liftpy_server.admin.stream_view import LEADER_NUMBERS
from support.admin_cluster import AdminCluster, partition
from support.fake_node import fake_node
from support.metadata_commands import UUIDS, Author
from support.nats_frames import header_block, msg


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
    place = {"leader": "n1", "leader_epoch": 1, "replicas": ["n1"], "isr": ["n1"], "observers": []}
    assert [{"partition": number} | place for number in (0, 1)] == shown["streams"][0]["partitions"]
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
    kit.partition.gaps.open(kit.clock.elapsed() - 2, "lost")
    shown = led_stream(node, kit.info)
    (told,) = shown["partitions"]
    assert tuple(told[name] for name in ("log_start", "high_watermark", "log_end", "segments", "offline")) == (
        0,
        3,
        4,
        1,
        None,
    )
    assert (kit.clock.ns, kit.clock.ns) == (told["first_timestamp_ns"], told["last_timestamp_ns"])
    assert shown["gaps"] == [[0, ["g1", 1, kit.clock.ns - 2 * 10**9, None, "lost", None]]]
    assert "gaps" not in led_stream(node, kit.info, brief=True)
    json.dumps(shown)


def test_ids_that_are_forgotten_early(make_kit, tmp_path):
    author = Author()
    author.register("n1")
    author.create()
    kit = make_kit(dedupe_ids_max=2, dedupe_window_s=100)
    kit.info = author.state.streams["orders"]
    for name in "abc":
        kit.receive(msg(b"orders.a", b"v", headers=header_block(Nats_Msg_Id=name)))
        kit.clock.advance(10)
    (told,) = led_stream(fake_node(kit, tmp_path), kit.info)["partitions"]
    shown = {name: told[name] for name in LEADER_NUMBERS if "dedupe" in name}
    assert shown == {"dedupe_ids": 2, "dedupe_window_shortened": True, "dedupe_known_s": 30.0}


def test_the_end_of_a_log_that_was_cut_off(make_kit, tmp_path):
    author = Author()
    author.register("n1")
    author.create()
    kit = make_kit()
    kit.info = author.state.streams["orders"]
    node, path = fake_node(kit, tmp_path), tmp_path / "0.log"
    (whole,) = led_stream(node, kit.info)["partitions"]
    kit.log.torn_tail = TornTail(path, 777, 20, 49)
    (cut,) = led_stream(node, kit.info)["partitions"]
    assert (whole["torn_tail"], cut["torn_tail"]) == (
        None,
        {"offset": 49, "bytes": 20, "file": str(path), "position": 777},
    )
    assert "torn_tail" in LEADER_NUMBERS


def test_stream_that_is_led_elsewhere(author, kit, tmp_path):
    assert led_stream(fake_node(kit, tmp_path), author.state.streams["flights"]) == {"partitions": []}


def test_lags_of_the_followers_of_what_a_node_leads(tmp_path):
    cluster = AdminCluster(tmp_path)
    cluster.create("a", ["n1", "n2", "n3"], ["n2", "n1", "n3"])
    cluster.create("b", ["n1", "n2", "n3"])
    cluster["n1"].lead("a", partition(0, 9, replicas=[("n2", 9, True), ("n3", 4, False)]), partition(1, 5))
    cluster["n1"].lead("b", partition(0, 2, replicas=[("n2", 1, True), ("n3", 0, False)]))
    assert follower_lags(cluster["n1"].node) == {
        "n2": {"lag_messages": 1, "out_of_sync": 0},
        "n3": {"lag_messages": 7, "out_of_sync": 2},
    }


def test_node(kit, tmp_path):
    shown = node_info(fake_node(kit, tmp_path))
    assert (
        shown["node_id"],
        shown["incarnation"],
        shown["group_commits"],
        shown["storage_full"],
    ) == ("n1", 4, 7, False)
    assert shown["free_bytes"] == 1 << 30
    load = node_load(fake_node(kit, tmp_path / "load"))
    assert load["free_bytes"] == 1 << 30
    assert min(load["resident_bytes"], load["cpu_s"]) > 0
    json.dumps([shown, load])


def test_resident_bytes():
    assert resident_bytes() > 1_000_000
