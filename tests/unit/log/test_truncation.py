"""Cutting a log back: what is left is right, durable and goes on; what was dropped does not come back."""

import errno
import random
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.cut_mark import CutMark, CutState, load_cut_mark
from liftpy_log.durability import durability
from liftpy_log.durability.group_commit import GroupCommit
from liftpy_log.durability.wal import WriteAheadLog
from liftpy_log.errors import (
    BatchBoundaryError,
    OffsetOutOfRangeError,
    PartitionOfflineError,
    SegmentCorruptError,
    StorageFullError,
    UnfinishedCutError,
)
from liftpy_log.partition_log import LogConfig
from liftpy_log.segments import segment
from support.examples import examples
from support.log_model import DIRECTORY, T0, OpenLog, check_read
from support.log_node import WAL_DIRECTORY, StorageNode, partition_directory
from support.simdisk import Order, SimDisk

SMALL = LogConfig(segment_bytes=3_000)


def node_of(partitions=1, **given):
    return StorageNode(SimDisk(), partitions, **{"wal_bytes": 10**6, **given}).start()


def filled(node, batches=10, number=0):
    for _ in range(batches):
        node.append(number, 2)
    node.round()
    return node


def check_crashes(node, count=10):
    for order in Order:
        for seed in range(count):
            node.crash(seed, order).check_after_crash()


@pytest.fixture(params=[None, SMALL], ids=["one segment", "several segments"])
def log(request):
    return OpenLog(SimDisk(), request.param or LogConfig()).fill(20, records=2, size=300)


@pytest.mark.parametrize("end", range(0, 41, 2))
def test_a_cut_at_every_edge(log, end):
    for offset in range(0, end, 2):  # readers were there
        log.log.read(offset, end, 1)
    log.log.truncate(end)
    log.model.truncate(end)
    log.check()
    assert log.log.epochs.entries == log.model.epochs()
    assert log.log.last_timestamp == (log.model.batches[-1].timestamp if end else 0)
    if end < 40:
        assert log.log.synced_end == end
    log.fill(5, records=3, epoch=1)
    for time in range(T0, T0 + 21 * 10**9, 10**9):
        assert log.log.offset_at_time(time) == log.model.offset_at_time(time)
    log.check()
    log.reopen(durable_end=40)
    log.check()
    assert log.log.epochs.entries == log.model.epochs()


def test_a_cut_at_the_end_changes_nothing(log):
    log.disk.counts.clear()
    log.log.truncate(40)
    assert not log.disk.counts
    log.check()


@pytest.mark.parametrize(
    ("end", "error"),
    [(-1, OffsetOutOfRangeError), (9, OffsetOutOfRangeError), (41, OffsetOutOfRangeError), (21, BatchBoundaryError)],
)
def test_a_cut_that_can_not_be(log, end, error):
    log.log.purge(10)
    log.model.log_start = 10
    log.disk.counts.clear()
    with pytest.raises(error):
        log.log.truncate(end)
    assert not log.disk.counts
    log.check()


def test_a_cut_to_the_start_which_is_inside_of_a_batch(log):
    log.log.purge(11)
    log.log.truncate(11)
    log.model.renew(11)
    assert (log.log.log_start, log.log.log_end, log.log.size_bytes) == (11, 11, 0)
    log.fill(3)
    log.check()
    log.reopen(log_start=11, durable_end=40)
    log.check()


@pytest.mark.parametrize("start", [0, 7, 40, 1_000])
def test_a_log_begins_anew(log, start):
    log.log.rebuild(start)
    log.model.renew(start)
    assert log.log.epochs.entries == []
    assert log.log.last_timestamp == 0
    assert sorted(log.disk.files(".log")) == [log.path]
    log.fill(3, epoch=4)
    log.check()
    log.reopen(durable_end=40)
    log.check()


