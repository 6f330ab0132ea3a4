"""What the tasks of a batch are told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from liftpy_spark import connections
from liftpy_spark.connections import BucketAddress
from liftpy_spark.options.source import SourceOptions
from liftpy_spark.source import batch_planning
from liftpy_spark.source.batch_planning import plan_batch

UUID = "0" * 31 + "1"


class Node:
    """Has one stream of one partition, and a bucket."""

    def __init__(self, end):
        self.end = end
        self.asked = 0

    def stream_info(self, name):
        place = SimpleNamespace(partition=0, leader_epoch=1, log_start=0, high_watermark=self.end)
        return SimpleNamespace(name=name, uuid=UUID, partitions=[place], config=SimpleNamespace(partitions=1))

    def tier_status(self, limit):
        self.asked += 1
        return SimpleNamespace(url="s3://of-nodes", endpoint="http://store:9000", region=None)


@pytest.mark.parametrize(
    ("end", "options", "told"),
    [
        (9, {}, [BucketAddress("s3://of-nodes", "http://store:9000", None)] * 2),
        (9, {"bucket": "s3://another"}, [BucketAddress("s3://another", None, None)] * 2),
        (9, {"cold": "false"}, [None, None]),
        (0, {}, []),
    ],
)
def test_where_the_bucket_is(monkeypatch, end, options, told):
    node = Node(end)
    monkeypatch.setattr(batch_planning, "lift", lambda _: node)
    monkeypatch.setattr(connections, "lift", lambda _: node)
    given = {"servers": "nats://nowhere", "subscribe": "orders", "minPartitions": "2"} | options
    tasks = plan_batch(SourceOptions.read(given, streaming=False))
    assert [task.bucket for task in tasks] == told
    assert [(each.start, each.end) for task in tasks for each in task.ranges] == ([(0, 4), (4, 9)] if end else [])
    assert node.asked == (1 if told and not options else 0)
