"""Three nodes lose every disk at once, and come back from the bucket with every record that had reached it."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.catalog import CatalogFile
from liftpy_bucket.reading.version import open_version
from liftpy_client.errors import LogDivergedError, NoStreamError, OffsetLostError
from liftpy_client.group.offsets import committed
from support.cluster import eventually, quick_options
from support.cluster_kit import ClusterKit, create, settled
from support.s3_servers import seaweedfs
from support.tier_kit import tier_toml

PREFIX = "lost"
QUIET = [f"quiet{number}" for number in range(4)]
STREAMS = {
    "plain": {"keep_replies": False, "compression": "zstd"},
    "parts": {"partitions": 4, "subject": "parts.>"},
    "compacted": {"compact": True, "min_dirty_ratio": 0.1},
    "purged": {},
    **{name: {} for name in QUIET},
}
COLUMNS = ("offset", "leader_epoch", "timestamp_ns", "subject", "key", "headers", "value")


@pytest.fixture
def s3(tmp_path):
    with seaweedfs(tmp_path / "s3") as server:
        yield server


@pytest.fixture
def kit(tmp_path, s3):
    kit = ClusterKit(tmp_path, toml=tier_toml(s3, PREFIX))
    for process in kit.nodes.values():
        process.environment |= s3.environment
    kit.start()
    yield kit
    kit.close()


async def publish(lift, stream, count, tag):
    async with lift.publisher() as publisher:
        for number in range(count):
            subject = f"parts.{number % 7}" if stream == "parts" else stream
            headers = {"number": str(number), "empty": ""} if number % 3 else None
            value = None if number % 10 == 9 else f"{tag}{number}".encode()
            await publisher.publish(subject, value, key=b"k%d" % (number % 7), headers=headers)


async def ends(lift, stream):
    return {each.partition: each.high_watermark for each in (await lift.stream_info(stream)).partitions}


def in_bucket(store, uuid, partitions):
    """(records by offset, end) of each partition, read without any node."""
    found = {}
    for number in range(partitions):
        version = open_version(store, PartitionPath(uuid, number))
        rows = [] if version is None else [row for batch in version.read() for row in _plain(batch)]
        found[number] = ({row[0]: row for row in rows}, version.end if version else 0)
    return found


def _plain(batch):
    return zip(*[batch.column(name).to_pylist() for name in COLUMNS], strict=True)


async def catalogued(store):
    """Wait until the catalog names all streams that are there, and knows which one was deleted."""

    def is_there():
        streams = CatalogFile(store, new_id=str).load().catalog.streams.values()
        named = {stream.name for stream in streams if stream.deleted_ns is None}
        return set(STREAMS) <= named and "deleted" not in named

    await eventually(is_there, 40, "the catalog does not name the streams")


async def tiered(lift, store, stream):
    """Wait until the bucket has what is committed now."""
    info = await lift.stream_info(stream)
    wanted = await ends(lift, stream)

    async def is_there():
        there = await asyncio.to_thread(in_bucket, store, info.uuid, len(wanted))
        return {number: end for number, (_, end) in there.items()} == wanted

    await eventually(is_there, 60, f"the bucket does not get {stream}")


async def read(lift, stream):
    return sorted(
        [
            (message.partition, message)
            async for message in lift.consume(stream, stop="latest", options=quick_options())
        ],
        key=lambda row: (row[0], row[1].offset),
    )


def newest_of_keys(rows):
    return sorted({row[1].key: row for row in rows}.values(), key=lambda row: row[1].offset)


async def test_every_record_that_had_reached_the_bucket_is_there_again(kit, s3):
    store = s3.store(PREFIX)
    async with kit.connect() as lift:
        for name, settings in STREAMS.items():
            await create(lift, name, **({"subject": name} | settings))
        await create(lift, "deleted", "deleted")
        for name in [*STREAMS, "deleted"]:
            await publish(lift, name, 5 if name in QUIET else 400, "v")
        await lift.purge_stream("purged", offset=250)
        async with lift.consume("plain", group="readers", options=quick_options()) as consumer:
            async for message in consumer:
                if message.offset == 199:
                    break
            await consumer.commit({("plain", 0): 200})
        position = {number: row.offset for number, row in (await committed(lift._session, "readers", "plain")).items()}
        for name in [*STREAMS, "deleted", "__consumer_offsets"]:
            await tiered(lift, store, name)
        await lift.delete_stream("deleted")
        await catalogued(store)
        before = {name: await lift.stream_info(name) for name in STREAMS}
        s3.kill()  # what comes now does not reach the bucket
        await publish(lift, "plain", 30, "lost")
        seen = {name: await read(lift, name) for name in STREAMS}
        lost_end = (await ends(lift, "plain"))[0]
    kit.kill(*kit.nodes)
    for process in kit.nodes.values():
        shutil.rmtree(process.data)
    s3.start()
    held = {name: in_bucket(store, info.uuid, len(info.partitions)) for name, info in before.items()}
    assert len(held["plain"][0][0]) == 400
    kit.start_nodes()
    async with kit.connect() as lift:
        plan = await lift.restore_plan()
        assert {stream.name for stream in plan.streams} >= set(STREAMS), plan
        points = {stream.name: {each.partition: each.end for each in stream.partitions} for stream in plan.streams}
        for name in STREAMS:
            assert points[name] == {number: end for number, (_, end) in held[name].items()}
        assert "deleted" not in points
        outcomes = await lift.restore(plan)
        assert {each.name for each in outcomes if each.restored} >= set(STREAMS)
        assert [each for each in outcomes if each.problem] == []
        await settled(lift, STREAMS)
        assert await lift.verify_restore(plan) == []
        for name, info in before.items():
            back = await lift.stream_info(name)
            assert (back.uuid, back.created, back.config.subject) == (info.uuid, info.created, info.config.subject)
            assert await ends(lift, name) == points[name]
            wanted = [row for row in seen[name] if row[1].offset < points[name][row[0]]]
            found = await read(lift, name)
            if name == "compacted":  # how far it is compacted depends on the moment; the newest of each key is there
                assert {row[1].offset for row in found} <= {row[1].offset for row in wanted}
                found, wanted = newest_of_keys(found), newest_of_keys(wanted)
            assert found == wanted, name
            assert {(number, message.offset) for number, message in wanted} <= {
                (number, offset) for number, (rows, _) in held[name].items() for offset in rows
            }
        assert (await lift.stream_info("purged")).partitions[0].log_start == 250
        assert position == {
            number: row.offset for number, row in (await committed(lift._session, "readers", "plain")).items()
        }
        with pytest.raises(NoStreamError):
            await anext(aiter(lift.consume("deleted", options=quick_options())))
        with pytest.raises((OffsetLostError, LogDivergedError)):
            await anext(aiter(lift.consume("plain", start=lost_end, options=quick_options())))
        await publish(lift, "plain", 10, "new")
        assert (await ends(lift, "plain"))[0] == points["plain"][0] + 10