def test_epochs_that_hold_no_record_any_more_are_forgotten():
    log = OpenLog(SimDisk()).fill(2, epoch=1).fill(2, epoch=3).fill(2, epoch=5)
    log.log.truncate(3)
    assert log.log.epochs.entries == [(1, 0), (3, 2)]
    log.log.truncate(2)
    assert log.log.epochs.entries == [(1, 0)]


def test_a_remembered_place_in_a_segment_that_was_cut_is_not_used():
    log = OpenLog(SimDisk()).fill(10, size=300)
    hint = log.log.read(0, 8, 2**62)[-1]
    log.log.truncate(4)
    log.model.truncate(4)
    log.fill(10, size=5_000)
    check_read(log.disk, log.log, log.model, 8, 14, 1, hint)


def test_indexes_of_dropped_batches_are_gone(monkeypatch):
    monkeypatch.setattr(segment, "INDEX_INTERVAL_BYTES", 600)
    log = OpenLog(SimDisk()).fill(20, size=300)
    log.log.active.flush_index()
    log.log.truncate(4)
    log.model.truncate(4)
    assert not [path for path in log.disk.files() if "index" in path.name]
    log.fill(20, size=700)
    log.log.active.flush_index()
    log.check()
    log.reopen()
    log.check()


def test_batches_that_a_write_ahead_log_holds_do_not_come_back():
    node = filled(node_of(direct_max=0))
    node.truncate(0, 6)
    check_crashes(node)
    node.append(0, 3)
    check_crashes(node)
    node.round()
    check_crashes(node)
    other = node.found_on(node.disk.kill())
    other.check_after_kill()


def test_the_void_outlasts_older_files_of_the_write_ahead_log():
    """The first file has what was cut off; it comes back when its removal is not on disk and the next one's is."""
    node = filled(node_of(direct_max=0, wal_bytes=300))
    node.truncate(0, 6)
    for _ in range(6):
        check_crashes(node, 30)
        node.append(0, 2)
        node.round()


def test_the_void_outlasts_older_files_at_a_clean_stop():
    node = filled(node_of(direct_max=0, wal_bytes=300))
    node.truncate(0, 6)
    node.stop()
    check_crashes(node, 30)


def test_the_void_outlasts_older_files_at_a_start():
    node = filled(node_of(direct_max=0, wal_bytes=300))
    node.truncate(0, 6)
    disk = node.disk.kill()
    looks = []

    def look(operation):
        looks.append(operation)
        for seed in range(20):
            node.found_on(disk.crash(random.Random(seed), Order.NAMES_UNORDERED)).check_after_crash()

    disk.before = look
    node.found_on(disk).check_after_kill()
    assert [operation.path.suffix for operation in looks if operation.kind == "remove"] == [".wal"] * 2


def test_the_void_stays_while_an_older_file_stays():
    node = node_of(2, direct_max=0, wal_bytes=300)
    for _ in range(10):
        node.append(0, 2)
    node.append(1)
    node.round()
    node.wal.keep(node.logs[1].active)
    node.truncate(0, 6)
    for _ in range(30):
        node.append(0)
        node.round()
    assert WAL_DIRECTORY / f"{1:020d}.wal" in node.disk.files(".wal")
    check_crashes(node, 4)


def test_a_round_that_ended_before_says_nothing_of_what_came_after():
    node = node_of(direct_max=100)
    for _ in range(10):
        node.append(0, 2)
    node.begin_round()
    node.truncate(0, 6)
    node.append(0, 2)
    assert [result.next_offset for result in node.end_round()] == [20]
    assert (node.logs[0].synced_end, node.logs[0].log_end) == (6, 8)
    check_crashes(node)
    assert [result.next_offset for result in node.round()] == [8]
    assert node.logs[0].synced_end == 8
    check_crashes(node)


