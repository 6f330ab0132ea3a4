"""Group commit: what a round reports is on disk, an error is never durability, and its cost is one sync or a few."""

import errno
import random
from threading import Event, Thread

import pytest

from liftpy_log.durability.group_commit import GroupCommit
from liftpy_log.errors import PartitionOfflineError
from liftpy_log.partition_log import LogConfig
from support.log_node import WAL_DIRECTORY, StorageNode
from support.simdisk import Order, SimDisk

MODES = pytest.mark.parametrize(
    "given",
    [{"with_wal": False}, {"direct_max": 0}, {"direct_max": 2}, {"direct_max": 100}],
    ids=["without a write-ahead log", "write ahead", "write ahead when many", "direct"],
)


def node_of(partitions=3, **given):
    return StorageNode(SimDisk(), partitions, **{"wal_bytes": 10**6, "open_files": 512, **given}).start()


def is_segment(path):
    return path.suffix == ".log"


def is_wal(path):
    return path.suffix == ".wal" or path == WAL_DIRECTORY


def check_crashes(node, count=15):
    for order in Order:
        for seed in range(count):
            node.crash(seed, order).check_after_crash()


@MODES
def test_what_a_round_reports_survives_a_power_loss(given):
    node = node_of(**given)
    for _ in range(3):
        for number in node.partitions:
            node.append(number)
        results = node.round()
        assert results == tuple((log.durability, log.log_end, None) for log in node.logs)
        check_crashes(node)
    assert node.commits.rounds == 3


@MODES
def test_logs_with_nothing_new_cost_nothing(given):
    node = node_of(**given)
    node.round()
    for number in node.partitions:
        node.append(number)
    node.round()
    node.append(1)
    node.disk.counts.clear()
    assert [result.log for result in node.round()] == [node.logs[1].durability]
    assert node.disk.counts["sync"] == 1
    assert node.round() == ()
    assert node.commits.rounds == 2


@MODES
def test_a_log_that_was_closed_is_left_alone(given):
    node = node_of(**given)
    node.append(0)
    node.logs[0].close()
    node.disk.counts.clear()
    assert node.round() == ()
    assert node.disk.counts["sync"] == 0


@MODES
def test_what_came_after_the_look_is_left_for_the_next_round(given):
    """The thread that owns the logs goes on appending while a round is on its way to the disk."""
    node = node_of(**given)
    for number in node.partitions:
        node.append(number)
    node.disk.before = lambda operation: operation.kind == "sync" and (more.set() or append_more())
    more, ends = Event(), [log.log_end for log in node.logs]

    def append_more():
        node.disk.before = None
        for number in node.partitions:
            node.append(number)
            node.append(number)

    results = node.round()
    assert more.is_set()
    assert [result.next_offset for result in results] == ends
    assert [log.synced_end for log in node.logs] == ends
    results = node.round()
    assert [result.next_offset for result in results] == [log.log_end for log in node.logs]
    check_crashes(node)


@MODES
def test_a_log_that_began_a_new_segment_meanwhile(given):
    node = node_of(**given, config=LogConfig(segment_bytes=1_000))
    for number in node.partitions:
        node.append(number)
    logs = list(node.logs)

    def roll_all(operation):
        node.disk.before = None
        for log in logs:
            log.roll()

    node.disk.before = lambda operation: operation.kind == "sync" and roll_all(operation)
    node.round()
    for _ in range(5):
        for number in node.partitions:
            node.append(number)
        node.round()
        check_crashes(node, 5)


def test_a_segment_that_was_deleted_meanwhile_was_synced_before():
    for with_wal in (True, False):
        node = node_of(with_wal=with_wal)
        for number in node.partitions:
            node.append(number)
        targets = [log.durability.sync_target() for log in node.logs]
        for log, target in zip(node.logs, targets, strict=True):
            log.purge(log.log_end)
            log.durability.sync_target = lambda target=target: target
        for log in node.logs:
            log.durability.synced_end = 0
        results = node.commits
        seen = []
        results._on_round = seen.extend
        results.run_round([log.durability for log in node.logs])
        assert [error for _, _, error in seen] == [None] * 3


