"""Key compaction: the last record of every key stays, at its offset, whatever happens on the way."""

import pickle
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.compaction.compact import CompactionConfig, compact, is_due, plan_compaction
from liftpy_log.compaction.offset_map import MEMORY_BYTES_MIN
from liftpy_log.durability.wal import replay_wal
from liftpy_log.errors import PartitionOfflineError, SegmentCorruptError
from liftpy_log.partition_log import LogConfig, PartitionLog
from liftpy_log.segments import segment as segment_module
from liftpy_log.storage.files import FileCache
from support.compacted import SEED, KeyedLog, batches_of, last_of_keys, records_of
from support.examples import examples
from support.log_model import T0
from support.log_node import WAL_DIRECTORY, StorageNode
from support.simdisk import ROOT, Order, SimDisk

SECOND = 10**9


@pytest.fixture(autouse=True)
def _small_indexes(monkeypatch):
    monkeypatch.setattr(segment_module, "INDEX_INTERVAL_BYTES", 600)


def filled(batches=30, segment_bytes=1_500, **given):
    return KeyedLog(SimDisk(), segment_bytes).fill(batches, **given)


def compacted(log, end=None):
    """What must be left of a log when everything below `end` was compacted; by default all but the newest segment."""
    end = log.log.active.base_offset if end is None else end
    low = [record for record in log.appended if record.offset < end]
    kept = last_of_keys(low) + [record for record in log.appended if record.offset >= end]
    return [record for record in kept if record.offset >= log.log.log_start]


def log_files(log):
    return log.disk.files(".log")


def test_the_last_record_of_every_key_stays_at_its_offset():
    log = filled()
    before = log.log.size_bytes
    report = log.compact()
    log.check_structure()
    assert log.shown() == compacted(log)
    assert report.is_complete
    assert report.clean_end == log.log.active.base_offset
    assert report.keys == 5
    assert before - log.log.size_bytes == report.bytes_before - report.bytes_after > 0
    assert len(log.log.segments) == 2, "small neighbours become one"


def test_records_without_a_key_stay():
    log = filled(5)
    for number in range(40):
        log.append((None, b"plain %d" % number), (b"k0", b"again %d" % number), (None, None))
    log.compact()
    log.check_structure()
    assert log.shown() == compacted(log)
    assert sum(record.key is None for record in log.shown()) == 80


def test_compacting_twice_changes_nothing():
    log = filled(100, keys=40)
    log.compact()
    before = log_files(log)
    report = log.compact()
    assert (report.is_complete, report.bytes_before) == (True, 0)
    assert log_files(log) == before


def test_a_log_of_which_nothing_is_left_but_its_newest_segment():
    log = filled(30, keys=1)
    log.log.roll()
    log.now += SECOND
    log.epoch += 1
    log.append((b"k0", b"in a segment of its own"))
    log.log.roll()
    log.compact()
    log.check_structure()
    assert [record.value for record in log.shown()] == [b"in a segment of its own"]
    assert log.log.log_start == 0
    headers = [header for header, _ in batches_of(log.data())]
    assert [(header.leader_epoch, header.record_count) for header in headers] == [(0, 0), (1, 1)]
    other = log.found_on(log.disk.kill())
    other.check_structure()
    other.append((b"k1", b"goes on"))
    assert other.log.log_end == log.log.log_end + 1


def test_epochs_keep_their_beginnings():
    log = KeyedLog(SimDisk(), 900)
    for _ in range(12):
        log.fill(random.Random(log.epoch).randint(1, 4), keys=2, per_batch=2)
        log.epoch += 2
    log.compact()
    log.check_structure()
    assert log.shown() == compacted(log)
    other = log.found_on(log.disk.kill())
    assert other.log.epochs.entries == log.epochs()
    for epoch in range(log.epoch):
        assert other.log.epochs.end_offset(epoch, other.log.log_end) == log.log.epochs.end_offset(
            epoch, log.log.log_end
        )


@pytest.mark.parametrize("limit", [0, 1, 20, 44, 45, 46, 70])
def test_nothing_at_or_above_the_limit_is_touched(limit):
    log = filled()
    untouched = [segment for segment in log.log.segments if segment.next_offset > limit]
    before = {segment.path: log.disk.content(segment.path) for segment in untouched}
    log.compact(limit=limit)
    log.check_structure()
    assert log.shown() == compacted(log, untouched[0].base_offset)
    assert list(log.log.segments)[-len(untouched) :] == untouched
    assert {path: log.disk.content(path) for path in before} == before


