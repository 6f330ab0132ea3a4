"""Everything that a node counts is in the text that Prometheus reads."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from liftpy_server.admin.metrics import render_metrics
from liftpy_server.metadata.state import PartitionInfo
from support.envelopes import idempotent
from support.fake_node import fake_node
from support.nats_frames import header_block, msg


@pytest.fixture
def node(make_kit, tmp_path):
    kit = make_kit(message_bytes_max=100)
    kit.receive(msg(b"orders.a", b"v" * 10, reply=b"r"), msg(b"orders.a", b"w", headers=header_block(Nats_Msg_Id="m")))
    kit.receive(msg(b"orders.a", b"w", headers=header_block(Nats_Msg_Id="m")), msg(b"orders.a", bytes(101)))
    kit.sync()
    kit.receive(msg(b"orders.a", b"not durable yet"))
    return fake_node(kit, tmp_path)


def samples(node):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(render_metrics(node, {}).decode())
        for sample in family.samples
    }


def test_node(node):
    node.ingest.is_connected = False
    node.ingest.reconnects = 3
    node.ingest.unbound_messages = 4
    node.outbox.lost_bytes = 5
    (info,) = node.metadata.state.streams.values()
    led = PartitionInfo(replicas=("n1",), isr=("n1",), leader="n1", leader_epoch=1, unclean_elections=2)
    node.metadata.state.streams[info.name] = replace(info, partitions=(led, replace(led, leader="another")))
    found = samples(node)
    expected = {
        "liftpy_nats_connected": 0,
        "liftpy_nats_reconnects_total": 3,
        "liftpy_unbound_messages_total": 4,
        "liftpy_lost_ack_bytes_total": 5,
        "liftpy_partitions": 1,
        "liftpy_partitions_led": 1,
        "liftpy_partitions_under_replicated": 0,
        "liftpy_partitions_not_accepting": 0,
        "liftpy_unclean_elections": 2,
        "liftpy_metadata_leader": 0,
        "liftpy_partitions_offline": 0,
        "liftpy_partitions_in_gap": 1,
        "liftpy_streams": 1,
        "liftpy_storage_full": 0,
        "liftpy_dedupe_bytes": node.streams.partitions[0].dedupe.size_bytes,
    }
    assert expected == {name: found[(name,)] for name in expected}
    assert found[("liftpy_resident_bytes",)] > 1_000_000


def test_listeners(node):
    node.refusals.auth_failed("pull", "10.0.0.9:4000", "wrong token")
    node.refusals.was_busy("admin", "LIFT.API.CLUSTER.INFO", "too many at once")
    node.refusals.was_malformed("raft", "10.0.0.9:4001", "not a frame")
    found = samples(node)
    assert found[("liftpy_auth_failures_total", ("listener", "pull"))] == 1
    assert found[("liftpy_auth_failures_total", ("listener", "node"))] == 0
    assert found[("liftpy_busy_refusals_total", ("listener", "admin"))] == 1
    assert found[("liftpy_malformed_requests_total", ("listener", "raft"))] == 1


def test_followers(node):
    states = [
        {"node": "b", "log_end": 2, "lag_messages": 1, "in_sync": True},
        {"node": "c", "log_end": None, "lag_messages": None, "in_sync": False},
    ]
    node.streams.partitions[0].replica_states = lambda: states
    found = samples(node)
    where = ("partition", "0"), ("stream", "orders")
    assert found["liftpy_partitions_under_replicated",] == 1
    assert found["liftpy_replica_lag_messages", ("node", "b"), *where] == 1
    assert ("liftpy_replica_lag_messages", ("node", "c"), *where) not in found
    assert [found["liftpy_replica_in_sync", ("node", node), *where] for node in "bc"] == [1, 0]


def test_streams(node):
    found = samples(node)
    stream = ("stream", "orders")
    expected = {"messages": 3, "bytes": 26, "batches": 2, "duplicates": 1, "lookalikes": 0, "gaps": 1}
    assert expected == {name: found[f"liftpy_stream_{name}_total", stream] for name in expected}
    assert found["liftpy_stream_refused_total", ("reason", "too_large"), stream] == 1


def test_partitions(node):
    found = samples(node)
    labels = (("partition", "0"), ("stream", "orders"))
    expected = {"log_start": 0, "high_watermark": 2, "log_end": 3}
    assert expected == {name: found[f"liftpy_partition_{name}", *labels] for name in expected}
    assert found["liftpy_partition_bytes", *labels] > 100


def test_offline_partition_is_counted(node):
    node.streams.partitions[0].log.durability.fail("told to")
    assert samples(node)["liftpy_partitions_offline",] == 1


def test_node_without_streams(node):
    node.streams = SimpleNamespace(by_uuid={}, by_key={}, partitions=[])
    assert samples(node)["liftpy_partitions",] == 0


def test_ordered_producers(make_kit, tmp_path):
    kit = make_kit()
    kit.receive(msg(b"orders.a", idempotent([b"v"], 1, producer_epoch=1, ack_inbox="r")))
    found, labels = samples(fake_node(kit, tmp_path)), (("partition", "0"), ("stream", "orders"))
    assert found["liftpy_partition_ordered_producers", *labels] == 1
    assert found["liftpy_ordered_producers",] == 1


def test_message_ids(make_kit, tmp_path):
    kit = make_kit(dedupe_ids_max=2, dedupe_window_s=100)
    for name in "abc":
        kit.receive(msg(b"orders.a", b"v", headers=header_block(Nats_Msg_Id=name)))
        kit.clock.advance(10)
    found, labels = samples(fake_node(kit, tmp_path)), (("partition", "0"), ("stream", "orders"))
    assert found["liftpy_partition_dedupe_ids", *labels] == 2
    assert found["liftpy_partition_dedupe_known_seconds", *labels] == 30
