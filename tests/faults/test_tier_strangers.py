"""A bucket that others meddle with: what they put there stays, and what a rule took away is named and can come back."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

import liftpy
from liftpy_server.tier.reads.limits import HOLE_S
from support.cli import Cli
from support.cluster import NodeProcess, eventually, quick_options
from support.s3_servers import moto_server, seaweedfs
from support.tier_kit import tier_toml

QUIET = {"AWS_EC2_METADATA_DISABLED": "true"}
SETTINGS = {"segment_bytes": 65_536, "local_retention_bytes": 65_536}
COUNT = 1_000
OURS = f"{0:020d}-1-lost.parquet", f"{0:020d}-lost.parquet"


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory):
    with seaweedfs(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def versioned():
    with moto_server() as server:
        server.client().put_bucket_versioning(Bucket=server.bucket, VersioningConfiguration={"Status": "Enabled"})
        yield server


@pytest.fixture
def start(nats_server, tmp_path):
    """Starts a node with a bucket, which is gone afterwards."""
    made = []

    def begin(s3, **settings):
        toml = tier_toml(s3, tmp_path.name, upload_bytes=65_536, **settings)
        made.append(NodeProcess(nats_server.url, tmp_path / "node", toml=toml, environment=s3.environment | QUIET))
        return made[-1].start()

    yield begin
    for process in made:
        process.kill()


@pytest.fixture
def command(nats_server, tmp_path):
    """The command for a bucket."""

    def make(s3):
        where = {"LIFTPY_TIER_URL": s3.url(tmp_path.name), "LIFTPY_TIER_ENDPOINT": s3.endpoint}
        return Cli(nats_server.url, tmp_path, **s3.environment, **QUIET, **where)

    return make


async def publish(lift, subject, count=COUNT):
    async with lift.publisher(batch_bytes=16_384) as publisher:
        pending = [await publisher.publish(subject, b"%d " % number + bytes(300)) for number in range(count)]
    return [(await ack).offset for ack in pending]


async def tiered(lift, *streams):
    async def look():
        found = {each.stream: each for each in (await lift.tier_status()).partitions}
        return all(found[name].tiered_end == found[name].high_watermark > 0 for name in streams)

    await eventually(look, 60, f"the bucket does not get {streams}")


async def left_the_disk(lift, stream):
    async def look():
        return (await lift.stream_info(stream)).raw["partitions"][0]["local_start"]

    return await eventually(look, 40, "nothing leaves the disk")


async def offsets(lift, stream, start=0):
    options = quick_options()
    return [message.offset async for message in lift.consume(stream, start=start, stop="latest", options=options)]


def listed(s3, prefix):
    pages = s3.client().get_paginator("list_objects_v2").paginate(Bucket=s3.bucket, Prefix=f"{prefix}/")
    return [item["Key"].removeprefix(f"{prefix}/") for page in pages for item in page.get("Contents", ())]


async def test_what_strangers_put_into_our_folders_stays(nats_server, start, command, seaweed, tmp_path):
    process = start(seaweed, grace_s=0, set_member_bytes_max=8_192)
    seaweed.prefixes.discard(tmp_path.name)  # the audit would find what strangers left
    store, cli = seaweed.store(tmp_path.name), command(seaweed)
    async with liftpy.connect(nats_server.url) as lift:
        for name in ("s", "small", "gone"):
            await lift.create_stream(name, subject=name, **SETTINGS)
            await publish(lift, name, 10 if name == "small" else COUNT)
        await tiered(lift, "s", "small", "gone")
        await left_the_disk(lift, "s")
        uuids = {name: (await lift.stream_info(name)).uuid for name in ("s", "gone")}
        (node,) = {key.split("/")[1] for key in listed(seaweed, tmp_path.name) if key.startswith("sets/")}
        strangers = {
            key: b"theirs: " + key.encode()
            for key in [
                "holiday.jpg",
                "streams/holiday.jpg",
                "sets/README",
                f"sets/{node}/notes.txt",
                f"sets/{node}/objects/notes.txt",
                f"sets/{node}/objects/copy of {OURS[1]}",
                *(
                    f"streams/{uuid}/{name}"
                    for uuid in uuids.values()
                    for name in (
                        "notes.txt",
                        "0/notes.txt",
                        "0/fragments/_SUCCESS",
                        f"0/fragments/{OURS[0]}.bak",
                        "0/snapshots/notes.json",
                        "0/pins/notes.txt",
                        "7/fragments/notes.txt",
                    )
                ),
            ]
        }
        lost = [f"streams/{uuid}/0/fragments/{OURS[0]}" for uuid in uuids.values()]
        lost.append(f"sets/{node}/objects/{OURS[1]}")
        for key, body in strangers.items():
            store.create(key, body, "theirs")
        for key in lost:
            store.create(key, b"of an upload that failed", "ours")
        await lift.delete_stream("gone")

        assert "s/0: 1 object deleted" in await asyncio.to_thread(cli.out, "tier", "gc", "s", "--grace", "0s")

        async def is_collected():
            await publish(lift, "small", 1)  # who shares nothing new looks for nothing old
            return not set(lost) & set(listed(seaweed, tmp_path.name))

        await eventually(is_collected, 60, "nothing is collected, so that nothing says that others' objects stay")
        assert (await publish(lift, "s", 20))[-1] == COUNT + 19
        await tiered(lift, "s")
        assert await offsets(lift, "s") == list(range(COUNT + 20))
        status = await lift.tier_status()
        assert (status.state, [each.trouble for each in status.partitions]) == ("ok", [None, None])
    for arguments in (("verify",), ("scrub",), ("gc", "--grace", "0s"), ("export-list", "s"), ("cursor", "list")):
        said = await asyncio.to_thread(cli.out, "tier", *arguments)
        assert "notes.txt" not in said
    assert "all streams of the bucket are here" in await asyncio.to_thread(cli.out, "restore")
    process.stop()
    assert "holiday.jpg, which is not ours: move it elsewhere" in process.refused()
    assert {key: store.get(key).body for key in strangers} == strangers


async def test_an_object_that_a_lifecycle_rule_deleted_is_named_and_comes_back(
    nats_server, start, command, versioned, tmp_path
):
    process = start(versioned, set_member_bytes_max=0)
    client, cli = versioned.client(), command(versioned)
    async with liftpy.connect(nats_server.url) as lift:
        for name in ("s", "other"):
            await lift.create_stream(name, subject=name, **SETTINGS)
            await publish(lift, name)
            await tiered(lift, name)
            await left_the_disk(lift, name)
        await eventually(lambda: '"other"' in catalog(versioned, tmp_path.name), 40, "it is not in the catalog")
        prefix = f"{tmp_path.name}/streams/{(await lift.stream_info('s')).uuid}/0/fragments/"
        first = client.list_objects_v2(Bucket=versioned.bucket, Prefix=prefix)["Contents"][0]["Key"]
        marker = client.delete_object(Bucket=versioned.bucket, Key=first)
        assert marker["DeleteMarker"]
        key = first.removeprefix(f"{tmp_path.name}/")

        async with asyncio.timeout(40):
            with pytest.raises(liftpy.CorruptRecordsError) as refused:
                await offsets(lift, "s")
        said = re.search(
            rf"there is no object {key}; look what else is wrong with `liftpy tier scrub s`, restore the object, or "
            r"read from offset (\d+) on",
            str(refused.value),
        )
        assert said, str(refused.value)
        following = int(said[1])
        assert await offsets(lift, "s", following) == list(range(following, COUNT))
        for check in ("verify", "scrub"):
            result = await asyncio.to_thread(cli.run, "tier", check, "--json", code=1)
            partitions = json.loads(result.stdout)["partitions"]
            named = {(each["stream"], found["kind"], found["key"]) for each in partitions for found in each["problems"]}
            assert named == {("s", "missing", key)}
        assert await offsets(lift, "other") == list(range(COUNT))
        for name in ("s", "other"):
            assert (await publish(lift, name, 300))[-1] == COUNT + 299
        await tiered(lift, "s", "other")

        client.delete_object(Bucket=versioned.bucket, Key=first, VersionId=marker["VersionId"])
        assert "all is well" in await asyncio.to_thread(cli.out, "tier", "scrub", "s")
        await asyncio.sleep(HOLE_S)  # so long a node remembers that it was not there
        assert await offsets(lift, "s") == list(range(COUNT + 300))
    process.stop()
    assert "Traceback" not in process.log()


def catalog(s3, prefix):
    return s3.store(prefix).get("catalog.json").body.decode()


async def test_a_root_that_a_lifecycle_rule_deleted_keeps_its_stream_from_being_restored_empty(
    nats_server, start, command, versioned, tmp_path
):
    process = start(versioned, set_member_bytes_max=0)
    client, cli = versioned.client(), command(versioned)
    async with liftpy.connect(nats_server.url) as lift:
        for name in ("s", "other"):
            await lift.create_stream(name, subject=name)
            await publish(lift, name, 100)
        await tiered(lift, "s", "other")
        await eventually(lambda: '"other"' in catalog(versioned, tmp_path.name), 40, "it is not in the catalog")
        root = f"streams/{(await lift.stream_info('s')).uuid}/0/ROOT"
    process.stop()
    (tmp_path / "node" / "data").rename(tmp_path / "the disk that is lost")
    marker = client.delete_object(Bucket=versioned.bucket, Key=f"{tmp_path.name}/{root}")
    process.start()
    said = (await asyncio.to_thread(cli.run, "restore", code=1)).output
    assert f"there is no object {root}, and there was one" in said
    assert root not in listed(versioned, tmp_path.name), "a new root forgets what the bucket holds"
    async with liftpy.connect(nats_server.url) as lift:
        assert await offsets(lift, "other") == list(range(100))
        client.delete_object(Bucket=versioned.bucket, Key=f"{tmp_path.name}/{root}", VersionId=marker["VersionId"])
        await asyncio.to_thread(cli.out, "restore")
        assert await offsets(lift, "s") == list(range(100))