def test_young_records_are_not_touched():
    log = filled()
    lag = 12 * SECOND
    log.compact(log.compaction(min_lag_ns=lag))
    log.check_structure()
    young = next(record.offset for record in log.appended if record.time > log.now - lag)
    end = next(segment.base_offset for segment in log.log.segments if segment.next_offset > young)
    assert 0 < end <= young
    assert log.shown() == compacted(log, end)


def test_what_deduplication_may_ask_for_is_not_touched():
    log = filled()
    plan = log.plan(log.compaction(dedupe_window_ns=10 * SECOND), now=log.now + 10**15)
    assert plan.segments[-1].max_timestamp <= log.now - 10 * SECOND


def test_tombstones_stay_for_a_while_after_they_were_found():
    log = filled(4, keys=3)
    log.append((b"k0", None), (b"k1", b"alive"))
    log.log.roll()
    log.append((b"other", b"x"))
    config = log.compaction(delete_retention_ns=100 * SECOND)
    found_at = log.now + 50 * SECOND
    log.compact(config, now=found_at)
    assert (b"k0", None) in [(record.key, record.value) for record in log.shown()]
    assert log.log.compaction.load_cleaned().tombstones == 1
    log.log.roll()
    log.append((b"more", b"y"))
    report = log.compact(config, now=found_at + 99 * SECOND)
    assert (b"k0", None) in [(record.key, record.value) for record in log.shown()]
    assert report.delete_horizon == 0
    report = log.compact(config, now=found_at + 100 * SECOND)
    assert b"k0" not in [record.key for record in log.shown()]
    assert report.delete_horizon > 12
    assert log.log.compaction.load_cleaned().tombstones == 0
    log.check_structure()


def test_the_first_tombstone_behind_an_earlier_pass_is_young():
    log = KeyedLog(SimDisk())
    log.append((b"a", b"1"), (b"b", b"2"))
    log.log.roll()
    config = log.compaction(delete_retention_ns=100 * SECOND)
    log.compact(config)
    log.now += 100 * SECOND
    log.append((b"a", None))
    log.log.roll()
    log.compact(config)
    assert [(record.key, record.value) for record in log.shown()] == [(b"b", b"2"), (b"a", None)]


def test_tombstones_that_expired_make_a_pass_pay():
    log = filled(4, keys=3)
    log.append((b"k0", None))
    log.log.roll()
    config = log.compaction(delete_retention_ns=100 * SECOND, min_dirty_ratio=0.5)
    log.compact(config)
    assert plan_compaction(log.log.compaction, log.log.log_end, log.now + 99 * SECOND, config) is None
    assert plan_compaction(log.log.compaction, log.log.log_end, log.now + 100 * SECOND, config) is not None
    log.compact(config, now=log.now + 100 * SECOND)
    assert plan_compaction(log.log.compaction, log.log.log_end, log.now + 10**15, config) is None


def test_a_key_that_came_back_outlives_its_tombstone():
    log = KeyedLog(SimDisk())
    log.append((b"k", b"old"), (b"k", None), (b"k", b"new"))
    log.log.roll()
    log.compact(log.compaction(delete_retention_ns=0))
    assert [record.value for record in log.shown()] == [b"new"]


def test_a_map_that_is_too_small_takes_several_passes():
    log = KeyedLog(SimDisk(), 20_000)
    for number in range(30):
        log.now += SECOND
        log.append(*((b"%d" % (key % 1_500), b"%d" % number) for key in range(number * 100, number * 100 + 100)))
    log.log.roll()
    config = log.compaction(memory_bytes_max=MEMORY_BYTES_MIN)
    ends = [0]
    while ends[-1] < log.log.log_end:
        report = log.compact(config)
        assert report.memory_bytes <= MEMORY_BYTES_MIN
        log.check_structure()
        assert report.clean_end > ends[-1]
        ends.append(report.clean_end)
    assert len(ends) > 3
    assert log.shown() == compacted(log)


def test_headers_ids_and_compression_stay():
    log = KeyedLog(SimDisk())
    for number in range(30):
        log.now += SECOND
        log.append(
            (b"a", b"v" * 300, b"NATS/1.0\r\nnumber: %d\r\n\r\n" % number, b"id %d" % number),
            (b"b%d" % number, b"w" * 900, None, None),
            compression=["lz4", "zstd", None][number % 3],
        )
    log.compact(log.compaction(codec="lz4"))
    log.check_structure()
    assert log.shown() == compacted(log)
    headers = [header for header, _ in batches_of(log.data())]
    assert headers[0].is_compressed


