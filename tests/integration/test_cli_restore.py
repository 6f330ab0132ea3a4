"""`liftpy restore`: every disk is lost, and one command brings everything back that the bucket has."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest

import liftpy
from support.cli import Cli, line_with
from support.cluster import NodeProcess, eventually, quick_options
from support.s3_servers import moto_server

COUNT = 60


@pytest.fixture
def bucket():
    with moto_server() as server:
        yield server


@pytest.fixture
def start(bucket, nats_server, tmp_path):
    """Starts a node with an empty disk; the node before is killed, and its disk is gone."""
    nodes = []

    def begin(prefix=tmp_path.name):
        if nodes:
            nodes[-1].kill()
            shutil.rmtree(nodes[-1].data)
        toml = f'[tier]\nurl = "{bucket.url(prefix)}"\nendpoint = "{bucket.endpoint}"\nupload_age_s = 0.2\n'
        environment = bucket.environment | {"AWS_EC2_METADATA_DISABLED": "true"}
        home = tmp_path / f"node{len(nodes)}"
        nodes.append(NodeProcess(nats_server.url, home, toml=toml if prefix else "", environment=environment).start())
        return nodes[-1]

    yield begin
    for node in nodes:
        node.kill()


async def read(lift, stream):
    found = [
        (message.partition, message.offset, message.value)
        async for message in lift.consume(stream, stop="latest", options=quick_options())
    ]
    return sorted(found)


@pytest.fixture
def fill(bucket, nats_server, tmp_path):
    """Makes two streams, all of which is in the bucket afterwards."""

    async def work():
        async with liftpy.connect(nats_server.url) as lift:
            await _fill(lift, bucket.store(tmp_path.name))
            return {name: await read(lift, name) for name in ("orders", "flights")}

    return lambda: asyncio.run(work())


async def _fill(lift, store):
    await lift.create_stream("orders", subject="orders.*", partitions=2)
    await lift.create_stream("flights", subject="flights.>")
    for number in range(COUNT):
        await lift.publish(f"orders.{number % 4}", b"%d" % number, key=b"%d" % number)
    await lift.publish("flights.x", b"1")

    async def is_there():
        found = await lift.tier_status()
        done = [each.tiered_end == each.high_watermark for each in found.partitions]
        body = store.get("catalog.json").body if all(done) and len(done) >= 3 else b""
        return b'"orders"' in body and b'"flights"' in body

    await eventually(is_there, 60, "the bucket does not get everything")


async def _read_all(nats_server, names):
    async with liftpy.connect(nats_server.url) as lift:
        return {name: await read(lift, name) for name in names}


async def _create(nats_server, name):
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream(name, subject=f"{name}.*")


def test_everything_comes_back(start, fill, bucket, nats_server, tmp_path):
    cli = Cli(nats_server.url, tmp_path)
    start()
    before = fill()
    start()
    where = ("--bucket", bucket.url(tmp_path.name))
    plan = cli.json("restore", *where, "--dry-run")
    assert (plan["dry_run"], plan["records"], plan["restored"]) == (True, COUNT + 1, [])
    assert plan["cluster_id"] != plan["own_cluster_id"]
    said = cli.out("restore", "--dry-run")
    assert "to come back" in line_with(said, "orders")
    assert "Recovery point: " in said
    assert "2 streams would be restored; nothing was changed" in said
    assert cli.json("stream", "ls", "--names") == []

    assert "2 of 2 streams back after" in cli.out("restore", *where)
    assert asyncio.run(_read_all(nats_server, before)) == before
    assert "nothing to restore: all streams of the bucket are here" in cli.out("restore")


def test_mistakes(start, fill, bucket, nats_server, tmp_path):
    cli = Cli(nats_server.url, tmp_path)
    start()
    fill()
    start()
    error = cli.error("restore", "--bucket", "s3://liftpy/another")
    assert f"this cluster has the bucket {bucket.url(tmp_path.name)}, not s3://liftpy/another" in error
    asyncio.run(_create(nats_server, "mine"))
    result = cli.run("restore", "--json", code=1)
    assert "a bucket is restored to an empty cluster" in json.loads(result.stderr)["error"]["message"]
    start(f"{tmp_path.name}-empty")
    assert "the bucket has nothing to restore" in cli.error("restore", "--dry-run")
    start(None)
    assert "this cluster has no bucket: start its nodes with --tier-url" in cli.error("restore")
    assert "--tier-url s3://liftpy/x" in cli.error("restore", "--bucket", "s3://liftpy/x")
