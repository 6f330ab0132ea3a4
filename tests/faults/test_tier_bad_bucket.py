"""Nodes whose bucket is not as it should be: they say so in a sentence, lose nothing, and go on with all else."""

from __future__ import annotations

import asyncio
import re

import pytest

import liftpy
from liftpy_bucket.manifest.json import FORMAT
from support.cluster import NodeProcess, eventually, quick_options
from support.manifest_kit import edited
from support.s3_proxy import S3Proxy
from support.tier_kit import tier_toml

SETTINGS = {"segment_bytes": 65_536, "local_retention_bytes": 65_536}
COUNT = 1_000


@pytest.fixture
def node(nats_server, tmp_path, s3):
    """Makes a node, which is gone afterwards."""
    made = []

    def make(toml=None, environment=None):
        toml = tier_toml(s3, tmp_path.name) if toml is None else toml
        made.append(
            NodeProcess(nats_server.url, tmp_path / "node", toml=toml, environment=environment or s3.environment)
        )
        return made[-1]

    yield make
    for process in made:
        process.kill()


async def publish(lift, subject, count=COUNT):
    async with lift.publisher(batch_bytes=16_384) as publisher:
        pending = [await publisher.publish(subject, b"%d " % number + bytes(300)) for number in range(count)]
    return [(await ack).offset for ack in pending]


async def in_state(lift, state, timeout_s=60.0):
    async def look():
        status = await lift.tier_status()
        return status if status.state == state else None

    return await eventually(look, timeout_s, f"the bucket is not said to be {state}")


async def tiered(lift, stream, timeout_s=60.0):
    async def look():
        (partition,) = (await lift.stream_info(stream)).raw["partitions"]
        return partition["tiered_end"] == partition["high_watermark"] > 0

    await eventually(look, timeout_s, f"the bucket does not get {stream}")


async def dropped(lift, stream):
    async def look():
        return (await lift.stream_info(stream)).raw["partitions"][0]["local_start"]

    return await eventually(look, 40, "nothing leaves the disk")


@pytest.mark.parametrize("what", ["wrong credentials", "missing bucket"])
async def test_a_bucket_that_does_not_let_us_in(nats_server, node, s3, tmp_path, what):
    toml, environment = tier_toml(s3, tmp_path.name), dict(s3.environment)
    if what == "wrong credentials":
        environment["AWS_SECRET_ACCESS_KEY"] = "not" + environment["AWS_SECRET_ACCESS_KEY"]
    else:
        toml = toml.replace("s3://liftpy/", "s3://no-such-bucket/")
    process = node(toml, environment).start()
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream("s", subject="s", **SETTINGS)
        status = await in_state(lift, "refused")
        assert ("bucket" if what == "missing bucket" else "credentials") in status.message.lower(), status.message
        assert environment["AWS_SECRET_ACCESS_KEY"] not in status.message + process.log()
        assert (await publish(lift, "s"))[-1] == COUNT - 1
        assert (await lift.stream_info("s")).raw["partitions"][0]["local_start"] == 0, (
            "it has left the disk for nowhere"
        )
    assert "Traceback" not in process.log()


async def test_a_bucket_that_a_newer_version_wrote_is_left_alone(nats_server, node, s3, tmp_path):
    process = node().start()
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream("s", subject="s", **SETTINGS)
        await publish(lift, "s", 10)
        await tiered(lift, "s")
    process.stop()
    client, key = s3.client(), f"{tmp_path.name}/catalog.json"
    body = client.get_object(Bucket=s3.bucket, Key=key)["Body"].read()
    newer = edited(body, lambda plain: plain.update(format=FORMAT + 1))
    client.put_object(Bucket=s3.bucket, Key=key, Body=newer)
    s3.prefixes.discard(tmp_path.name)  # nobody here can audit it
    said = process.refused()
    assert "newer" in said


async def test_a_prefix_with_objects_that_are_not_ours_is_left_alone(node, s3, tmp_path):
    s3.client().put_object(Bucket=s3.bucket, Key=f"{tmp_path.name}/holiday.jpg", Body=b"a beach")
    # a node without streams starts, for it may be about to be restored; and says what is wrong
    process = node()
    process.start()
    await eventually(lambda: "holiday.jpg" in process.log(), 40, "nobody says that there is something else")
    process.stop()
    assert "Traceback" not in process.log()
    s3.prefixes.discard(tmp_path.name)
    found = s3.client().list_objects_v2(Bucket=s3.bucket, Prefix=f"{tmp_path.name}/")["Contents"]
    assert [each["Key"] for each in found] == [f"{tmp_path.name}/holiday.jpg"]


async def test_clocks_that_differ_are_named_and_mended(nats_server, node, s3, tmp_path):
    with S3Proxy(s3.endpoint) as proxy:
        process = node(tier_toml(s3, tmp_path.name).replace(s3.endpoint, proxy.endpoint)).start()
        async with liftpy.connect(nats_server.url) as lift:
            await lift.create_stream("s", subject="s", **SETTINGS)
            await publish(lift, "s", 10)
            await tiered(lift, "s")
            proxy.skew(True)
            assert (await publish(lift, "s"))[-1] == COUNT + 9

            async def is_named():
                status = await lift.tier_status()
                return status.state != "ok" and "clock" in status.message

            await eventually(is_named, 40, "nobody says that clocks differ")
            proxy.skew(False)
            await tiered(lift, "s", 80)
        assert "Traceback" not in process.log()
        process.stop()


