"""`liftpy tier` against a node and a real S3 server: what scripts see, and what a mistake is answered with."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest

import liftpy
from support.cli import Cli
from support.cluster import NodeProcess, eventually, quick_options
from support.segments import stream_directory
from support.tier_kit import tier_toml

COUNT = 500
PREFIX = "cli"
QUIET = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}


@pytest.fixture
def node(nats_server, tmp_path, s3):
    toml = tier_toml(s3, PREFIX, set_member_bytes_max=0)
    process = NodeProcess(nats_server.url, tmp_path / "node", toml=toml, environment=s3.environment).start()
    yield process
    process.stop()


@pytest.fixture
def cli(nats_server, tmp_path, s3):
    """The command, with the bucket and its credentials in the environment."""
    where = {"LIFTPY_TIER_URL": s3.url(PREFIX), "LIFTPY_TIER_ENDPOINT": s3.endpoint}
    return Cli(nats_server.url, tmp_path, **s3.environment, **QUIET, **where)


async def read(lift, stream):
    return [message.value async for message in lift.consume(stream, stop="latest", options=quick_options())]


async def publish(lift, stream, first=0, count=COUNT):
    async with lift.publisher() as publisher:
        for number in range(first, first + count):
            await publisher.publish(f"{stream}.a", b"%d" % number)


async def tiered(lift, stream):
    async def look():
        found = await lift.tier_status()
        return any(
            each.stream == stream and each.tiered_end == each.high_watermark > 0 and not each.untiered_bytes
            for each in found.partitions
        )

    await eventually(look, 40, f"the bucket does not get {stream}")


@pytest.fixture
def there(nats_server, s3):
    """A stream of which the bucket has everything."""

    async def make(prefix=PREFIX):
        async with liftpy.connect(nats_server.url) as lift:
            await lift.create_stream("orders", subject="orders.*")
            await publish(lift, "orders")
            await tiered(lift, "orders")
            await eventually(lambda: _catalogued(s3, prefix), 40, "the stream is not in the catalog")

    return make


def test_a_life_in_the_bucket(nats_server, node, cli, s3, there):
    asyncio.run(there())
    status = cli.json("tier", "status")
    assert (status["state"], status["partitions"][0]["tiered_end"]) == ("ok", COUNT)
    assert "orders/0" in cli.out("tier", "status")
    (partition,) = cli.json("tier", "export-list", "orders")["partitions"]
    assert (partition["start"], partition["end"]) == (0, COUNT)
    for command in ("verify", "scrub"):
        assert f"offsets 0 to {COUNT}, {COUNT} records" in cli.out("tier", command, "orders")
    assert "orders/0:" in cli.out("tier", "gc", "orders")
    assert "merges by itself" in cli.error("tier", "merge", "orders")

    said = cli.out("tier", "fork", "orders", "copy", "--subject", "copy.*")
    assert f"copy/0 goes on at offset {COUNT} of orders" in said
    asyncio.run(_go_on(nats_server))
    assert "problems" not in cli.out("tier", "scrub")

    cli.out("tier", "seal", "copy", "--yes")
    asyncio.run(_publish_sealed(nats_server))
    assert "sealed" in cli.run("tier", "status", code=1).stdout

    keys = [each["key"] for each in cli.json("tier", "export-list", "orders")["partitions"][0]["objects"]]
    s3.store(PREFIX).delete([keys[0]])
    problems = json.loads(cli.run("tier", "scrub", "orders", "--json", code=1).stdout)["partitions"][0]["problems"]
    assert {(each["kind"], each["key"]) for each in problems} == {("missing", keys[0])}


async def _go_on(nats_server):
    """The fork has what the source has, and both go on by themselves, in the bucket too."""
    async with liftpy.connect(nats_server.url) as lift:
        assert await read(lift, "copy") == await read(lift, "orders") == [b"%d" % number for number in range(COUNT)]
        await publish(lift, "copy", COUNT, 10)
        await publish(lift, "orders", 0, 10)
        assert (await read(lift, "copy"))[-10:] == [b"%d" % number for number in range(COUNT, COUNT + 10)]
        assert (await read(lift, "orders"))[-10:] == [b"%d" % number for number in range(10)]
        await tiered(lift, "copy")
        await tiered(lift, "orders")


async def _publish_sealed(nats_server):
    """What comes now stays on disk, and the status tells."""
    async with liftpy.connect(nats_server.url) as lift:
        await publish(lift, "copy", 0, 10)
        assert len(await read(lift, "copy")) == COUNT + 20

        async def is_told():
            return any(each.trouble and "sealed" in each.trouble for each in (await lift.tier_status()).partitions)

        await eventually(is_told, 40, "nobody tells that the stream is sealed")


def test_the_only_log_is_lost_and_the_bucket_has_its_records(nats_server, tmp_path, s3, there):
    """An operator is told what the bucket has, keeps it as a fork, and then lets the stream begin anew."""
    toml = tier_toml(s3, "lost", set_member_bytes_max=0)
    node = NodeProcess(nats_server.url, tmp_path / "node", toml=toml, environment=s3.environment).start()
    where = {"LIFTPY_TIER_URL": s3.url("lost"), "LIFTPY_TIER_ENDPOINT": s3.endpoint}
    cli = Cli(nats_server.url, tmp_path, **s3.environment, **QUIET, **where)
    try:
        asyncio.run(there("lost"))
        assert node.stop() == 0
        shutil.rmtree(stream_directory(node.data, "orders"))
        node.start()

        shown = cli.json("stream", "recover", "orders", "--dry-run")["partitions"][0]
        assert (shown["leader"], shown["known_end"]) == (None, COUNT)
        assert (shown["bucket"]["end"], shown["bucket"]["problem"]) == (COUNT, "")
        assert f"records from offset 0 to {COUNT - 1} are in the bucket and not in the log" in shown["loss"]
        assert f"the bucket has the records below {COUNT}" in cli.out("stream", "recover", "orders", "--dry-run")
        assert "--accept-data-loss" in cli.error("stream", "recover", "orders", "--yes")

        cli.out("tier", "fork", "orders", "kept", "--subject", "kept.*")
        said = cli.out("stream", "recover", "orders", "--accept-data-loss", "--yes")
        assert "1 partitions of orders have a leader again" in said
        asyncio.run(_begin_anew(nats_server))
    finally:
        node.stop()


async def _begin_anew(nats_server):
    """The fork has all records, the stream has other ones under their offsets, and the bucket takes none of these."""
    async with liftpy.connect(nats_server.url) as lift:
        await publish(lift, "orders", COUNT, 10)
        assert await read(lift, "orders") == [b"%d" % number for number in range(COUNT, COUNT + 10)]
        assert await read(lift, "kept") == [b"%d" % number for number in range(COUNT)]

        async def is_told():
            return next(each.trouble for each in (await lift.tier_status()).partitions if each.stream == "orders")

        assert "holds another history" in await eventually(is_told, 40, "nobody tells that the bucket takes no more")


def _catalogued(s3, prefix):
    try:
        return b'"orders"' in s3.store(prefix).get("catalog.json").body
    except liftpy.LiftError:
        return False


@pytest.mark.parametrize(
    ("environment", "arguments", "said"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong-secret"}, (), "the secret key does not fit the access key"),
        ({"AWS_ACCESS_KEY_ID": "wrong-key"}, (), "does not know the access key"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, (), "credentials"),
        ({}, ("--bucket", "s3://another"), "has no such bucket"),
        ({}, ("--bucket", "s3://liftpy/elsewhere"), "has no catalog of liftpy: is the prefix right?"),
        ({}, ("--endpoint", "http://127.0.0.1:9"), "127.0.0.1:9"),
    ],
)
def test_mistakes(cli, s3, environment, arguments, said):
    cli.environment |= environment
    error = cli.error("tier", "verify", *arguments)
    assert said in " ".join(error.split())
    assert s3.environment["AWS_SECRET_ACCESS_KEY"] not in error
    assert "wrong-secret" not in error