def test_batches_that_it_writes_say_so_and_no_others_do():
    """Who looks for a producer's batch must not take its absence there for a proof that it was not stored."""
    log = KeyedLog(SimDisk(), 10**6)
    log.append((b"only here", b"v" * 100_000))  # copied as it is
    log.fill(20, keys=3)
    log.log.roll()
    log.append((b"newest", b"v"))
    assert not any(header.is_compacted for header, _ in batches_of(log.data()))
    log.compact()
    marks = [header.is_compacted for header, _ in batches_of(log.data())]
    assert marks == [False, True, False]
    log.log.roll()
    log.append((b"newest", b"again"))
    log.log.roll()
    log.compact()
    assert log.shown() == compacted(log)


def test_large_batches_of_which_all_stays_are_copied_as_they_are():
    log = KeyedLog(SimDisk(), 10**6)
    log.fill(5, keys=3)
    log.append((b"large", b"x" * 70_000))
    log.append((b"k0", b"y"), (None, b"z"))
    large = log.disk.content(log.log.active.path)
    log.log.roll()
    log.compact()
    log.check_structure()
    assert log.shown() == compacted(log)
    header = next(header for header, _ in batches_of(log.data()) if header.length > 70_000)
    assert header.last_offset_delta == 0
    assert bytes(log.data()).count(large[large.index(b"large") - 1_000 :][:1_000]) <= 1
    assert [record.key for record in log.shown()] == [b"k1", b"k2", b"large", b"k0", None]


def test_pauses_come_often():
    log = filled()
    pauses = []
    log.compact(pause=pauses.append)
    assert sum(pauses) >= log.plan().segments[0].size
    assert max(pauses) <= 1024 * 1024


def test_a_pass_that_is_stopped_leaves_nothing_behind():
    for stop_at in range(12):
        log = filled()
        count = Counter()

        def pause(_, count=count, stop_at=stop_at):
            count["pauses"] += 1
            if count["pauses"] > stop_at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            log.compact(pause=pause)
        assert not log.disk.files(".tmp")
        log.check_structure()
        assert set(compacted(log)) <= set(log.shown())
        log.compact()
        assert log.shown() == compacted(log)


@pytest.mark.parametrize(
    ("overtake", "lost"),
    [
        (lambda log: log.drop_before(log.segments[2].base_offset), True),
        (lambda log: log.purge(log.log_end), True),
        (lambda log: log.rebuild(7), True),
        (lambda log: log.truncate(log.segments[1].base_offset), True),
        (lambda log: log.truncate(log.log_end - 3), True),
        (lambda log: log.purge(3), False),
        (lambda log: log.roll(), False),
    ],
)
@pytest.mark.parametrize("at", [1, 4, 9, 14, 18])
def test_a_pass_that_is_overtaken_is_given_up(overtake, lost, at):
    log = filled()
    count = Counter()

    def pause(_):
        count["pauses"] += 1
        if count["pauses"] == at:
            overtake(log.log)
            del log.appended[log.log.log_end :]

    report = log.compact(pause=pause)
    assert report.is_complete is not lost or count["pauses"] < at
    assert not log.disk.files(".tmp")
    log.check_structure() if log.log.log_end <= len(log.appended) else None
    assert log.log.compaction.load_cleaned().clean_end <= log.log.log_end


def test_a_log_that_was_begun_anew_looks_the_same_and_is_not():
    log = filled()
    plan = log.plan()
    log.log.rebuild(0)
    log.appended, log.now = [], T0
    log.fill(30)
    assert log.log.compaction.sealed_segments() == list(plan.segments)
    report = compact(log.disk, plan, log.compaction(), log.log.compaction, seed=SEED, pause=lambda _: None)
    assert not report.is_complete
    assert log.shown() == log.appended


def test_a_log_that_was_closed_is_left_alone():
    log = filled()
    plan = log.plan()
    log.log.close()
    before = log_files(log)
    report = compact(log.disk, plan, log.compaction(), log.log.compaction, seed=SEED, pause=lambda _: None)
    assert not report.is_complete
    assert log_files(log) == before


def test_what_is_appended_behind_a_cut_is_dirty():
    log = filled()
    log.compact()
    clean_end = log.log.compaction.load_cleaned().clean_end
    log.log.rebuild(5)
    assert log.log.compaction.load_cleaned().clean_end == 5 < clean_end
    assert log.found_on(log.disk.kill()).log.compaction.load_cleaned().clean_end == 5


