"""A real node moves history to a real S3 server: what the bucket has leaves the disk, whatever happens in between."""

from __future__ import annotations

import pytest

import liftpy
from support.cluster import NodeProcess, eventually
from support.cluster_kit import ClusterKit, leader_of
from support.tier_kit import tier_toml

COUNT = 2_000
SETTINGS = {"segment_bytes": 65_536, "local_retention_bytes": 65_536}


@pytest.fixture
def node(nats_server, tmp_path, s3):
    toml = tier_toml(s3, tmp_path.name)
    process = NodeProcess(nats_server.url, tmp_path / "node", toml=toml, environment=s3.environment).start()
    yield process
    process.stop()


async def publish(lift, subject, count=COUNT, size=300):
    async with lift.publisher(batch_bytes=16_384) as publisher:
        pending = [await publisher.publish(subject, b"%d " % number + bytes(size)) for number in range(count)]
    return [(await ack).offset for ack in pending]


async def numbers(lift, stream):
    """(local start, tiered end, high watermark) of the only partition."""
    (partition,) = (await lift.stream_info(stream)).raw["partitions"]
    return partition["local_start"], partition["tiered_end"], partition["high_watermark"]


async def tiered(lift, stream, timeout_s=60.0):
    """Wait until the bucket has everything."""

    async def look():
        _, end, mark = await numbers(lift, stream)
        return end == mark > 0

    await eventually(look, timeout_s, f"the bucket does not get stream {stream}")


async def dropped(lift, stream, at_least=1, timeout_s=60.0):
    """Wait until segments have left the disk."""

    async def look():
        start, _, _ = await numbers(lift, stream)
        return start if start >= at_least else None

    return await eventually(look, timeout_s, "nothing leaves the disk")


async def well(lift):
    """Wait until the node says that all is well with the bucket; what it says."""

    async def look():
        status = await lift.tier_status()
        return status if status.state == "ok" else None

    return await eventually(look, message="the bucket is not said to be well")


async def test_what_the_bucket_has_leaves_the_disk(nats_server, node, name):
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream(name, subject=name, **SETTINGS)
        await publish(lift, name)
        await tiered(lift, name)
        start = await dropped(lift, name)
        info = await lift.stream_info(name)
        assert info.messages == COUNT, "all of it can still be read"
        status = await well(lift)
        assert (status.message, status.since) == ("", None)
        mine = next(each for each in status.partitions if each.stream == name)
        assert (mine.start, mine.tiered_end, mine.high_watermark) == (0, COUNT, COUNT)
        assert mine.local_start >= start, "more may have left meanwhile"
        assert mine.stored_bytes > 0
        assert mine.trouble is None


async def test_it_goes_on_after_a_restart_and_after_a_kill(nats_server, node, name):
    for round_, end in enumerate((node.stop, node.kill, node.kill), 1):
        async with liftpy.connect(nats_server.url) as lift:
            await lift.create_stream(name, subject=name, **SETTINGS)
            await publish(lift, name)
            if round_ > 1:
                await tiered(lift, name)
                await dropped(lift, name, (round_ - 1) * COUNT - 500)
                assert (await lift.stream_info(name)).messages == round_ * COUNT
        end()
        node.start()
    async with liftpy.connect(nats_server.url) as lift:

        async def has_history():
            return (await lift.stream_info(name)).messages == 3 * COUNT

        await eventually(has_history, 40, "a new leader that has nothing to upload does not look at the bucket")


async def test_everything_stays_while_the_store_is_away(nats_server, node, name, s3):
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream(name, subject=name, **SETTINGS)
        await publish(lift, name, 10)
        await tiered(lift, name)
        s3.kill()
        try:
            offsets = await publish(lift, name)
            assert offsets[-1] == COUNT + 9

            async def is_away():
                return (await lift.tier_status()).state == "away"

            await eventually(is_away, 60, "nobody notices")
            status = await lift.tier_status()
            assert status.untiered_bytes > 300 * COUNT
            assert status.since is not None
            assert status.message
            start, end, _ = await numbers(lift, name)
            assert (start, end) == (0, 10)
        finally:
            s3.start()
        await tiered(lift, name, 90)
        await dropped(lift, name)
        await well(lift)


async def test_what_was_purged_before_it_was_uploaded_is_left_out(nats_server, node, name, s3):
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream(name, subject=name, **SETTINGS)
        await publish(lift, name, 10)
        await tiered(lift, name)
        s3.kill()
        try:
            await publish(lift, name)
            await lift.purge_stream(name, offset=COUNT)
            await publish(lift, name, 5)
        finally:
            s3.start()
        await tiered(lift, name, 90)
        (partition,) = (await lift.stream_info(name)).partitions
        assert (partition.log_start, partition.high_watermark) == (COUNT, COUNT + 15)
        status = await lift.tier_status()
        assert [each.trouble for each in status.partitions if each.stream == name] == [None]


async def test_total_retention_and_purges_move_the_start_in_the_bucket(nats_server, node, name):
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream(name, subject=name, **SETTINGS, retention_messages=COUNT // 2)
        await publish(lift, name)
        await tiered(lift, name)

        async def start():
            (partition,) = (await lift.stream_info(name)).partitions
            return partition.log_start

        async def is_retained():
            return 0 < await start() <= COUNT // 2

        await eventually(is_retained, 40, "retention does not move the start")
        await lift.purge_stream(name, offset=COUNT - 100)
        assert await start() == COUNT - 100


async def test_a_bucket_that_is_another_clusters_is_refused(nats_server, tmp_path, s3, node, name):
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream(name, subject=name, **SETTINGS)

        async def is_written():
            return s3.client().list_objects_v2(Bucket=s3.bucket, Prefix=f"{tmp_path.name}/catalog.json")["KeyCount"]

        await eventually(is_written, 40, "there is no catalog")
    node.stop()
    other = NodeProcess(nats_server.url, tmp_path / "other", environment=s3.environment).start()
    async with liftpy.connect(nats_server.url) as lift:
        await lift.create_stream(name, subject=name)
    other.stop()
    toml = tier_toml(s3, tmp_path.name)
    other = NodeProcess(nats_server.url, tmp_path / "other", toml=toml, environment=s3.environment)
    assert "belongs to cluster" in other.refused()


async def test_another_leader_goes_on(tmp_path, s3, name):
    toml = tier_toml(s3, tmp_path.name)
    kit = ClusterKit(tmp_path, toml=toml)
    for process in kit.nodes.values():
        process.environment |= s3.environment
    kit.start()
    try:
        async with kit.connect() as lift:
            await lift.create_stream(name, subject=name, replicas=3, **SETTINGS)
            await publish(lift, name)
            await tiered(lift, name)
            await dropped(lift, name)
            first = await leader_of(lift, name)
            kit.kill(first)

            async def is_led():
                return await leader_of(lift, name) != first

            await eventually(is_led, 40)
            await publish(lift, name)
            await tiered(lift, name, 60)
            start = await dropped(lift, name, COUNT)
            assert (await lift.stream_info(name)).messages == 2 * COUNT
            kit.start_nodes()

            async def followers_drop():
                others = [kit.nodes[node].data for node in kit.nodes]
                return all(
                    min((int(path.name[:20]) for path in data.glob(f"streams/{name}.*/0/*.log")), default=-1)
                    >= start - 500
                    for data in others
                )

            await eventually(followers_drop, 60, "followers keep what the bucket has")
    finally:
        kit.stop_nodes()
        kit.close()