def test_few_dirty_logs_are_synced_by_themselves_and_many_written_ahead():
    node = node_of(4, direct_max=2)
    for dirty in (1, 2, 3, 4):
        for number in range(dirty):
            node.append(number)
        node.disk.counts.clear()
        node.round()
        wal_rounds = [content for path, content in node.disk.files(".wal").items() if len(content) > 16]
        assert bool(wal_rounds) is (dirty > 2)
        assert node.disk.counts["sync"] == (dirty if dirty <= 2 else 1)


def test_the_number_of_syncs_does_not_grow_with_the_number_of_dirty_logs():
    costs = {}
    for partitions in (10, 500):
        node = node_of(partitions, direct_max=3)
        for log in node.logs:
            log.durability.sync_names(set())
        for _ in range(3):
            for number in node.partitions:
                node.append(number)
            node.disk.counts.clear()
            node.round()
            costs.setdefault(partitions, []).append(dict(node.disk.counts))
        assert node.reported == [3] * partitions
    assert [cost["sync"] for cost in costs[10]] == [cost["sync"] for cost in costs[500]] == [1, 1, 1]
    assert costs[10] == costs[500]


def test_a_log_that_keeps_nothing_in_memory_is_synced_by_itself():
    node = node_of(3, config=LogConfig(keep_unsynced=False))
    for number in node.partitions:
        node.append(number)
    node.round()
    assert node.disk.files(".wal") == {}
    check_crashes(node)


@pytest.mark.parametrize("keep", [[False, True], [True, False], [False, True, False, True]])
def test_records_are_durable_whatever_the_log_kept_when_they_came(keep):
    """`sync` of a stream may change from `interval` to `always` and back while records wait."""
    node = node_of(2)
    for keep_unsynced in keep:
        for number in node.partitions:
            node.logs[number].config = LogConfig(keep_unsynced=keep_unsynced)
            node.append(number, size=600)
    results = node.round()
    assert [error for _, _, error in results] == [None, None]
    check_crashes(node, 30)


# Errors.


@pytest.mark.parametrize("given", [{"with_wal": False}, {"direct_max": 100}])
def test_an_error_of_a_sync_is_reported_and_nothing_of_that_log_is_durable(given):
    node = node_of(3, **given)
    for number in node.partitions:
        node.append(number)
    bad = node.logs[1]
    node.disk.fail("sync", code=errno.EIO, where=lambda path: path == bad.active.path)
    results = node.round()
    assert [(log, error is None) for log, _, error in results] == [
        (log.durability, log is not bad) for log in node.logs
    ]
    assert f"fdatasync of {bad.active.path} failed: " in results[1].error
    assert "Input/output error" in results[1].error
    assert [log.synced_end for log in node.logs] == [1, 0, 1]
    node.disk.heal()
    assert node.round() == (), "a log that failed is never tried again"
    assert node.reported == [1, 0, 1]


@pytest.mark.parametrize("given", [{"with_wal": False}, {"direct_max": 100}])
def test_an_error_of_opening_is_reported(given):
    node = node_of(3, open_files=1, **given)
    for number in node.partitions:
        node.append(number)
    node.disk.fail("open", code=errno.EIO, times=None, where=is_segment)
    results = node.round([0, 1])
    assert all(f"opening {log.tail.segment.path} failed: " in error for log, _, error in results)
    assert len(results) == 2


@MODES
def test_names_that_can_not_be_synced_for_a_moment_are_synced_by_a_later_round(given):
    node = node_of(3, **given)
    for number in node.partitions:
        node.append(number)
    node.disk.fail("sync_directory", code=errno.EMFILE, times=None, where=lambda path: not is_wal(path))
    assert node.round() == (), "neither durable nor failed"
    node.disk.heal()
    assert node.round() == tuple((log.durability, 1, None) for log in node.logs)
    check_crashes(node)