@pytest.mark.parametrize("direct_max", [0, 100])
def test_a_cut_waits_for_the_round_that_is_at_work(direct_max):
    node = node_of(direct_max=direct_max)
    for _ in range(10):
        node.append(0, 2)
    syncing, go_on, is_cut = Event(), Event(), Event()

    def hold(operation):
        if operation.kind == "sync":
            node.disk.before = None
            syncing.set()
            assert go_on.wait(10)

    node.disk.before = hold
    commits = GroupCommit(node.files, node.wal, node.results.extend, direct_max)
    commits.start()
    commits.request(node.logs[0].durability)
    assert syncing.wait(10)
    cutting = Thread(target=lambda: (node.truncate(0, 6), is_cut.set()))
    cutting.start()
    assert not is_cut.wait(0.05)
    go_on.set()
    cutting.join(10)
    commits.stop()
    assert is_cut.is_set()
    assert [result.next_offset for result in node.results] == [20]
    assert node.logs[0].log_end == 6
    check_crashes(node)


def test_a_round_that_does_not_end_takes_the_log_offline(monkeypatch):
    monkeypatch.setattr(durability, "ROUND_TIMEOUT_S", 0.01)
    log = OpenLog(SimDisk()).fill(3)
    assert log.log.durability.begin_round() is not None
    with pytest.raises(PartitionOfflineError, match="not ended within"):
        log.log.truncate(1)


@pytest.mark.parametrize("with_wal", [True, False])
def test_nothing_is_cut_after_a_sync_that_failed(with_wal):
    """What failed to come to the disk may be there only in the write-ahead log."""
    node = node_of(direct_max=100, with_wal=with_wal)
    for _ in range(10):
        node.append(0, 2)
    node.disk.fail("sync", code=errno.EIO)
    node.begin_round()
    with pytest.raises(PartitionOfflineError, match="fdatasync"):
        node.logs[0].truncate(6)
    assert load_cut_mark(node.disk, partition_directory(0)) is None


def test_nothing_is_cancelled_that_is_on_disk_only_in_the_write_ahead_log():
    node = filled(node_of(direct_max=0))
    node.wal.keep(node.logs[0].active)
    with pytest.raises(PartitionOfflineError, match="earlier fdatasync failed"):
        node.logs[0].truncate(6)
    node.disk.heal()
    check_crashes(node)


@pytest.mark.parametrize("was_cut", [False, True])
@pytest.mark.parametrize("directory", [WAL_DIRECTORY, partition_directory(0)])
def test_no_room_to_take_note_of_a_cut(directory, was_cut):
    node = filled(node_of(direct_max=0))
    if was_cut:
        node.truncate(0, 18)
    node.append(0, 2)
    node.round()
    node.disk.fail("write", code=errno.ENOSPC, where=lambda path: directory in path.parents)
    with pytest.raises(StorageFullError):
        node.logs[0].truncate(6)
    node.append(0, 2)
    check_crashes(node)
    node.truncate(0, 6)
    check_crashes(node)


@pytest.mark.parametrize("skip", range(8))
@pytest.mark.parametrize("kind", ["write", "sync", "truncate", "remove", "rename", "sync_directory", "create"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_whatever_fails_the_log_is_as_it_was_or_cut(kind, code, skip):
    node = node_of(direct_max=0, config=SMALL)
    for _ in range(10):
        node.append(0, 2, 300)
    node.round()
    node.disk.fail(kind, code=code, skip=skip)
    log = node.logs[0]
    try:
        node.truncate(0, 6)
    except StorageFullError:
        node.cuts[0] = None
        node.disk.heal()
        node.append(0)
        node.round()
    except PartitionOfflineError:
        assert log.failure is not None
    node.disk.heal()
    for order in Order:
        for seed in range(6):
            found = node.crash(seed, order)
            found.check_after_crash()
            assert found.logs[0].log_end in {6, node.models[0].end}


@pytest.mark.parametrize("was_cut", [False, True])
@pytest.mark.parametrize("times", [1, 2, None])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        ("open", "cleaned", StorageFullError),
        ("open", "cut", StorageFullError),
        ("create", "cut.tmp", StorageFullError),
        ("sync_directory", "0", UnfinishedCutError),  # the mark has its name
    ],
)
def test_a_cut_that_lacks_descriptors_does_not_give_the_log_up(kind, name, error, code, times, was_cut):
    node = filled(node_of(direct_max=0))
    if was_cut:
        node.truncate(0, 18)
    node.append(0, 2)
    node.round()
    log, directory = node.logs[0], partition_directory(0)
    where = lambda path: path == (directory if name == "0" else directory / name)
    node.disk.fail(kind, code=code, times=times, where=where)
    with pytest.raises(error):
        log.truncate(6)
    assert log.failure is None or type(log.failure) is UnfinishedCutError
    node.disk.heal()
    if error is StorageFullError:
        node.append(0, 2)
        check_crashes(node, 3)
        node.truncate(0, 6)
        assert log.log_end == 6
        check_crashes(node, 3)
    else:  # opened again, the log finishes the cut and goes on
        node.cuts[0] = 6
        log.release()
        found = node.found_on(node.disk)
        found.check_after_crash()
        assert found.logs[0].log_end == 6
        found.append(0, 2)
        found.round()
        check_crashes(found, 3)


