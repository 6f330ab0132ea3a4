"""Three nodes compact a stream each by itself: they agree on every key, also with one that was away, or begins anew."""

from __future__ import annotations

import pytest

from liftpy_envelope.batch import HEADER_SIZE, decode_records, read_header
from liftpy_envelope.columns import Column
from support.bad_days import NODES, in_sync, told
from support.cluster import eventually
from support.cluster_kit import create, leader_of, running_cluster, settled
from support.reading import read_all
from support.segments import segment_files

SETTINGS = {
    "compact": True,
    "segment_bytes": 65_536,
    "dedupe_window_s": 0.0,
    "min_dirty_ratio": 0.05,
    "delete_retention_s": 1.0,
}
KEYS = 50
DELETED = [b"key-%d" % number for number in range(10)]


@pytest.fixture
async def kit(tmp_path):
    toml = "[storage]\nretention_interval_s = 0.2\n"
    async with running_cluster(tmp_path, cluster={"replica_lag_max_s": 2.0}, toml=toml) as kit:
        yield kit


async def publish(lift, rows):
    async with lift.publisher(batch_bytes=8_192) as publisher:
        for key, value in rows:
            await publisher.publish("s", value, key=key)


def overwrites(first, count, keys):
    return [(keys[number % len(keys)], b"value %d " % number + bytes(60)) for number in range(first, first + count)]


def stored(node):
    """(offset, key, value) of every record in a node's files; None while they are being replaced."""
    rows = {}
    try:
        for path in segment_files(node.data, "s", 0):
            content, position = path.read_bytes(), 0
            while position + HEADER_SIZE <= len(content):
                header = read_header(content, position)
                records = decode_records(header, content[position + HEADER_SIZE : position + header.length])
                count = header.record_count
                has = {bit: bool(header.columns & bit) for bit in (Column.OFFSET_DELTA, Column.KEY, Column.VALUE)}
                deltas = records.column("offset_delta").to_pylist() if has[Column.OFFSET_DELTA] else range(count)
                keys = records.column("key").to_pylist() if has[Column.KEY] else [None] * count
                values = records.column("value").to_pylist() if has[Column.VALUE] else [None] * count
                for delta, key, value in zip(deltas, keys, values, strict=True):
                    rows[header.base_offset + delta] = (key, value)
                position += header.length
    except FileNotFoundError:
        return None
    return [(offset, *rows[offset]) for offset in sorted(rows)]


def last_values(node):
    """(offset, value) of every key that is not deleted."""
    rows = stored(node)
    if rows is None:
        return None
    last = {key: (offset, value) for offset, key, value in rows}
    return {key: found for key, found in last.items() if found[1] is not None}


async def agreed(kit, lift):
    """Wait until all replicas say the same of every key, and say what."""
    await settled(lift, ["s"])

    def same():
        first, *others = [last_values(kit.nodes[name]) for name in NODES]
        return first if first is not None and all(other == first for other in others) else None

    return await eventually(same, 40, "replicas do not agree")


async def test_replicas_agree_on_the_last_value_of_every_key(kit):
    keys = [b"key-%d" % number for number in range(KEYS)]
    async with kit.connect() as lift:
        await create(lift, "s", "s", **SETTINGS)
        await in_sync(lift, "s", NODES)
        await publish(lift, overwrites(0, 6_000, keys))
        for name in NODES:
            await eventually(lambda name=name: len(stored(kit.nodes[name]) or range(6_000)) < 2_000, 40, name)
        expected = await agreed(kit, lift)
        assert sorted(expected) == sorted(keys)
        leader = await leader_of(lift, "s")
        away = next(name for name in NODES if name != leader)

        kit.kill(away)
        await publish(lift, [(key, None) for key in DELETED])
        await publish(lift, overwrites(6_000, 4_000, keys[len(DELETED) :]))

        def tombstones_are_gone():
            return all(not {key for _, key, _ in stored(kit.nodes[leader]) or [(0, key, 0)]} & {key} for key in DELETED)

        async def gone():
            if tombstones_are_gone():
                return True
            await publish(lift, overwrites(10_000, 1_000, keys[len(DELETED) :]))
            return False

        await eventually(gone, 40, "tombstones stay")
        assert set(DELETED) <= set(last_values(kit.nodes[away])), "it has not heard of the deletions"
        kit.start_nodes([away])
        await in_sync(lift, "s", NODES)
        expected = await agreed(kit, lift)
        assert sorted(expected) == sorted(keys[len(DELETED) :])

        await lift.reassign_stream("s", partitions={0: [name for name in NODES if name != away]})
        await told(kit.nodes[away], "stream s partition 0 is kept by other nodes now")
        await lift.reassign_stream("s", replicas=3)
        await in_sync(lift, "s", NODES)
        assert await agreed(kit, lift) == expected
        shown = {}
        for message in await read_all(lift, "s"):
            shown[message.key] = (message.offset, message.value)
        assert expected == {key: found for key, found in shown.items() if found[1] is not None}
    for node in kit.nodes.values():
        assert "Traceback" not in node.log()
        assert "unclean" not in node.log()
