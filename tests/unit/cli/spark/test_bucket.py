"""Which bucket `liftpy spark` works on where none is named."""

from __future__ import annotations

import json

import pytest

from liftpy_envelope.errors import LiftError
from support.cli import Cli
from support.fake_cluster import IDLE_STATUS, FakeCluster
from support.ports import free_port

STATUS = IDLE_STATUS | {"url": "s3://of-nodes/p", "endpoint": "http://store:9000", "region": "eu-west-1"}


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """Gives what a command would open, when nodes say this of their bucket."""

    def stop(where):
        raise LiftError(json.dumps(where))

    monkeypatch.setattr("liftpy.cli.tier.bucket.open_bucket", stop)

    def told(*arguments, **changes):
        FakeCluster({"TIER.STATUS": STATUS | changes}).stands_in(monkeypatch)
        return json.loads(Cli(None, tmp_path).error("spark", "scrub", *arguments).removeprefix("error: "))

    return told


def test_it_is_that_of_the_nodes(opened):
    assert opened() == ["s3://of-nodes/p", "http://store:9000", "eu-west-1", None]
    assert opened("--endpoint", "https://outside") == ["s3://of-nodes/p", "https://outside", "eu-west-1", None]
    assert opened("--region", "us-west-2") == ["s3://of-nodes/p", "http://store:9000", "us-west-2", None]


def test_one_that_is_named_needs_no_node_and_takes_nothing_of_the_other(opened):
    assert opened("--bucket", "s3://another") == ["s3://another", None, None, None]


def test_a_bucket_that_nobody_writes_to_is_not_that_of_nodes(tmp_path, monkeypatch):
    FakeCluster({"TIER.STATUS": STATUS}).stands_in(monkeypatch)
    said = Cli(None, tmp_path).error("spark", "merge", "orders", "--alone", code=2)
    assert "which bucket? Say --bucket s3://bucket/prefix, or set LIFTPY_TIER_URL" in said


def test_there_is_none(tmp_path, monkeypatch):
    nowhere = Cli(f"nats://127.0.0.1:{free_port()}", tmp_path).error("spark", "scrub", code=2)
    assert "which bucket? Say --bucket s3://bucket/prefix, or set LIFTPY_TIER_URL; the nodes could not be" in nowhere
    FakeCluster({"TIER.STATUS": STATUS | {"url": None}}).stands_in(monkeypatch)
    assert "the nodes have none" in Cli(None, tmp_path).error("spark", "merge", "orders", code=2)