def test_a_mark_that_can_not_be_read_again_does_not_give_the_log_up():
    node = filled(node_of(direct_max=0))
    directory = partition_directory(0)
    node.disk.fail("sync_directory", code=errno.EMFILE, where=lambda path: path == directory)
    node.disk.fail("open", code=errno.EMFILE, skip=1, where=lambda path: path == directory / "cut")
    with pytest.raises(UnfinishedCutError):
        node.logs[0].truncate(6)


def test_a_checkpoint_that_is_older_than_the_cut_is_not_believed():
    log = OpenLog(SimDisk()).fill(10)
    log.commit()
    log.log.truncate(4)
    log.model.truncate(4)
    log.fill(3)
    log.log.truncate(6)
    log.model.truncate(6)
    log.reopen(durable_end=10)
    log.check()
    log.fill(6)
    log.log.close()
    assert load_cut_mark(log.disk, DIRECTORY) is not None
    log.reopen(durable_end=12)  # younger than the cut
    assert load_cut_mark(log.disk, DIRECTORY) is None
    log.disk.overwrite(log.path, log.disk.content(log.path)[:-8])
    with pytest.raises(SegmentCorruptError, match="durable"):
        log.reopen(durable_end=12)


def test_a_cut_mark_that_is_damaged_keeps_the_log_offline():
    log = OpenLog(SimDisk()).fill(3)
    log.log.truncate(1)
    log.disk.overwrite(DIRECTORY / "cut", b"?" + log.disk.content(DIRECTORY / "cut")[1:])
    with pytest.raises(PartitionOfflineError, match="is damaged"):
        log.log.truncate(0)
    with pytest.raises(PartitionOfflineError, match="is damaged"):
        log.reopen()


offsets = st.integers(-(2**63), 2**63 - 1)
marks = st.builds(CutMark, st.sampled_from(CutState), offsets, offsets, offsets, offsets)


@given(marks)
@examples(100)
def test_marks_survive_a_round_trip(mark):
    assert CutMark.decode(mark.encode()) == mark
    for stop in range(len(mark.encode())):
        assert CutMark.decode(mark.encode()[:stop]) is None


@given(marks, st.integers(0, 10**6), st.integers(1, 255))
@examples(200)
def test_a_turned_bit_in_a_mark_is_noticed(mark, at, bits):
    content = bytearray(mark.encode())
    content[at % len(content)] ^= bits
    assert CutMark.decode(bytes(content)) is None


@given(st.binary(max_size=100))
@examples(100)
def test_garbage_is_no_mark(garbage):
    assert CutMark.decode(garbage) is None


def test_a_log_that_was_cut_goes_through_the_write_ahead_log_again():
    node = filled(node_of(direct_max=0))
    node.truncate(0, 6)
    assert isinstance(node.wal, WriteAheadLog)
    node.append(0)
    node.disk.counts.clear()
    node.round()
    assert node.disk.counts["sync"] == 1
    assert node.logs[0].durability.wal is node.wal