def test_a_cut_into_a_compacted_segment_and_on_from_there():
    log = filled(30, keys=7, segment_bytes=4_000)
    log.epoch += 1
    log.fill(30, keys=7)
    log.compact()
    header, _ = next(batches_of(log.data()))
    log.log.truncate(header.next_offset)
    del log.appended[header.next_offset :]
    expected = log.shown()
    assert log.log.active.generation > 0
    log.now += SECOND
    log.fill(20, keys=7)
    for each in (log, log.found_on(log.disk.kill()), log.found_on(log.disk.crash(random.Random(1)))):
        each.check_structure()
        assert each.shown()[: len(expected)] == expected
    log.compact()
    log.check_structure()
    shown = expected + log.appended[header.next_offset :]
    end = log.log.active.base_offset
    assert log.shown() == last_of_keys([each for each in shown if each.offset < end]) + log.appended[end:]


def test_readers_of_the_old_files_are_served():
    log = filled()
    slices = log.log.read(0, log.log.log_end, 2**62)
    expected = log.data()
    pinned = [(log.files.pin(piece.segment), piece) for piece in slices]
    log.compact()
    assert log.log.segments[0] is not slices[0].segment
    data = b"".join(file.read(piece.position, piece.length) for file, piece in pinned)
    assert data == expected
    for file, piece in pinned:
        log.files.unpin(piece.segment, file)
    with pytest.raises(FileNotFoundError):
        log.files.pin(slices[0].segment)


def test_a_follower_takes_compacted_batches_as_they_are():
    log = filled()
    log.compact()
    follower = KeyedLog(SimDisk(), 1_000)
    data = log.data()
    headers = [header for header, _ in batches_of(data)]
    follower.log.append_batches(data, headers)
    follower.appended = log.appended
    follower.check_structure()
    assert follower.data() == data


@pytest.mark.parametrize("order", Order)
def test_the_write_ahead_log_does_not_write_into_compacted_segments(order):
    node = StorageNode(SimDisk(), 1, direct_max=0, wal_bytes=10**6, config=LogConfig(segment_bytes=900)).start()
    for _ in range(20):
        node.append(0, 2)
        node.round()
    assert node.disk.files(".wal"), "which speaks of segments that are closed by now"
    (log,) = node.logs
    config = CompactionConfig(dedupe_window_ns=0, segment_bytes=3_000)
    plan = plan_compaction(log.compaction, log.log_end, node.now, config)
    assert compact(node.disk, plan, config, log.compaction, seed=SEED, pause=lambda _: None).is_complete
    assert log.segments[0].generation > 0
    expected = node.disk.files(".log")
    for disk in (node.disk.kill(), *(node.disk.crash(random.Random(seed), order) for seed in range(5))):
        replay_wal(disk, WAL_DIRECTORY, ROOT)
        opened = PartitionLog.open(disk, FileCache(disk, 4), log.directory, durable_end=log.log_end)
        assert disk.files(".log") == expected
        assert opened.log_end == log.log_end


def test_damage_is_named():
    log = filled()
    path = log.log.segments[2].path
    content = bytearray(log.disk.content(path))
    content[200] ^= 1
    log.disk.overwrite(path, bytes(content))
    with pytest.raises(SegmentCorruptError) as caught:
        log.compact()
    assert caught.value.path == path
    assert not log.disk.files(".tmp")


@pytest.mark.parametrize("kind", ["rename", "sync_directory", "remove", "create", "write", "sync"])
def test_an_error_of_the_disk_loses_nothing(kind):
    for skip in range(60):
        log = filled(6, segment_bytes=900)
        log.disk.fail(kind, code=5, skip=skip)
        try:
            report = log.compact()
        except (OSError, PartitionOfflineError):
            report = None
        log.disk.heal()
        other = log.found_on(log.disk.kill())
        other.check_structure()
        assert set(compacted(log)) <= set(other.shown())
        if report is not None:
            return
    pytest.fail("every attempt failed")


