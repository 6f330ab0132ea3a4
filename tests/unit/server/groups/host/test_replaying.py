"""A log is read back piece by piece, soon, and without standing in the way of what else the node does."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from liftpy_envelope.columns import Column
from liftpy_envelope.errors import BatchVersionError
from liftpy_envelope.pull import PartitionKey
from liftpy_log.errors import SegmentCorruptError
from liftpy_server.groups.core.records import CommittedOffset, GroupRecord, encode_offset, encode_records, offset_key
from liftpy_server.groups.host import replaying
from liftpy_server.groups.host.replaying import read_groups
from support.log_batches import zeros_body
from support.server_kit import NOW_NS, Kit

UUID = b"o" * 16


def offsets(count, start=0):
    value = encode_offset(CommittedOffset(1, 1, 1, 1, 1, "orders", b""))
    return [
        GroupRecord(offset_key(b"group-%d" % (number // 1_000), UUID + number.to_bytes(4, "big")), value)
        for number in range(start, start + count)
    ]


def filled(kit, count, size):
    partition = kit.partition
    for start in range(0, count, size):
        partition.append_body(encode_records(offsets(size, start)), NOW_NS)
    partition.end_pass()
    kit.sync()
    return partition


@pytest.fixture
def kit(tmp_path):
    kit = Kit(tmp_path, name="__consumer_offsets", subject="", acks="off", dedupe_ids_max=0)
    yield kit
    kit.close()


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as executor:
        yield executor


async def test_everything_committed_is_read(kit, executor, monkeypatch):
    monkeypatch.setattr(replaying, "READ_BYTES_MAX", 10_000)
    monkeypatch.setattr(replaying, "SLICE_ROWS", 7)
    partition = filled(kit, 3_000, 20)
    partition.log.roll()
    filled(kit, 100, 100)
    partition.append_body(encode_records(offsets(1, 5_000)), NOW_NS)  # is not committed
    replay = await read_groups(partition, kit.files, executor)
    assert len(replay.table) == 3_000
    assert replay.table.find(b"group-2", PartitionKey(UUID, 2_999)).offset == 1
    assert replay.table.find(b"group-5", PartitionKey(UUID, 5_000)) is None


async def test_an_empty_log_is_read(kit, executor):
    assert (await read_groups(kit.partition, kit.files, executor)).groups == []


@pytest.mark.parametrize(
    "body",
    [
        encode_records([GroupRecord(b"\x09what", b"")]),
        encode_records([GroupRecord(offset_key(b"g", bytes(20)), b"\x09")]),
    ],
)
async def test_what_a_newer_liftpy_wrote_is_said(kit, executor, body):
    kit.partition.append_body(body, NOW_NS)
    kit.partition.end_pass()
    kit.sync()
    with pytest.raises(BatchVersionError, match="upgrade"):
        await read_groups(kit.partition, kit.files, executor)


@pytest.mark.parametrize(
    ("count", "size"), [(50_000, 10_000), (20_000, 10), pytest.param(1_000_000, 1_000, marks=pytest.mark.slow)]
)
async def test_the_event_loop_goes_on_meanwhile(kit, executor, count, size):
    partition = filled(kit, count, size)
    longest_s, is_over = 0.0, False

    async def look():
        nonlocal longest_s
        before_s = time.thread_time()  # of this thread alone: the machine may be busy with other things
        while not is_over:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s

    looking = asyncio.ensure_future(look())
    began_s = time.process_time()
    replay = await read_groups(partition, kit.files, executor)
    spent_s, is_over = time.process_time() - began_s, True
    await looking
    print(f"{count / spent_s:,.0f} records/s in batches of {size}, the loop waited {longest_s * 1e3:.1f} ms at most")
    assert len(replay.table) == count
    assert longest_s < 0.05
    assert spent_s < 5


async def test_damage_is_said(kit, executor):
    partition = filled(kit, 10, 10)
    path = partition.log.active.path
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(SegmentCorruptError, match="checksum"):
        await read_groups(partition, kit.files, executor)
    assert partition.log.failure is not None, "a leader that can not read its log goes on leading"


async def test_a_batch_that_is_not_what_its_header_says_is_named_with_file_and_byte(kit, executor):
    partition = filled(kit, 10, 10)
    at = partition.log.active.size
    partition.append_body(zeros_body(Column.KEY | Column.VALUE), NOW_NS)
    partition.end_pass()
    kit.sync()
    with pytest.raises(SegmentCorruptError, match=f"{partition.log.active.path} is damaged at byte {at}: "):
        await read_groups(partition, kit.files, executor)
