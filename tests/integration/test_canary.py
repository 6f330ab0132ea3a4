"""A canary at a real node with a bucket: on the command line, and beside the node."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request

import pytest

import liftpy
from support.cli import Cli
from support.cluster import NodeProcess, eventually
from support.s3_servers import seaweedfs
from support.tier_kit import tier_toml

CANARY = """
[canary]
stream = "canary"
interval_s = 0.2
bucket_timeout_s = 60
"""


@pytest.fixture(scope="module")
def node(shared_nats, tmp_path_factory):
    home = tmp_path_factory.mktemp("canary")
    with seaweedfs(home / "s3") as s3:
        toml = tier_toml(s3, "canary") + CANARY
        process = NodeProcess(
            shared_nats.url, home / "node", "--http-port", "0", toml=toml, environment=s3.environment
        ).start()
        process.s3 = s3
        yield process
        process.stop()


@pytest.fixture
def cli(shared_nats, node, tmp_path):
    return Cli(shared_nats.url, tmp_path, **node.s3.environment)


def metrics(node):
    with urllib.request.urlopen(f"http://127.0.0.1:{node.ready['http_port']}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(liftpy_canary\S+) (\S+)$", text, re.MULTILINE)}


async def test_messages_come_back_every_way(shared_nats, node, cli):
    async with liftpy.connect(shared_nats.url) as lift:
        await lift.create_stream("orders", subject="orders.*", partitions=2)
    options = ("-n", "5", "--interval", "100ms", "--bucket-timeout", "40s")
    told = await asyncio.to_thread(cli.json, "canary", "--stream", "orders", *options)
    assert (told["ok"], told["acked"], told["unacked"]) == (True, 5, 0)
    for way in ("pull", "group", "bucket"):
        numbers = told["ways"][way]
        assert [numbers[name] for name in ("read", "late", "lost", "doubled")] == [5, 0, 0, 0], way
        assert 0 < numbers["median_s"] <= numbers["p99_s"]
    async with liftpy.connect(shared_nats.url) as lift:
        assert not [group for group in await lift.groups() if "canary-" in group.group]
        messages = await lift.to_arrow("orders")
        assert set(messages["subject"].to_pylist()) == {"orders.canary"}


async def test_messages_that_nobody_stores_fail_the_command(shared_nats, node, cli):
    async with liftpy.connect(shared_nats.url) as lift:
        await lift.create_stream("paused", subject="paused")
        await lift.pause_stream("paused")
    options = ("--stream", "paused", "-n", "1", "--no-bucket", "--json")
    told = json.loads((await asyncio.to_thread(cli.run, "canary", *options, code=1)).stdout)
    assert (told["ok"], told["unacked"], told["ways"]["pull"]["lost"]) == (False, 1, 0)
    assert "nowhere" in await asyncio.to_thread(cli.error, "canary", "--stream", "nowhere")


async def test_the_canary_of_a_node_is_in_its_metrics(shared_nats, node):
    async with liftpy.connect(shared_nats.url) as lift:
        await lift.create_stream("canary", subject="canary.liftpy")
        first = await eventually(
            lambda: (
                {name: count for name, count in metrics(node).items() if count}
                if metrics(node).get('liftpy_canary_read_total{way="bucket"}')
                else None
            ),
            90,
        )
        assert first['liftpy_canary_read_total{way="pull"}'] > 0
        assert first['liftpy_canary_read_total{way="group"}'] > 0
        assert first['liftpy_canary_seconds_count{way="ack"}'] == first["liftpy_canary_acked_total"]
        assert not [name for name in first if "lost" in name or "late" in name or "doubled" in name]
        assert metrics(node)["liftpy_canary_silent_seconds"] < 30
