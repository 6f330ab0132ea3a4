"""The state survives a snapshot, and shows no secret by accident."""

from __future__ import annotations

import json

import msgpack
import pytest

from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.metadata.state import MetadataState, NodeInfo, PartitionInfo, StreamInfo
from support.metadata_commands import UUIDS, Author


@pytest.fixture
def state():
    author = Author()
    author.register("n1")
    author.register("n2")
    author.create("orders", leaders=("n1", "n2"), retention_age_s=1.5, group="g", spread="mapping")
    author.create("flights", UUIDS[1], compression="zstd", min_isr=1)
    author.create("gone", UUIDS[2])
    author.do("delete_stream", name="gone")
    author.do("set_stream_state", name="orders", paused=True)
    author.do("purge_partition", name="orders", uuid=UUIDS[0], partition=1, log_start=7)
    author.attempt("delete_stream", name="nothing")
    return author.state


def test_snapshot_round_trip(state):
    assert state == MetadataState.from_plain(msgpack.unpackb(msgpack.packb(state.to_plain())))


def test_json_round_trip(state):
    assert state == MetadataState.from_plain(json.loads(json.dumps(state.to_plain())))


def test_order_of_streams_and_outcomes_is_kept(state):
    restored = MetadataState.from_plain(msgpack.unpackb(msgpack.packb(state.to_plain())))
    assert list(state.streams) == list(restored.streams)
    assert list(state.outcomes) == list(restored.outcomes)


def test_empty_state():
    assert MetadataState() == MetadataState.from_plain(MetadataState().to_plain())


def test_partition_round_trip():
    partition = PartitionInfo(replicas=("a", "b"), isr=("a",), leader=None, leader_epoch=3, version=4, log_start=5)
    assert partition == PartitionInfo.from_plain(partition.to_plain())
    assert partition.to_plain()["replicas"] == ["a", "b"]


def test_stream_is_named_by_its_configuration():
    stream = StreamInfo(uuid=UUIDS[0], config=StreamConfig(name="orders", subject="a"), created_ns=5)
    assert ("orders", stream) == (stream.name, StreamInfo.from_plain(stream.to_plain()))


def test_token_of_a_node_is_not_shown():
    node = NodeInfo(node_id="n1", incarnation=1, pull_host="h", pull_port=1, pull_token="s3cret")
    assert "s3cret" not in repr(node)
    assert "s3cret" not in repr(MetadataState(nodes={"n1": node}))
