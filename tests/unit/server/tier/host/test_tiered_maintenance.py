"""Maintenance and metrics of a node with a bucket."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from liftpy_log.partition_log import LogConfig
from liftpy_server.admin.metrics import render_metrics
from liftpy_server.node import maintenance as maintenance_module
from liftpy_server.node.maintenance import Maintenance
from liftpy_server.partition.cold_side import ColdSide
from liftpy_server.settings.config import StorageConfig
from liftpy_server.tier.host.counters import TierCounters
from liftpy_server.tier.requests import CountsResult
from support.fake_node import fake_node
from support.nats_frames import msg


class PlayedTier:
    """What maintenance asks of the bucket."""

    def __init__(self):
        self.end = 0
        self.notes = []
        self.asked = 0
        self.tierer = SimpleNamespace(full_text=lambda usual: f"{usual}, and the bucket is away")

    def note_disk(self, free_bytes, reserve_bytes):
        self.notes.append((free_bytes, reserve_bytes))

    def droppable(self, partition):
        assert partition.stream.config.tier
        return self.end or None

    async def ask_ends(self):
        self.asked += 1


@pytest.fixture
def bench(make_kit, tmp_path):
    def make(**settings):
        kit = make_kit(log=LogConfig(segment_bytes=3_000), **settings)
        tier, executor = PlayedTier(), ThreadPoolExecutor(max_workers=1)
        streams = SimpleNamespace(partitions=[kit.partition], by_interval={})
        place = SimpleNamespace(root=tmp_path, checkpoint_path=tmp_path / "checkpoint")
        config = StorageConfig(disk_reserve_bytes=1_000)
        maintenance = Maintenance(streams, kit.disk, place, config, kit.clock, lambda _log: None, executor, tier)
        executors.append(executor)
        for _ in range(9):
            kit.receive(msg(b"orders.a", bytes(1_000), reply=b"r"))
        kit.sync()
        return kit, tier, maintenance

    executors = []
    yield make
    for executor in executors:
        executor.shutdown()


def test_only_what_may_be_dropped_is_dropped(bench):
    kit, tier, maintenance = bench(retention_bytes=3_000)
    maintenance.retain(kit.partition)
    assert kit.log.log_start == 0, "total retention drops nothing that the bucket does not have"
    tier.end = 5
    maintenance.retain(kit.partition)
    assert 0 < kit.log.log_start <= 5


def test_a_stream_that_is_kept_out_of_the_bucket_goes_as_before(bench):
    kit, _, maintenance = bench(retention_bytes=3_000, tier=False)
    maintenance.retain(kit.partition)
    assert kit.log.log_start > 5


def test_a_segment_is_closed_when_it_is_to_leave_the_disk_by_its_age(bench):
    kit, _, maintenance = bench(local_retention_age_s=60.0)
    kit.clock.advance(61)
    maintenance.retain(kit.partition)
    assert not kit.log.active.size


def test_who_is_refused_for_want_of_room_is_told_of_the_bucket(bench):
    kit, tier, maintenance = bench()
    with patch.object(maintenance_module, "_space", lambda _path: (500, 100_000)):
        maintenance.check_disk()
    kit.receive(msg(b"orders.a", b"x", reply=b"r"))
    (_, answer) = kit.acks()[-1]
    assert answer["error"]["description"] == "the node's disk is full, and the bucket is away"
    assert tier.notes == [(500, 1_000)]


def test_what_can_be_read_begins_in_the_bucket_where_that_reaches_the_log(bench):
    kit, tier, maintenance = bench()
    tier.end = 9
    maintenance.retain(kit.partition)
    local_start = kit.log.log_start
    assert local_start > 2
    assert kit.partition.start == local_start
    kit.partition.cold = ColdSide(1, local_start - 1)
    assert kit.partition.start == local_start, "something is missing between"
    kit.partition.cold = ColdSide(1, local_start)
    assert kit.partition.start == 1
    kit.partition.cold.raise_start(2)
    assert kit.partition.start == 2


def test_metrics(bench, tmp_path):
    kit, _, _ = bench()
    node = fake_node(kit, tmp_path)
    node.outbox.lost_bytes = 0
    status = {
        "state": "away",
        "untiered_bytes": 70,
        "untiered_age_s": 1.5,
        "partition_count": 1,
        "trouble_count": 0,
        "uploads": 3,
        "set_manifest_bytes": 9,
        "bytes_in": 4,
        "bytes_out": 5,
        "deleted_objects": 11,
        "read_bytes_in": 8,
        "requests": {"create": 6},
        "read_requests": {"get_range": 9},
        "failures": {"unavailable": 7},
    }
    node.tier = SimpleNamespace(status=lambda _limit: status, staged=None)
    text = render_metrics(node, {}).decode()
    for line in (
        'liftpy_tier_state{state="away"} 1.0',
        'liftpy_tier_state{state="ok"} 0.0',
        "liftpy_tier_untiered_bytes 70.0",
        "liftpy_tier_set_manifest_bytes 9.0",
        "liftpy_tier_untiered_age_seconds 1.5",
        'liftpy_tier_requests_total{kind="create"} 6.0',
        "liftpy_tier_read_bytes_in_total 8.0",
        'liftpy_tier_read_requests_total{kind="get_range"} 9.0',
        'liftpy_tier_request_cost_dollars_total{kind="create"} 3e-05',
        "liftpy_tier_deleted_objects_total 11.0",
        'liftpy_tier_failures_total{code="unavailable"} 7.0',
        'liftpy_partition_local_start{partition="0",stream="orders"} 0.0',
    ):
        assert line in text


def test_counts_of_a_worker_that_was_started_again():
    counters = TierCounters()
    for creates in (5, 8, 2):
        counters.take(
            CountsResult(counts={"create": creates}, bytes_in=creates, bytes_out=10 * creates, deleted=creates)
        )
    assert (counters.requests["create"], counters.bytes_in, counters.bytes_out, counters.deleted) == (10, 10, 100, 10)