async def read_from(lift, stream, start):
    """How many records come from an offset on."""
    return len([m async for m in lift.consume(stream, start=start, stop="latest", options=quick_options())])


async def test_an_object_that_was_deleted_by_hand_is_named_and_all_else_goes_on(nats_server, node, s3, tmp_path):
    process = node(tier_toml(s3, tmp_path.name, upload_bytes=65_536, set_member_bytes_max=0)).start()
    async with liftpy.connect(nats_server.url) as lift:
        for name in ("s", "other"):
            await lift.create_stream(name, subject=name, **SETTINGS)
            await publish(lift, name)
            await tiered(lift, name)
            await dropped(lift, name)
        uuid, client = (await lift.stream_info("s")).uuid, s3.client()
        prefix = f"{tmp_path.name}/streams/{uuid}/0/fragments/"
        first = client.list_objects_v2(Bucket=s3.bucket, Prefix=prefix)["Contents"][0]["Key"]
        client.delete_object(Bucket=s3.bucket, Key=first)

        key = first.removeprefix(f"{tmp_path.name}/")
        async with asyncio.timeout(40):
            with pytest.raises(liftpy.CorruptRecordsError) as refused:
                await read_from(lift, "s", 0)
        said = re.fullmatch(
            rf"stream s partition 0: what is at offsets 0 to (\d+) can not be read from the bucket: there is no object "
            rf"{key}; look what else is wrong with `liftpy tier scrub s`, restore the object, or read from offset "
            r"(\d+) on",
            str(refused.value),
        )
        assert said, str(refused.value)
        following = int(said[2])
        assert following == int(said[1]) + 1
        assert await read_from(lift, "s", following) == COUNT - following
        async with lift.consume("s", start=0, stop="latest", options=quick_options()) as consumer:
            with pytest.raises(liftpy.CorruptRecordsError):
                await anext(aiter(consumer))
            consumer.seek(following)
            assert [message.offset async for message in consumer] == list(range(following, COUNT))
        assert f"stream s partition 0: offset 0 is in the bucket: there is no object {key}" in process.log()
        assert await read_from(lift, "other", 0) == COUNT
        local = (await lift.stream_info("s")).raw["partitions"][0]["local_start"]
        assert await read_from(lift, "s", local) == COUNT - local
        assert (await publish(lift, "s", 5))[-1] == COUNT + 4
        await tiered(lift, "s")
    process.stop()


async def test_a_stream_of_the_same_name_begins_anew_while_the_old_one_is_in_the_bucket(
    nats_server, node, s3, tmp_path
):
    process = node().start()
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream("s", subject="s", **SETTINGS)
        await publish(lift, "s")
        await tiered(lift, "s")
        old = (await lift.stream_info("s")).uuid
        await lift.delete_stream("s")
        found = s3.client().list_objects_v2(Bucket=s3.bucket, Prefix=f"{tmp_path.name}/streams/{old}/")
        assert found["KeyCount"] > 0
        await lift.create_stream("s", subject="s", **SETTINGS)
        assert (await publish(lift, "s", 20))[0] == 0
        await tiered(lift, "s")
        assert (await lift.stream_info("s")).uuid != old
        assert await read_from(lift, "s", 0) == 20
        assert [each.trouble for each in (await lift.tier_status()).partitions if each.stream == "s"] == [None]
    process.stop()
    assert "Traceback" not in process.log()


async def test_a_root_that_was_deleted_under_a_leader_is_named_and_can_be_put_back(nats_server, node, s3, tmp_path):
    process = node().start()
    async with liftpy.connect(nats_server.url) as lift:
        for name in ("s", "other"):
            await lift.create_stream(name, subject=name, **SETTINGS)
        await publish(lift, "s")
        await tiered(lift, "s")
        await dropped(lift, "s")
        place = f"{tmp_path.name}/streams/{(await lift.stream_info('s')).uuid}/0"
        root = {"Bucket": s3.bucket, "Key": f"{place}/ROOT"}
        client = s3.client()
        body = client.get_object(**root)["Body"].read()
        client.delete_object(**root)
        await publish(lift, "s")  # nobody asks for the root before

        async def troubled():
            (partition,) = [each for each in (await lift.tier_status()).partitions if each.stream == "s"]
            return partition.trouble

        assert "ROOT" in await eventually(troubled, 60, "nobody misses the root")
        before = objects(s3, place)
        failures = (await lift.tier_status()).failures["missing"]
        await publish(lift, "other")
        await tiered(lift, "other")

        async def missed_again():
            return (await lift.tier_status()).failures["missing"] > failures + 1

        await eventually(missed_again, 60, "it is not tried again")
        assert objects(s3, place) == before, "each attempt leaves an object that nobody names"
    process.stop()
    process.start()
    async with liftpy.connect(nats_server.url) as lift:
        assert "Put it back" in await eventually(troubled, 60, "nobody misses the root after a restart")
        assert objects(s3, place) == before, "a new root forgets what has left the disk"
        client.put_object(**root, Body=body)
        await tiered(lift, "s", 90)
        assert await troubled() is None
        messages = [message async for message in lift.consume("s", start="earliest", stop="latest")]
        assert [message.offset for message in messages] == list(range(2 * COUNT))
    assert "Traceback" not in process.log()


def objects(s3, prefix):
    listed = s3.client().list_objects_v2(Bucket=s3.bucket, Prefix=prefix)
    return sorted(each["Key"] for each in listed["Contents"])
