"""Every kind of file that a node has, damaged on one copy: named or repaired, never served, never silently shorter."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError, BatchVersionError
from liftpy_envelope.stream_config import StreamConfig
from liftpy_log.checkpoint import Checkpoint, open_checkpoint, save_checkpoint
from liftpy_log.compaction.state import Cleaned, save_cleaned
from liftpy_log.data_dir import DataDir
from liftpy_log.durability.wal import WriteAheadLog, replay_wal
from liftpy_log.errors import SegmentCorruptError, WalCorruptError
from liftpy_log.segments.scan import read_batch
from liftpy_log.storage.files import FileCache
from liftpy_server.metadata.state import MetadataState, NodeInfo, PartitionInfo, StreamInfo
from liftpy_server.partition.committing import Load
from liftpy_server.replication.host.durability_record import DurabilityRecord
from liftpy_server.streams.opening import StreamOpening
from support.damage import flipped, swapped, zeroed
from support.durability_records import proven
from support.gap_notes import GapNotes
from support.log_batches import headers_of, with_times
from support.server_kit import SetClock
from support.simdisk import ROOT, SimDisk

UUID = "ab" * 16
NODES = ("n1", "n2", "n3")
PARTITION = PartitionInfo(replicas=NODES, isr=NODES, leader="n2", leader_epoch=3)
INFO = StreamInfo(
    uuid=UUID, config=StreamConfig(name="s", subject="s", replicas=3), created_ns=1, partitions=(PARTITION,)
)
STATE = MetadataState(
    nodes={name: NodeInfo(node_id=name, incarnation=1, pull_host="h", pull_port=1) for name in NODES},
    streams={"s": INFO},
)
DIRECTORY = ROOT / "streams" / f"s.{UUID}" / "0"
GONE_BELOW = 9


class Opened(NamedTuple):
    """What the node found when it started."""

    partition: object
    state: object
    record: DurabilityRecord
    is_proven: bool
    files: FileCache


class Original(NamedTuple):
    disk: SimDisk
    batches: dict[int, bytes]
    end: int


def opening_on(disk, checkpoint, record):
    files = FileCache(disk, 16)
    return files, StreamOpening(
        *("n1", disk, files, DataDir(ROOT, -1), checkpoint, SetClock(), SimpleNamespace(flush=lambda: None), Load()),
        *(lambda _log: None, GapNotes(), record),
    )


def start(disk, info=INFO):
    """As `Node` does, without the metadata between."""
    data_dir = DataDir(ROOT, -1)
    checkpoint, is_doubtful = open_checkpoint(disk, data_dir.checkpoint_path, data_dir.quarantine_directory)
    record = DurabilityRecord(disk, ROOT / "standing.json", "boot", is_doubtful=is_doubtful)
    try:
        replay_wal(disk, data_dir.wal_directory, ROOT, record.wal_torn)
    except WalCorruptError:
        record.doubt()
        raise
    files, opening = opening_on(disk, checkpoint, record)
    asyncio.run(opening.open_logs(STATE))
    is_proven = record.is_proven(STATE, "n1", was_clean=checkpoint.clean)
    is_proven = is_proven and not record.lost_logs(STATE, "n1") and not record.cut_logs(STATE, "n1")
    local = opening.begin(info)
    opening.open_partition(local, 0)
    return Opened(local.partitions[0], local.state, record, is_proven, files)


@pytest.fixture(scope="module")
def original():
    """Four segments with indexes, a cut that is done, and two rounds of the write-ahead log that they lack."""
    disk = SimDisk()
    disk.make_directory(ROOT)
    record = proven(disk, ROOT)
    files, opening = opening_on(disk, Checkpoint(), record)
    local = opening.begin(INFO)
    opening.open_partition(local, 0)
    log = local.partitions[0].log
    batches = {}

    def append(epoch):
        data = with_times(log.log_end, range(log.log_end * 10, log.log_end * 10 + 12), epoch)
        (header,) = headers_of(data)
        batches[header.base_offset] = data
        log.append_batches(data, [header])

    for epoch, count in enumerate((5, 5, 6)):
        for _ in range(count):
            append(epoch)
        log.roll()
    for _ in range(4):
        append(3)
    cut = list(batches)[-1]
    log.truncate(cut)
    del batches[cut]
    save_cleaned(disk, DIRECTORY, Cleaned(3, GONE_BELOW, 2, ((3, 4),)))
    save_checkpoint(disk, ROOT / "checkpoint", Checkpoint(True, {(bytes.fromhex(UUID), 0): log.log_end}))
    record.log_failed("cd" * 16, 0, "a stream of which nothing is here")
    wal = WriteAheadLog(disk, ROOT / "wal", ROOT)
    ends = []
    for _ in range(2):  # only the first of them must not be lost: the second proves it
        append(3)
        ends.append(log.log_end)
        wal.write_round([(log.durability, log.durability.sync_target()[1][-1:])])
    active = log.active.path
    position = log.active.size - sum(len(data) for data in list(batches.values())[-2:])
    log.close()
    files.close()
    disk.overwrite(active, disk.content(active)[:position])
    return Original(disk, batches, ends[0])


def files_by_kind(disk):
    kinds: dict[str, list] = {}
    newest = max(disk.files(".log"))
    for path, data in disk.files().items():
        if data:
            kind = path.name if path.suffix == ".json" else path.suffix or path.name
            kinds.setdefault("active" if path == newest else kind, []).append(path)
    return kinds


def read_all(opened):
    """The batches that a reader gets, by base offset, and the error at which it ended."""
    log, got = opened.partition.log, {}
    offset = log.log_start
    try:
        while offset < log.log_end:
            for piece in log.read(offset, log.log_end, 1 << 20):
                file, position = opened.files.get(piece.segment), piece.position
                while position < piece.position + piece.length:
                    try:
                        header, _ = read_batch(file, position, piece.segment.size)
                    except (BatchCorruptError, BatchTruncatedError, BatchVersionError) as error:
                        raise SegmentCorruptError(piece.segment.path, position, str(error)) from error
                    got[header.base_offset] = file.read(position, header.length)
                    position += header.length
                    offset = header.next_offset
    except SegmentCorruptError as error:
        return got, error
    return got, None


def check(original, opened, path, told):
    log = opened.partition.log
    if log.failure is not None:
        assert str(path.parent) in str(log.failure)
        assert opened.record.why_failed(UUID, 0) is not None, "it would be forgotten by a restart"
        return "offline"
    got, error = read_all(opened)
    assert all(original.batches[base] == data for base, data in got.items()), "bytes were served that nobody wrote"
    if error is not None:
        assert str(path) in str(error)
        return "named when it is read"
    if log.log_end < original.end:
        assert not opened.is_proven, "the log is shorter, and nobody knows"
        return "unproven"
    assert sum(len(data) for base, data in got.items() if base < original.end) == sum(
        len(data) for base, data in original.batches.items() if base < original.end
    )
    assert log.compaction.delete_horizon >= GONE_BELOW
    if path.name in {"checkpoint", "standing.json"}:
        assert not opened.is_proven
        assert str(path) in told
        return "set aside"
    return "repaired"


EXPECTED = {
    ".log": {"offline", "named when it is read"},
    "active": {"offline", "repaired"},  # what the write-ahead log has is written anew
    ".index": {"repaired"},
    ".timeindex": {"repaired"},
    "checkpoint": {"set aside"},
    "standing.json": {"set aside"},
    "cut": {"offline"},
    "cleaned": {"repaired"},
    ".wal": {"refused", "repaired", "unproven", "offline"},
}


def outcome(original, disk, path, caplog):
    """Start, look at everything, and say what became of the damage."""
    caplog.clear()
    refused = None
    with caplog.at_level(logging.WARNING):
        try:
            opened = start(disk)
        except WalCorruptError as error:
            refused = str(error)
    if refused is None:
        return check(original, opened, path, caplog.text)
    assert str(path) in refused
    again = DurabilityRecord(disk, ROOT / "standing.json", "boot")
    assert not again.is_proven(STATE, "n1", was_clean=True), "who moves it away does not know what was in it"
    return "refused"


@pytest.mark.parametrize("times", [8, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", sorted(EXPECTED))
def test_damage_is_named_or_repaired(original, kind, times, caplog):
    paths, seen = files_by_kind(original.disk)[kind], set()
    for seed in range(times):
        for spoil in (flipped, zeroed, swapped):
            rng = random.Random(f"{kind} {seed}")
            path = rng.choice(paths)
            before = original.disk.content(path)
            after = spoil(before, rng)
            if after == before:
                continue
            disk = original.disk.kill()
            disk.overwrite(path, after)
            try:
                seen.add(outcome(original, disk, path, caplog))
            except Exception as error:
                error.add_note(f"{spoil.__name__} {kind} {path.name}, seed {seed}")
                raise
    assert seen
    assert seen <= EXPECTED[kind]


@pytest.mark.parametrize("spoil", [flipped, zeroed, swapped])
def test_damage_at_the_end_of_a_log_is_named_or_leaves_a_doubt(original, spoil, caplog):
    """Of the last batches no checkpoint knows yet that they were durable, and the write-ahead log is through."""
    whole = original.disk.kill()
    end = start(whole).partition.log.log_end
    path, seen = max(whole.files(".log")), set()
    content = whole.content(path)
    tail = sum(len(data) for data in list(original.batches.values())[-2:])
    for seed in range(20):
        disk = whole.kill()
        after = content[:-tail] + spoil(content[-tail:], random.Random(seed))
        if after != content:
            disk.overwrite(path, after)
            seen.add(outcome(original._replace(end=end), disk, path, caplog))
    assert seen <= {"offline", "unproven"}
    assert "unproven" in seen


def test_every_kind_of_file_is_damaged(original):
    assert set(files_by_kind(original.disk)) == set(EXPECTED)


def test_what_is_not_damaged_is_whole(original):
    opened = start(original.disk.kill())
    got, error = read_all(opened)
    assert (got, error, opened.is_proven) == (original.batches, None, True)


@pytest.fixture
def damaged(original):
    """A disk on which a reader found damage where nobody looks when the log is opened, and the segment."""
    disk = original.disk.kill()
    path = min(disk.files(".log"))
    content = bytearray(disk.content(path))
    content[len(next(iter(original.batches.values()))) + 300] ^= 1  # a bit in the body of the second batch
    disk.overwrite(path, content)
    opened = start(disk)
    assert opened.partition.log.failure is None
    _, error = read_all(opened)
    opened.partition.fail(str(error))
    return disk, path


def test_known_damage_is_known_after_restarts(damaged):
    disk, path = damaged
    for _ in range(3):
        disk = disk.kill()
        opened = start(disk)
        assert str(path) in str(opened.partition.log.failure)
        assert opened.record.lost_logs(STATE, "n1") == opened.record.failed_logs(STATE, "n1") == [(UUID, 0)]
        opened.record.doubt_recorded(STATE, "n1")


@pytest.mark.parametrize("isr", [(), ("n1",)])
def test_a_log_that_nobody_else_has_works_again_when_all_of_it_is_well(original, damaged, isr):
    disk, path = damaged
    alone = replace(INFO, partitions=(replace(PARTITION, isr=isr, leader=None),))
    for _ in range(2):
        disk = disk.kill()
        assert str(path) in str(start(disk, alone).partition.log.failure)
    disk.overwrite(path, original.disk.content(path))
    opened = start(disk, alone)
    assert (opened.partition.log.failure, opened.record.why_failed(UUID, 0)) == (None, None)
    assert read_all(opened) == (original.batches, None)