@pytest.mark.thorough
@pytest.mark.parametrize("every", [24, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("order", Order)
def test_a_crash_at_every_step_of_the_disk(order, every):
    """Before every operation the power may be lost, or the process killed: all that must be there is there.

    Every so often what was found is compacted once more; a killed process is looked at four times as often as that.
    """
    log = filled(7, keys=4, segment_bytes=900)
    log.epoch += 1
    log.fill(7, keys=4)
    log.commit()
    before, after = log.shown(), compacted(log)
    looks = Counter()
    rng = random.Random(order.value)

    def look(operation):
        disks = [log.disk.crash(rng, order)]
        if looks.total() % (every // 4) == 0:
            disks.append(log.disk.kill())
        for disk in disks:
            other = log.found_on(disk, durable_end=log.log.log_end)
            other.check_structure()
            assert set(after) <= set(other.shown()) <= set(before)
            assert not disk.files(".log.tmp")
            assert not disk.files(".gone")
            assert sum(path.suffix == ".log" for path in disk.files()) == len(other.log.segments)
            if looks.total() % every == 0:
                other.compact()
                other.check_structure()
                assert other.shown() == after
                assert other.found_on(disk.kill()).shown() == after
        looks[operation.kind] += 1

    log.disk.before = look
    log.compact()
    log.disk.before = None
    assert log.shown() == after
    assert set(looks) == {"write", "sync", "create", "remove", "rename", "sync_directory"}


def test_a_pass_can_run_in_another_process():
    """All that goes there and comes back can be pickled."""
    log = filled()

    class Owner:
        def replace_segments(self, *arguments):
            return log.log.compaction.replace_segments(*pickle.loads(pickle.dumps(arguments)))

        def save_cleaned(self, *arguments):
            return log.log.compaction.save_cleaned(*pickle.loads(pickle.dumps(arguments)))

    config = log.compaction()
    plan, config = pickle.loads(pickle.dumps((log.plan(config), config)))
    report = compact(log.disk, plan, config, Owner(), seed=SEED, pause=lambda _: None)
    assert pickle.loads(pickle.dumps(report)) == report
    assert log.shown() == compacted(log)


@pytest.mark.parametrize("times", [5, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("order", Order)
def test_what_was_replaced_does_not_come_back_when_retention_drops_the_new_segment(order, times):
    log = filled(20, keys=3, segment_bytes=900)
    log.commit()
    plan = log.plan()
    middle = plan.segments[len(plan.segments) // 2].base_offset
    rng = random.Random(order.value)
    looks = Counter()

    class Owner:
        def save_cleaned(self, *arguments):
            return log.log.compaction.save_cleaned(*arguments)

        def replace_segments(self, *arguments):
            assert log.log.compaction.replace_segments(*arguments)
            log.disk.before = look
            log.log.drop_before(middle)
            log.disk.before = None
            return True

    def look(operation):
        for _ in range(times):
            log.found_on(log.disk.crash(rng, order), durable_end=log.log.log_end).check_structure()
        looks[operation.kind] += 1

    log.compact(log.compaction(segment_bytes=2_000), limit=middle, owner=Owner())
    assert log.log.log_start == middle
    assert looks["remove"] >= looks["sync_directory"] >= 1


def test_it_pays_when_enough_is_dirty():
    assert not is_due(0, 0, 0.0)
    assert not is_due(0, 100, 0.0)
    assert is_due(1, 100, 0.0)
    assert is_due(50, 50, 0.5)
    assert not is_due(49, 51, 0.5)
    assert is_due(10, 0, 1.0)


keys = st.sampled_from([None, b"", b"a", b"b", b"c", b"dddd", b"e" * 300])
records = st.lists(st.tuples(keys, st.sampled_from([None, b"", b"v", b"w" * 90])), min_size=1, max_size=6)
steps = st.one_of(
    st.tuples(st.just("append"), records),
    st.tuples(st.just("append"), records),
    st.tuples(st.just("append"), records),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("elect"), st.none()),
    st.tuples(st.just("later"), st.integers(1, 50)),
    st.tuples(st.just("compact"), st.integers(0, 100)),
    st.tuples(st.just("compact"), st.just(100)),
    st.tuples(st.just("crash"), st.integers(0, 10**6)),
    st.tuples(st.just("kill"), st.none()),
    st.tuples(st.just("crash amid a pass"), st.integers(0, 10**6)),
    st.tuples(st.just("drop"), st.integers(0, 100)),
    st.tuples(st.just("purge"), st.integers(0, 100)),
)


class PowerLossError(BaseException):
    """The power is gone."""


class Story:
    """A log, and which of its records must, and may, be there: one that a pass may have dropped only may."""

    def __init__(self, segment_bytes, retention_s):
        self.log = KeyedLog(SimDisk(), segment_bytes)
        self.config = self.log.compaction(delete_retention_ns=retention_s * SECOND)
        self.must, self.may = set(), set()
        self.found = {}  # offset of a tombstone: when it was found to be the last of its key

    def take(self, step, argument):
        log = self.log
        if step == "append":
            log.now += 1
            base = len(log.appended)
            log.append(*argument)
            self.must |= set(log.appended[base:])
            self.may |= set(log.appended[base:])
        elif step == "roll":
            log.log.roll()
        elif step == "elect":
            log.epoch += 1
        elif step == "later":
            log.now += argument * SECOND
        elif step == "compact":
            self.compact(argument)
        elif step in {"crash", "kill"}:
            log.commit()
            rng = random.Random(argument)
            disk = log.disk.kill() if step == "kill" else log.disk.crash(rng, rng.choice(list(Order)))
            self.reopen(disk)
        elif step == "crash amid a pass":
            self.crash_amid(argument)
        else:
            start, end = log.log.log_start, log.log.log_end
            offset = start + (end - start) * argument // 100
            log.commit()
            log.log.drop_before(offset) if step == "drop" else log.log.purge(offset)
            self.cut()

    def reopen(self, disk):
        self.log = self.log.found_on(disk, log_start=self.log.log.log_start, durable_end=self.log.log.log_end)

    def cut(self):
        start = self.log.log.log_start
        self.must = {record for record in self.must if record.offset >= start}
        self.may = {record for record in self.may if record.offset >= start}

    def expect(self, plan):
        """The records that a whole pass must keep; those below its end that it must drop."""
        end = plan.segments[-1].next_offset
        low = sorted(record for record in self.may if record.offset < end)
        stay = last_of_keys(low)
        for record in stay:
            if record.key is not None and record.value is None:
                self.found.setdefault(record.offset, plan.now)
        gone = {
            record
            for record in stay
            if record.offset in self.found and self.found[record.offset] + self.config.delete_retention_ns <= plan.now
        }
        return set(low) - (set(stay) - gone)

    def compact(self, percent):
        log = self.log
        log.commit()
        limit = log.log.log_start + (log.log.log_end - log.log.log_start) * percent // 100
        plan = log.plan(self.config, limit)
        if plan is None:
            return
        dropped = self.expect(plan)
        assert log.compact(self.config, limit).is_complete
        self.must -= dropped
        self.may -= dropped
        shown = set(log.shown())
        assert not dropped & shown, "what had to go is there"
        files = log_files(log)
        log.compact(self.config, limit)
        assert log_files(log) == files, "compacting again changed something"

    def crash_amid(self, seed):
        log, rng = self.log, random.Random(seed)
        log.commit()
        plan = log.plan(self.config)
        if plan is None:
            return
        before = dict(self.found)
        dropped = self.expect(plan)
        fuse = Counter(left=rng.randint(1, 25))

        def look(_):
            fuse["left"] -= 1
            if fuse["left"] <= 0:
                raise PowerLossError

        log.disk.before = look
        try:
            log.compact(self.config)
        except PowerLossError:
            self.must -= dropped
        else:
            self.must -= dropped
            self.may -= dropped
            before = self.found
        log.disk.before = None
        self.reopen(log.disk.crash(rng, rng.choice(list(Order))))
        if self.log.log.compaction.load_cleaned() == plan.cleaned:
            self.found = before

    def check(self):
        self.log.check_structure()
        shown = set(self.log.shown())
        assert self.must <= shown <= self.may
        self.may = shown


def tell(segment_bytes, retention_s, story):
    log = Story(segment_bytes, retention_s)
    for step in story:
        log.take(*step)
        log.check()


@given(st.sampled_from([700, 2_000, 10**5]), st.sampled_from([0, 30, 10**6]), st.lists(steps, max_size=40))
@examples(120)
def test_any_story_ends_well(segment_bytes, retention_s, story):
    tell(segment_bytes, retention_s, story)


@pytest.mark.slow
@given(st.sampled_from([700, 2_000, 10**5]), st.sampled_from([0, 30, 10**6]), st.lists(steps, min_size=20, max_size=80))
@examples(500)
def test_any_long_story_ends_well(segment_bytes, retention_s, story):
    tell(segment_bytes, retention_s, story)


def test_the_kit_shows_what_is_there():
    log = filled(2)
    header, records = next(batches_of(log.data()))
    assert records_of(header, records) == log.appended[:3]
    assert log.appended[0].time == T0 + SECOND
