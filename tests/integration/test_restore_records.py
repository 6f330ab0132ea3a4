"""Every disk of three nodes is lost: what comes back is compared field by field, in the bucket and from nodes."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from datetime import UTC, datetime

import pytest

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.catalog import CatalogFile
from liftpy_bucket.objects.rows.convert import rows_of
from liftpy_bucket.reading.version import open_version
from liftpy_client.group.offsets import committed, reset_group
from liftpy_envelope.batch import HEADER_SIZE, read_header
from liftpy_envelope.pull import Api, FetchPartition, FetchRequest, PartitionKey
from support.cluster import eventually
from support.cluster_kit import ClusterKit, create, leader_of, settled
from support.raw_pull import RawPull, pull_token
from support.s3_servers import seaweedfs
from support.tier_kit import tier_toml

PREFIX = "records"
COLUMNS = ("offset", "leader_epoch", "timestamp_ns", "subject", "key", "headers", "value")
STREAMS = {
    "plain": {
        "subject": "plain.>",
        "keep_replies": True,
        "compression": "zstd",
        "segment_bytes": 65_536,
        "segment_age_s": 3_600.0,
        "local_retention_bytes": 131_072,
        "retention_age_s": 86_400.0,
        "retention_bytes": 1 << 30,
        "retention_messages": 1_000_000,
        "dedupe_window_s": 600.0,
        "dedupe_ids_max": 5_000,
        "message_bytes_max": 65_536,
        "ack_policy": "leader",
    },
    "parts": {"subject": "parts.*", "partitions": 3, "min_isr": 1, "acks": "reply", "dedupe_window_s": 900.0},
    "keyed": {
        "subject": "keyed",
        "compact": True,
        "min_compaction_lag_s": 3_600.0,
        "delete_retention_s": 7_200.0,
        "min_dirty_ratio": 0.25,
        "dedupe_window_s": 900.0,
    },
}
GROUPS = {"readers": {"plain": {0: 41}, "parts": {0: 5, 1: 6, 2: 7}}, "auditors": {"parts": {1: 3}, "keyed": {0: 9}}}
UPLOAD_AGE_S = 0.4
LOST = 25
LIMIT_S = 240  # three nodes start three times


@pytest.fixture
def s3(tmp_path):
    with seaweedfs(tmp_path / "s3") as server:
        yield server


@pytest.fixture
def kit(tmp_path, s3):
    kit = ClusterKit(tmp_path, toml=tier_toml(s3, PREFIX, upload_age_s=UPLOAD_AGE_S))
    for process in kit.nodes.values():
        process.environment |= s3.environment
    kit.start()
    yield kit
    kit.close()


async def publish(lift, count, tag):
    """So many messages to each stream, with and without keys, values, headers and ids."""
    acks = {}
    for number in range(count):
        for stream in STREAMS:
            subject = stream if stream == "keyed" else f"{stream}.{number % 13}"
            value = (None, b"", b"\x00\xff" * 40, f"{tag}-{number}".encode())[number % 4]
            key = None if number % 3 == 0 and stream != "keyed" else b"k%d" % (number % 9)
            headers = None if number % 5 == 0 else {"number": str(number), "empty": "", "text": "a b\tc"}
            name = f"{tag}-{stream}-{number}" if number % 2 else None
            ack = await lift.publish(subject, value, key=key, headers=headers, message_id=name)
            acks[stream, number] = (subject, key, name, ack)
    return acks


def rows(batches):
    return [row for batch in batches for row in zip(*_values(batch), strict=True)]


def _values(batch):
    replies = batch.column("reply").to_pylist() if "reply" in batch.schema.names else [None] * batch.num_rows
    return [*(batch.column(name).to_pylist() for name in COLUMNS), replies]


def in_bucket(store, infos):
    """(rows, end, leader epochs) of every partition, read without any node."""
    found = {}
    for name, info in infos.items():
        for number in range(len(info.partitions)):
            version = open_version(store, PartitionPath(info.uuid, number))
            found[name, number] = (
                ([], 0, ()) if version is None else (rows(version.read()), version.end, version.epochs)
            )
    return found


async def served(kit, lift, name):
    """Rows of every partition of a stream, as the record batches that its leader sends have them."""
    found = {}
    for number in range(len((await lift.stream_info(name)).partitions)):
        rows_of_it = []

        async def is_read(number=number, into=rows_of_it):
            info = await lift.stream_info(name)
            part = info.partitions[number]
            if part.leader is None or part.high_watermark is None:
                return False
            key = PartitionKey(bytes.fromhex(info.uuid), number)
            async with await RawPull.open(kit.nodes[part.leader].pull_port) as peer:
                await peer.hello(await pull_token(lift, part.leader))
                return await _fetched(peer, key, into, part.high_watermark)

        await eventually(is_read, 60, f"{name}[{number}] can not be read")
        found[name, number] = rows_of_it
    return found


async def _fetched(peer, key, into, end):
    """Whether all below `end` was read; what is in the bucket alone may come only after a while."""
    offset = into[-1][0] + 1 if into else 0
    async with asyncio.timeout(60):
        while offset < end:
            request = FetchRequest(1 << 20, 500, (FetchPartition(key, offset),))
            answer = await peer.request(int(Api.FETCH), request)
            if answer.error:  # another node leads it by now
                return False
            batches, position = [], 0
            while position < len(answer.body):
                header = read_header(answer.body, position)
                body = answer.body[position + HEADER_SIZE : position + header.length]
                batches.append(rows_of(header, body, keeps_replies=True))
                position += header.length
            into += [row for row in rows(batches) if offset <= row[0] < end]
            offset = into[-1][0] + 1 if into else 0
    return True


async def described(lift, names):
    return {name: await lift.stream_info(name) for name in names}


async def tiered(lift, store, names):
    """Wait until the bucket has what is committed, and the catalog every stream."""

    async def look():
        infos = await described(lift, names)
        marks = {
            (name, part.partition): part.high_watermark for name, info in infos.items() for part in info.partitions
        }
        there = await asyncio.to_thread(in_bucket, store, infos)
        loaded = await asyncio.to_thread(CatalogFile(store, new_id=str).load)
        named = set() if loaded is None else {stream.name for stream in loaded.catalog.streams.values()}
        return set(names) <= named and {key: end for key, (_, end, _) in there.items()} == marks

    await eventually(look, 90, f"the bucket does not get all of {names}")


async def offsets_of_groups(lift):
    return {
        (group, stream): await committed(lift._session, group, stream)
        for group, streams in GROUPS.items()
        for stream in streams
    }


async def change_leader(kit, lift):
    """The leader of a stream is killed and comes back, so that its history has another leader epoch."""
    name = await leader_of(lift, "plain")
    await asyncio.to_thread(kit.kill, name)

    async def is_led_by_another():
        return await leader_of(lift, "plain") != name

    await eventually(is_led_by_another, 60)
    await asyncio.to_thread(kit.start_nodes)
    await settled(lift, STREAMS)


def epochs_of(there):
    return {key: sorted({row[1] for row in found}) for key, (found, _, _) in there.items()}


async def restore_all(lift, held, newest_ns):
    """Restore what the plan says, which must be what the bucket holds."""
    plan = await lift.restore_plan()
    ends = {(stream.name, part.partition): part.end for stream in plan.streams for part in stream.partitions}
    assert ends == {key: end for key, (_, end, _) in held.items()}
    assert plan.records == sum(len(found) for found, _, _ in held.values())
    point = datetime.fromtimestamp(newest_ns / 1e9, UTC)
    assert plan.recovery_point is not None
    assert abs((plan.recovery_point - point).total_seconds()) < 1e-5
    outcomes = await lift.restore(plan)
    assert [(each.name, each.problem) for each in outcomes if each.problem] == []
    await settled(lift, [*STREAMS, "__consumer_offsets"])
    assert await lift.verify_restore(plan) == []


async def test_every_field_of_every_record_setting_and_offset_is_as_it_was(kit, s3):
    signal.alarm(LIMIT_S)
    store = s3.store(PREFIX)
    names = [*STREAMS, "__consumer_offsets"]
    async with kit.connect() as lift:
        for name, settings in STREAMS.items():
            await create(lift, name, **settings)
        acks = await publish(lift, 40, "first")
        await change_leader(kit, lift)
        await publish(lift, 40, "second")
        for group, offsets in GROUPS.items():
            await reset_group(lift._session, group, offsets)
        await tiered(lift, store, names)
        infos = await described(lift, names)
        positions = await offsets_of_groups(lift)
        before = {}
        for name in names:
            before |= await served(kit, lift, name)
        s3.kill()  # what comes now does not reach the bucket
        last_ns = time.time_ns()
        lost = await publish(lift, LOST, "lost")
    kit.kill(*kit.nodes)
    for process in kit.nodes.values():
        shutil.rmtree(process.data)
    s3.start()

    held = in_bucket(store, infos)
    assert {key: found for key, (found, _, _) in held.items()} == before, "the bucket has what the nodes had"
    assert len(epochs_of(held)["plain", 0]) >= 2, epochs_of(held)
    kept = sum(len(found) for found, _, _ in held.values())
    newest_ns = max(found[-1][2] for found, _, _ in held.values() if found)

    kit.start_nodes()
    async with kit.connect() as lift:
        await restore_all(lift, held, newest_ns)
        back = await described(lift, names)
        for name, info in infos.items():
            assert back[name].config == info.config, name
            assert (back[name].uuid, back[name].created) == (info.uuid, info.created), name
        assert await offsets_of_groups(lift) == positions
        after = {}
        for name in names:
            after |= await served(kit, lift, name)
        for key, found in before.items():
            assert after[key][: len(found)] == found, key
            assert all(row[1] > max(each[1] for each in found) for row in after[key][len(found) :]), key
        again = await asyncio.to_thread(in_bucket, store, infos)
        for key, (found, end, epochs) in held.items():
            assert again[key][0][: len(found)] == found, key
            assert again[key][2][: len(epochs)] == epochs, key
            assert again[key][1] >= end, key

        for stream, number in (("plain", 39), ("parts", 39), ("keyed", 39), ("plain", 1)):
            subject, key, name, ack = acks[stream, number]
            repeated = await lift.publish(subject, b"again", key=key, message_id=name)
            assert (repeated.duplicate, repeated.partition, repeated.offset) == (True, ack.partition, ack.offset)

    # The recovery point, in numbers: everything up to the store's end, nothing of what came after it.
    assert len(lost) == LOST * len(STREAMS)
    assert {row[7] for found, _, _ in held.values() for row in found} != {None}, "replies are compared, too"
    late_s = (last_ns - newest_ns) / 1e9
    print(f"recovery point: {kept} records kept, {len(lost)} lost, {late_s:.3f} s before the store went")
    assert late_s >= 0