@pytest.mark.parametrize("given", [{"with_wal": False}, {"direct_max": 100}])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_file_that_can_not_be_opened_for_a_moment_is_synced_by_a_later_round(given, code, caplog):
    node = node_of(3, open_files=1, **given)
    for number in node.partitions:
        node.append(number)
    node.disk.fail("open", code=code, times=None, where=is_segment)
    for _ in range(100):
        assert node.round([0, 1]) == (), "neither durable nor failed"
    assert len(caplog.records) == 8, "of 200 times"
    assert [log.synced_end for log in node.logs] == [0, 0, 0]
    node.disk.heal()
    assert node.round([0, 1]) == tuple((log.durability, 1, None) for log in node.logs[:2])
    check_crashes(node)


def test_no_pin_is_left_behind():
    node = node_of(3, with_wal=False)
    for number in node.partitions:
        node.append(number)
    node.disk.fail("sync", code=errno.EIO, times=1)
    node.round()
    for log in node.logs:
        log.release()
    assert node.disk.open_files == set()


@pytest.mark.parametrize("kind", ["create", "write", "sync_directory", "sync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("used", [True, False])
def test_when_the_write_ahead_log_fails_the_segments_are_synced(kind, code, used):
    node = node_of(3)
    if used:
        for number in node.partitions:
            node.append(number)
        node.round()
    for number in node.partitions:
        node.append(number)
    node.disk.fail(kind, code=code, where=is_wal, times=None)
    node.disk.counts.clear()
    results = node.round()
    assert results == tuple((log.durability, log.log_end, None) for log in node.logs)
    node.disk.heal()
    check_crashes(node)
    for _ in range(3):
        for number in node.partitions:
            node.append(number)
        node.round()
    check_crashes(node)


def test_when_everything_fails_nothing_is_durable():
    node = node_of(3)
    for number in node.partitions:
        node.append(number)
    node.disk.fail("sync", code=errno.EIO, times=None)
    results = node.round()
    assert all(error is not None for _, _, error in results)
    assert [log.synced_end for log in node.logs] == node.reported == [0, 0, 0]


def test_a_segment_that_can_not_be_synced_later_is_reported_and_its_records_stay_in_the_write_ahead_log():
    """They were acknowledged: the write-ahead log has the only copy that is on disk, and must not go."""
    node = node_of(3, wal_bytes=2_000)
    for number in node.partitions:
        node.append(number)
    node.round()
    bad = node.logs[1]
    node.disk.fail("sync", code=errno.EIO, times=None, where=lambda path: path == bad.active.path)
    failures = []
    for _ in range(30):
        for number in (0, 2):
            node.append(number)
        failures += [log for log, _, error in node.round([0, 2]) if error is not None]
    assert failures == [bad.durability]
    assert bad.failure is not None
    node.disk.heal()
    check_crashes(node, 20)


@pytest.mark.parametrize("how", ["roll", "round"])
def test_records_stay_in_the_write_ahead_log_when_the_sync_of_a_roll_or_of_another_round_failed(how):
    """A sync that fails makes the kernel forget: the next one succeeds, and the bytes are not on disk."""
    node = node_of(3, wal_bytes=2_000, direct_max=1)
    for number in node.partitions:
        node.append(number)
    node.round()
    bad = node.logs[1]
    node.disk.fail("sync", code=errno.EIO, where=lambda path: path == bad.active.path)
    if how == "roll":
        with pytest.raises(PartitionOfflineError):
            bad.roll()
    else:
        node.append(1)
        assert [error is None for _, _, error in node.round([1])] == [False]
    for _ in range(20):
        for number in (0, 2):
            node.append(number)
        node.round([0, 2])
    assert node.reported[1] == 1
    check_crashes(node, 20)


def test_an_error_of_removing_a_file_of_the_write_ahead_log_does_not_lose_the_round():
    node = node_of(2, wal_bytes=500)
    node.disk.fail("remove", code=errno.EIO, times=None, where=is_wal)
    for _ in range(5):
        for number in node.partitions:
            node.append(number)
        results = node.round()
        assert [(log, error) for log, _, error in results] == [(log.durability, None) for log in node.logs]
    node.disk.heal()
    check_crashes(node)


# The thread.


class Reporter:
    """Takes the results of rounds, and lets a test wait for them."""

    def __init__(self, expected):
        self.ends = {}
        self.threads = set()
        self.done = Event()
        self._expected = expected

    def __call__(self, results):
        for log, next_offset, error in results:
            assert error is None
            log.mark_synced(next_offset)
            self.ends[log] = next_offset
        if [self.ends.get(log, 0) for log, _ in self._expected] == [end for _, end in self._expected]:
            self.done.set()


def test_rounds_run_in_a_thread_and_make_durable_what_was_asked_for():
    node = node_of(3)
    reporter = Reporter([(log.durability, 20) for log in node.logs])
    commits = GroupCommit(node.files, node.wal, reporter, 0)
    commits.start()
    for _ in range(20):
        for number in node.partitions:
            node.append(number)
            commits.request(node.logs[number].durability)
    assert reporter.done.wait(30)
    commits.stop()
    assert 1 <= commits.rounds <= 60
    node.reported = [20, 20, 20]
    check_crashes(node)


def test_while_a_round_runs_the_next_one_gathers():
    node = node_of(3, with_wal=False)
    reporter = Reporter([(log.durability, 5) for log in node.logs])
    commits = GroupCommit(node.files, None, reporter)
    held, go_on, syncs = Event(), Event(), []

    def hold(operation):
        if operation.kind == "sync" and operation.path.suffix == ".log":
            syncs.append(operation.path)
            if len(syncs) == 1:
                held.set()
                assert go_on.wait(30)

    node.append(0)
    node.disk.before = hold
    node.disk._lock = _NoLock()  # so that the log goes on while a sync is held
    commits.start()
    commits.request(node.logs[0].durability)
    assert held.wait(30)
    for number in (0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2):
        node.append(number)
        commits.request(node.logs[number].durability)
    go_on.set()
    assert reporter.done.wait(30)
    commits.stop()
    assert commits.rounds == 2
    assert len(syncs) == 4, "one for the first round, and one per log for the second"


class _NoLock:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_stop_runs_what_was_asked_for_to_its_end():
    for with_wal in (True, False):
        node = node_of(5, with_wal=with_wal)
        reporter = Reporter([(log.durability, 1) for log in node.logs])
        commits = GroupCommit(node.files, node.wal, reporter, 2)
        for number in node.partitions:
            node.append(number)
            commits.request(node.logs[number].durability)
        commits.start()
        commits.stop()
        assert reporter.done.is_set()
        assert commits.rounds == 1


def test_stop_without_work():
    commits = GroupCommit(node_of(1).files, None, lambda _results: None)
    commits.start()
    commits.stop()
    assert commits.rounds == 0


@pytest.mark.parametrize("seed", range(3))
def test_requests_from_several_threads(seed):
    node, rng = node_of(6, direct_max=2), random.Random(seed)
    reporter = Reporter([(log.durability, 10) for log in node.logs])
    commits = GroupCommit(node.files, node.wal, reporter, 2)
    for number in node.partitions:
        for _ in range(10):
            node.append(number)
    orders = [rng.sample(list(node.partitions), 6) for _ in range(4)]
    threads = [
        Thread(target=lambda order=order: [commits.request(node.logs[one].durability) for one in order])
        for order in orders
    ]
    commits.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reporter.done.wait(30)
    commits.stop()
    node.reported = [10] * 6
    check_crashes(node, 5)
