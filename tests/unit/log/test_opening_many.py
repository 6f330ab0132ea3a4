"""Logs of which nothing is promised yet are opened without a wait for the disk, and lose nothing by that."""

import errno
import random

import pytest

from liftpy_log.durability.group_commit import GroupCommit
from liftpy_log.errors import PartitionOfflineError
from liftpy_log.partition_log import PartitionLog
from liftpy_log.segments.segment import segment_path
from liftpy_log.storage.files import FileCache
from support.log_model import T0, numbered_body
from support.simdisk import ROOT, Order, SimDisk

STREAMS = ROOT / "streams"
DIRECTORY = STREAMS / "orders.5f" / "0"
PARENTS = (DIRECTORY.parent, STREAMS)


def opened(disk, durable_end=0, log_start=0):
    disk.make_directory(STREAMS)
    files = FileCache(disk, 4)
    log = PartitionLog.open(
        disk, files, DIRECTORY, durable_end=durable_end, log_start=log_start, unsynced_parents=PARENTS
    )
    return log, files


def append(log, number=1):
    return log.append(numbered_body(number, 1, 40), leader_epoch=1, timestamp=T0)


def syncs(disk):
    return disk.counts["sync"], disk.counts["sync_directory"]


def test_an_empty_log_is_created_and_opened_again_without_a_sync():
    disk = SimDisk()
    opened(disk)
    assert syncs(disk) == (0, 0)
    found = disk.kill()
    log, _ = opened(found)
    assert syncs(found) == (0, 0)
    assert (log.log_start, log.log_end) == (0, 0)


@pytest.mark.parametrize("order", Order)
def test_an_empty_log_that_a_power_loss_took_is_an_empty_log_again(order):
    disk = SimDisk()
    opened(disk, log_start=7)
    for seed in range(20):
        log, _ = opened(disk.crash(random.Random(seed), order), log_start=7)
        assert (log.log_start, log.log_end) == (7, 7)


@pytest.mark.parametrize("order", Order)
def test_the_first_round_makes_the_names_durable_and_the_next_ones_need_not(order):
    disk, results = SimDisk(), []
    log, files = opened(disk)
    append(log)
    commits = GroupCommit(files, None, results.extend)
    commits.run_round([log.durability])
    assert [(each.next_offset, each.error) for each in results] == [(1, None)]
    for seed in range(20):
        assert opened(disk.crash(random.Random(seed), order), durable_end=1)[0].log_end == 1
    before = disk.counts["sync_directory"]
    log.durability.mark_synced(1)
    append(log, 2)
    commits.run_round([log.durability])
    assert disk.counts["sync_directory"] == before


@pytest.mark.parametrize("missing", [DIRECTORY, *PARENTS])
def test_nothing_is_reported_durable_whose_names_are_not(missing):
    disk, results = SimDisk(), []
    log, files = opened(disk)
    append(log)
    disk.fail("sync_directory", code=errno.EIO, where=lambda path: path == missing)
    GroupCommit(files, None, results.extend).run_round([log.durability])
    assert results[0].next_offset == 0
    assert str(DIRECTORY) in results[0].error


@pytest.mark.parametrize("order", Order)
def test_what_a_killed_process_had_written_is_durable_once_it_is_opened(order):
    disk = SimDisk()
    append(opened(disk)[0])
    found = disk.kill()
    log, _ = opened(found)
    assert log.synced_end == 1
    for seed in range(20):
        assert opened(found.crash(random.Random(seed), order), durable_end=1)[0].log_end == 1


@pytest.mark.parametrize("order", Order)
def test_a_log_that_is_closed_is_durable_without_a_round(order):
    disk = SimDisk()
    log, _ = opened(disk)
    append(log)
    log.close()
    for seed in range(20):
        assert opened(disk.crash(random.Random(seed), order), durable_end=1)[0].log_end == 1


def test_closing_fails_where_the_names_can_not_be_made_durable():
    disk = SimDisk()
    log, _ = opened(disk)
    append(log)
    disk.fail("sync_directory", code=errno.EIO)
    with pytest.raises(PartitionOfflineError, match="Input/output error"):
        log.close()


def test_files_that_were_made_ahead_are_taken():
    disk = SimDisk()
    disk.make_directory(DIRECTORY, durable=False)
    disk.open(segment_path(DIRECTORY, 3), create=True).close()
    log, _ = opened(disk, log_start=3)
    assert (log.log_start, log.log_end) == (3, 3)
    assert syncs(disk) == (0, 0)
    append(log)
    assert log.log_end == 4
