"""The log of a partition equals a plain list, whatever is done to it; a full disk passes, an I/O error stays."""

import errno
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from liftpy_log.entries import Tail, Unsynced
from liftpy_log.errors import LiftError, OffsetOutOfRangeError, PartitionOfflineError, StorageFullError
from liftpy_log.partition_log import LogConfig, PartitionLog
from liftpy_log.segments import segment as segment_module
from liftpy_log.segments.retention import retention_offset
from liftpy_log.storage.files import FileCache
from support.examples import examples
from support.log_model import DIRECTORY, T0, OpenLog, check_read, numbered_body
from support.simdisk import Order, SimDisk

SMALL = LogConfig(segment_bytes=1_500)  # four batches of one record
RECORDS, SIZES = st.integers(1, 5), st.integers(0, 300)


class LogMachine(RuleBasedStateMachine):
    """A log and the list that it must equal."""

    @initialize(
        segment_bytes=st.sampled_from((400, 1_500, 10**6)),
        segment_age=st.sampled_from((3, 50, 10**9)),
        interval=st.sampled_from((1, 700, 10**6)),
        keep=st.booleans(),
    )
    def begin(self, segment_bytes, segment_age, interval, keep):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(segment_module, "INDEX_INTERVAL_BYTES", interval)
        self.patch.setattr(segment_module, "INDEX_FLUSH_ENTRIES", 3)
        config = LogConfig(segment_bytes=segment_bytes, segment_age_ns=segment_age, keep_unsynced=keep)
        self.open = OpenLog(SimDisk(), config)
        self.now, self.epoch, self.hint = T0, 0, None

    @property
    def log(self):
        return self.open.log

    @property
    def model(self):
        return self.open.model

    def teardown(self):
        if hasattr(self, "patch"):
            self.patch.undo()

    @rule(shapes=st.lists(st.tuples(RECORDS, SIZES, st.integers(-5, 8)), min_size=1, max_size=8))
    def append(self, shapes):
        for records, size, later in shapes:
            self.now += later
            self.open.append(records, size, now=self.now, epoch=self.epoch)

    @rule(newer=st.integers(1, 3))
    def elect(self, newer):
        self.epoch += newer

    @rule()
    def roll(self):
        self.log.roll()
        assert self.log.synced_end == self.log.log_end or not self.log.active.size

    @rule()
    def commit(self):
        self.open.commit()
        assert (self.log.synced_end, self.log.durability.unsynced_bytes) == (self.log.log_end, 0)

    @rule(offset=st.integers(0, 200))
    def purge(self, offset):
        self.log.purge(offset)
        self.model.log_start = max(self.model.log_start, min(offset, self.model.end))

    @rule(age=st.integers(1, 30), bytes_max=st.integers(500, 5_000), messages_max=st.integers(1, 60))
    def retain(self, age, bytes_max, messages_max):
        segments = list(self.log.segments)
        offset = retention_offset(segments, before_ns=self.now - age, bytes_max=bytes_max, messages_max=messages_max)
        dropped = self.log.drop_before(offset or 0)
        assert list(self.log.segments) == segments[dropped:]
        assert all(segment.next_offset > (offset or 0) for segment in self.log.segments[:-1])
        if dropped:
            self.model.log_start = max(self.model.log_start, self.log.segments[0].base_offset)
        assert {segment.path for segment in self.log.segments} == set(self.open.disk.files(".log"))

    @rule()
    def flush_index(self):
        self.log.flush_index()

    @rule(clean=st.booleans(), verify_bytes=st.sampled_from((0, 500, 10**9)))
    def reopen(self, clean, verify_bytes):
        if clean:
            self.log.close()
        self.open.reopen(log_start=self.model.log_start, durable_end=self.log.synced_end, verify_bytes=verify_bytes)
        self.hint = None

    @rule(data=st.data(), bytes_max=st.sampled_from((1, 600, 3_000, 10**9)))
    def read(self, data, bytes_max):
        edges = [edge for edge in self.model.edges if edge >= self.model.log_start]
        end = data.draw(st.sampled_from(edges))
        follow = self.hint is not None and self.model.log_start <= self.hint.next_offset <= end
        offset = self.hint.next_offset if follow else data.draw(st.integers(self.model.log_start, end))
        slices = check_read(self.open.disk, self.log, self.model, offset, end, bytes_max, self.hint)
        self.hint = slices[-1] if slices else None

    @rule(moment=st.integers(-10, 200))
    def look_up_time(self, moment):
        assert self.log.offset_at_time(T0 + moment) == self.model.offset_at_time(T0 + moment)

    @invariant()
    def equals_the_list(self):
        if not hasattr(self, "open"):
            return
        log, segments = self.log, self.log.segments
        self.open.check()
        if log.log_start < log.log_end:
            assert log.epochs.entries == self.model.epochs()
        assert log.size_bytes == sum(len(data) for data in self.open.disk.files(".log").values())
        assert log.synced_end <= log.log_end
        assert all(one.next_offset == successor.base_offset for one, successor in pairwise(segments))
        assert len(self.open.disk.open_files) <= 4


def test_it_equals_a_list():
    run_state_machine_as_test(LogMachine, settings=examples(150, stateful_step_count=25))


def test_offsets_are_contiguous_and_times_never_go_back():
    log, rng = OpenLog(SimDisk(), SMALL), random.Random(1)
    times = [T0 + rng.randint(-10, 10) * 10**9 for _ in range(200)]
    for time in times:
        log.append(rng.randint(1, 4), now=time)
    stored = [batch.timestamp for batch in log.model.batches]
    assert stored == sorted(stored)
    assert all(found >= given_ for found, given_ in zip(stored, times, strict=True))
    assert log.log.last_timestamp == stored[-1] == max(times)
    log.reopen()
    log.append(now=T0 - 10**12)
    assert log.model.batches[-1].timestamp == stored[-1]


def test_times_do_not_go_back_in_a_new_segment():
    log = OpenLog(SimDisk()).fill(1, now=T0 + 50)
    log.log.roll()
    log.reopen()
    assert log.append(now=T0).timestamp == T0 + 50


def test_a_segment_is_closed_at_its_size():
    log = OpenLog(SimDisk(), SMALL).fill(30)
    log.append(size=5_000)
    log.fill(3)
    sizes = [segment.size for segment in log.log.segments]
    length = len(log.model.batches[0].data)
    assert set(sizes[:-3]) == {1_500 // length * length}
    assert sizes[-2] > 5_000, "a batch that is too large for any segment has one for itself"


def test_a_segment_is_closed_at_its_age():
    log = OpenLog(SimDisk(), LogConfig(segment_age_ns=100))
    for later in (0, 99, 100, 150, 199, 200):
        log.append(now=T0 + later)
    assert [segment.base_offset for segment in log.log.segments] == [0, 2, 5]


def test_a_segment_with_nothing_in_it_is_not_closed():
    log = OpenLog(SimDisk())
    log.log.roll()
    assert len(log.log.segments) == 1
    log.append()
    for _ in range(3):
        log.log.roll()
    assert [segment.base_offset for segment in log.log.segments] == [0, 1]


def test_what_a_round_would_make_durable():
    log = OpenLog(SimDisk()).fill(3)
    tail, unsynced = log.log.durability.sync_target()
    content = log.disk.content(log.path)
    assert tail == Tail(log.log.active, len(content), 3)
    assert b"".join(bytes(part) for entry in unsynced for part in entry.parts) == content
    lengths = [len(batch.data) for batch in log.model.batches]
    assert [entry[::3] for entry in unsynced] == [(log.log.active, 1), (log.log.active, 2), (log.log.active, 3)]
    assert [entry.position for entry in unsynced] == [0, lengths[0], lengths[0] + lengths[1]]
    assert all(isinstance(entry, Unsynced) for entry in unsynced)
    assert log.log.durability.unsynced_bytes == len(content)
    log.log.durability.mark_synced(2)
    assert (log.log.synced_end, log.log.durability.unsynced_bytes) == (2, lengths[2])
    log.log.durability.mark_synced(1)
    assert log.log.synced_end == 2, "it never goes back"


def test_without_a_write_ahead_log_nothing_is_kept_in_memory():
    log = OpenLog(SimDisk(), LogConfig(keep_unsynced=False)).fill(3)
    assert log.log.durability.sync_target()[1] == []
    assert log.log.durability.unsynced_bytes == 0


def test_a_closed_segment_is_durable_before_its_successor_exists():
    log = OpenLog(SimDisk()).fill(3)
    kinds = []
    log.disk.before = lambda operation: kinds.append((operation.kind, operation.path.name))
    log.log.roll()
    assert kinds[0] == ("sync", f"{0:020d}.log")
    assert kinds[-2:] == [("create", f"{3:020d}.log"), ("sync_directory", "0")]
    assert (log.log.synced_end, log.log.durability.unsynced_bytes) == (3, 0)


def test_purge_moves_the_start_and_deletes_what_lies_wholly_below():
    log = OpenLog(SimDisk(), SMALL).fill(20)
    inside = log.log.segments[2].base_offset + 1
    log.log.purge(inside)
    log.model.log_start = inside
    log.check()
    assert log.log.segments[0].base_offset == inside - 1
    log.log.purge(inside - 1)
    assert log.log.log_start == inside, "the start never moves back"
    with pytest.raises(OffsetOutOfRangeError):
        log.log.read(inside - 1, 20, 1)


@pytest.mark.parametrize("offset", [20, 21, 10**9])
def test_purge_of_everything(offset):
    log = OpenLog(SimDisk(), SMALL).fill(20)
    log.log.purge(offset)
    log.model.log_start = 20
    log.check()
    assert (log.log.size_bytes, log.log.last_timestamp, list(log.disk.files(".log"))) == (0, 0, [log.path])
    log.append()
    log.reopen(log_start=20)
    log.check()


@pytest.mark.parametrize("how", ["purge", "retention"])
def test_epochs_after_everything_went_are_those_of_the_next_opening(how):
    log = OpenLog(SimDisk(), SMALL)
    for number in range(9):
        log.append(epoch=number)
    if how == "purge":
        log.log.purge(log.model.end)
    else:
        log.log.roll()
        log.log.drop_before(log.model.end)
    before = log.log.epochs.entries
    assert log.reopen(log_start=log.model.end).epochs.entries == before


def test_a_log_that_lost_its_end_below_a_purge_goes_on_at_the_purge():
    """With `sync = interval` a power loss may take back records below an offset up to which the log was purged."""
    log = OpenLog(SimDisk(), LogConfig(keep_unsynced=False)).fill(3)
    opened = log.reopen(log_start=5)
    appended = opened.append(numbered_body(9), leader_epoch=0, timestamp=T0)
    assert appended.base_offset >= 5, "offsets only grow, and one below the start is never read"
    assert opened.read(5, opened.log_end, 10**9)[-1].next_offset == appended.next_offset


def test_an_older_epoch_is_refused_before_anything_is_written():
    log = OpenLog(SimDisk()).fill(2, epoch=5)
    with pytest.raises(AssertionError):
        log.log.append(numbered_body(9), leader_epoch=4, timestamp=T0)
    log.check()
    assert log.disk.content(log.path) == b"".join(batch.data for batch in log.model.batches)
    log.append(epoch=5)
    log.check()
    log.reopen()
    log.check()


@pytest.mark.parametrize("order", Order)
def test_close_makes_everything_durable_and_gives_the_files_back(order):
    log = OpenLog(SimDisk(), SMALL).fill(10)
    log.log.close()
    assert log.disk.open_files == set()
    assert (log.log.synced_end, log.log.durability.unsynced_bytes) == (10, 0)
    disk = log.disk
    for seed in range(20):
        log.disk = disk.crash(random.Random(seed), order)
        log.reopen(durable_end=10)
        log.check()


def test_release_gives_the_files_back():
    log = OpenLog(SimDisk(), SMALL).fill(10)
    log.log.release()
    assert log.disk.open_files == set()


# A full disk.


@pytest.mark.parametrize("room", [0, 1, 87, 88, 100, 359])
def test_a_full_disk_refuses_a_batch_and_nothing_of_it_stays(room):
    log = OpenLog(SimDisk()).fill(3)
    content = log.disk.content(log.path)
    log.disk.capacity = len(content) + room
    for _ in range(2):
        with pytest.raises(StorageFullError, match=f"no room on the disk of {log.path}") as caught:
            log.log.append(numbered_body(9), leader_epoch=0, timestamp=T0)
        assert caught.value.retriable
        assert log.disk.content(log.path) == content
        log.check()
    log.disk.heal()
    log.fill(3)
    log.check()
    log.reopen()
    log.check()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_every_way_of_being_full(code):
    log = OpenLog(SimDisk()).fill(3)
    log.disk.fail("write", code=code)
    with pytest.raises(StorageFullError):
        log.append()
    log.check()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("work", [lambda log: log.append(epoch=1), lambda log: log.log.roll()], ids=["append", "roll"])
def test_a_file_that_can_not_be_opened_for_a_moment_does_not_take_the_partition_offline(code, work):
    log = OpenLog(SimDisk()).fill(3)
    log.files.forget(log.log.active)
    log.disk.fail("open", code=code)
    with pytest.raises(StorageFullError, match="can not be opened now"):
        work(log)
    assert log.log.failure is None
    log.append(epoch=0)
    log.check()
    log.log.roll()
    log.fill(2)
    log.reopen()
    log.check()


def test_a_batch_that_can_not_be_cut_back_takes_the_partition_offline():
    log = OpenLog(SimDisk()).fill(3)
    log.disk.fail("write", code=errno.ENOSPC)
    log.disk.fail("truncate", code=errno.EIO)
    with pytest.raises(PartitionOfflineError, match=f"cutting {log.path} back failed"):
        log.append()
    check_offline(log)
    log.reopen()
    log.check()


ROLL_OPERATIONS = [
    *(("create", ".index.tmp"), ("write", ".index.tmp"), ("rename", ".index"), ("create", ".timeindex.tmp")),
    *(("write", ".timeindex.tmp"), ("rename", ".timeindex"), ("create", ".log"), ("sync_directory", "")),
]


@pytest.mark.parametrize(("kind", "suffix"), ROLL_OPERATIONS)
@pytest.mark.parametrize("again", ["append", "roll", "reopen"])
def test_a_disk_too_full_for_a_new_segment_lets_the_old_one_grow(monkeypatch, kind, suffix, again):
    monkeypatch.setattr(segment_module, "INDEX_INTERVAL_BYTES", 1)
    log = OpenLog(SimDisk()).fill(3)
    log.disk.fail(kind, code=errno.ENOSPC, where=lambda path: path.name.endswith(suffix))
    with pytest.raises(StorageFullError, match="no room for a new segment"):
        log.log.roll()
    log.fill(2)
    log.check()
    if again == "roll":
        log.log.roll()
        assert [segment.base_offset for segment in log.log.segments] == [0, 5]
    if again != "append":
        log.fill(1)
        log.reopen(durable_end=5)
    log.check()


@pytest.mark.parametrize(("kind", "suffix"), ROLL_OPERATIONS)
def test_a_disk_too_full_for_a_new_segment_refuses_the_batch_that_needs_one(kind, suffix):
    log = OpenLog(SimDisk(), LogConfig(segment_bytes=1_000)).fill(2)
    log.disk.fail(kind, code=errno.ENOSPC, times=3, where=lambda path: path.name.endswith(suffix))
    for _ in range(3):
        with pytest.raises(StorageFullError, match="no room for a new segment"):
            log.append(size=500)
        log.check()
    log.append(size=500)
    log.check()
    assert [segment.base_offset for segment in log.log.segments] == [0, 2]
    log.reopen(durable_end=log.log.synced_end)
    log.check()


def test_a_disk_too_full_for_an_index_harms_nobody(monkeypatch):
    monkeypatch.setattr(segment_module, "INDEX_INTERVAL_BYTES", 1)
    monkeypatch.setattr(segment_module, "INDEX_FLUSH_ENTRIES", 2)
    log = OpenLog(SimDisk()).fill(3)
    log.disk.fail("create", "write", code=errno.ENOSPC, times=None)
    log.log.flush_index()
    log.disk.heal()
    log.fill(3)
    log.log.flush_index()
    assert len(log.log.active.load_index()) == 6


def test_a_disk_too_full_for_an_index_does_not_make_a_clean_end_unclean():
    log = OpenLog(SimDisk()).fill(3)
    log.disk.fail("create", "write", code=errno.ENOSPC, times=None)
    log.log.close()
    assert log.log.failure is None
    assert (log.log.synced_end, log.log.durability.unsynced_bytes, log.disk.open_files) == (3, 0, set())


@pytest.mark.parametrize("seed", range(50))
def test_a_disk_that_is_full_now_and_then(seed):
    rng = random.Random(seed)
    log = OpenLog(SimDisk(), LogConfig(segment_bytes=rng.choice((800, 2_500))))
    refused = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_module, "INDEX_INTERVAL_BYTES", rng.choice((1, 900)))
        for _ in range(60):
            step = rng.choice((*("append",) * 4, "roll", "full", "fault", "room", "flush", "drop", "reopen"))
            try:
                if step == "append":
                    log.append(rng.randint(1, 3), rng.randint(0, 200))
                elif step == "roll":
                    log.log.roll()
                elif step == "full":
                    used = sum(len(content) for content in log.disk.files().values())
                    log.disk.capacity = used + rng.choice((0, 10, 200, 700))
                elif step == "fault":
                    kind = rng.choice(("write", "create", "rename", "sync_directory"))
                    log.disk.fail(kind, code=errno.ENOSPC, skip=rng.randint(0, 4))
                elif step == "room":
                    log.disk.heal()
                elif step == "flush":
                    log.log.active.flush_index()
                elif step == "drop":
                    log.log.drop_before(rng.randint(0, log.model.end))
                    log.model.log_start = log.log.log_start
                else:
                    log.disk.heal()
                    log.disk = log.disk.kill()
                    log.reopen(durable_end=log.log.synced_end)
            except StorageFullError:
                refused[step] += 1
            except OSError:
                assert step == "flush", f"seed {seed}"
            log.check()


# I/O errors.


def check_offline(log):
    """Whatever it is asked for, it says no, and it never touches the disk again."""
    log.disk.heal()
    counts = log.disk.counts.copy()
    assert log.log.failure is not None
    with pytest.raises(PartitionOfflineError):
        log.append(epoch=9)
    with pytest.raises(PartitionOfflineError):
        log.log.read(0, 0, 1)
    log.log.close()
    assert log.disk.counts == counts
    assert log.disk.open_files == set()


@pytest.mark.parametrize(
    "use",
    [
        lambda log: log.roll(),
        lambda log: log.purge(1),
        lambda log: log.offset_at_time(T0),
    ],
    ids=["roll", "purge", "offset_at_time"],
)
def test_a_log_that_failed_refuses_everything(use):
    log = OpenLog(SimDisk()).fill(3)
    log.disk.fail("sync", code=errno.EIO)
    with pytest.raises(PartitionOfflineError):
        log.log.roll()
    with pytest.raises(PartitionOfflineError):
        use(log.log)
    assert log.log.synced_end == 0, "a sync that failed is never tried again on the same file"


def test_an_error_while_writing_takes_the_partition_offline():
    log = OpenLog(SimDisk()).fill(3)
    log.disk.fail("write", code=errno.EIO)
    with pytest.raises(PartitionOfflineError, match=f"writing {log.path} failed: .*Input/output error") as caught:
        log.append()
    assert not caught.value.retriable
    assert log.log.failure is caught.value
    check_offline(log)
    log.reopen()
    log.check()


def test_an_error_while_opening_takes_the_partition_offline():
    log = OpenLog(SimDisk()).fill(3)
    log.files.close()
    log.disk.fail("open", code=errno.EIO)
    with pytest.raises(PartitionOfflineError, match=f"opening {log.path} failed"):
        log.append()
    check_offline(log)


def test_an_error_of_the_sync_takes_the_partition_offline_and_makes_nothing_durable():
    log = OpenLog(SimDisk()).fill(3)
    log.disk.fail("sync", code=errno.EIO)
    with pytest.raises(PartitionOfflineError, match=f"fdatasync of {log.path} failed"):
        log.log.roll()
    assert log.log.synced_end == 0
    check_offline(log)


@pytest.mark.parametrize(("kind", "suffix"), [("create", ".log"), ("sync_directory", "")])
def test_an_error_while_creating_a_segment_takes_the_partition_offline(kind, suffix):
    log = OpenLog(SimDisk()).fill(3)
    log.disk.fail(kind, code=errno.EIO, where=lambda path: path.name.endswith(suffix))
    with pytest.raises(PartitionOfflineError, match=r"creating a segment in .* failed"):
        log.log.roll()
    check_offline(log)
    log.reopen(durable_end=3)
    log.check()


def test_an_error_while_closing_is_told_and_nothing_is_durable():
    log = OpenLog(SimDisk()).fill(3)
    log.disk.fail("sync", code=errno.EIO)
    with pytest.raises(PartitionOfflineError, match=f"closing {log.path} failed"):
        log.log.close()
    assert log.log.synced_end == 0
    check_offline(log)


@pytest.mark.parametrize("use", ["drop_before", "purge"])
def test_an_error_while_deleting_takes_the_partition_offline(use):
    log = OpenLog(SimDisk(), SMALL).fill(12)
    log.disk.fail("remove", code=errno.EIO)
    with pytest.raises(LiftError):
        getattr(log.log, use)(log.log.segments[-1].base_offset)
    check_offline(log)


def test_damage_that_a_read_meets_takes_the_partition_offline(monkeypatch):
    """As the error says: it stays offline, so that nothing after the damage is lost."""
    monkeypatch.setattr(segment_module, "INDEX_INTERVAL_BYTES", 10**9)
    log = OpenLog(SimDisk()).fill(5)
    content = bytearray(log.disk.content(log.path))
    content[len(log.model.batches[0].data) + 40] ^= 1
    log.disk.overwrite(log.path, content)
    with pytest.raises(PartitionOfflineError, match="is damaged at byte"):
        log.log.read(3, 5, 1)
    with pytest.raises(PartitionOfflineError):
        log.append()
    assert log.disk.content(log.path) == content


def test_the_first_error_is_the_one_that_is_remembered():
    log = OpenLog(SimDisk())
    first = log.log.durability.fail("one")
    assert log.log.durability.fail("two") is first
    assert str(log.log.failure) == "one"


def offline_log():
    disk, failure = SimDisk(), PartitionOfflineError("it is damaged")
    return disk, PartitionLog.offline(disk, FileCache(disk, 4), DIRECTORY, failure)


@pytest.mark.parametrize(
    "use",
    [
        lambda log: log.append(numbered_body(1), leader_epoch=0, timestamp=T0),
        lambda log: log.read(0, 0, 1),
        lambda log: log.roll(),
        lambda log: log.purge(1),
        lambda log: log.offset_at_time(T0),
    ],
    ids=["append", "read", "roll", "purge", "offset_at_time"],
)
def test_a_log_that_could_not_be_opened_refuses_everything_and_says_why(use):
    _, log = offline_log()
    with pytest.raises(PartitionOfflineError, match="it is damaged"):
        use(log)


def test_a_log_that_could_not_be_opened_is_empty_and_touches_nothing():
    disk, log = offline_log()
    assert (log.log_start, log.log_end, log.size_bytes, log.last_timestamp, list(log.segments)) == (0, 0, 0, 0, [])
    assert log.drop_before(5) == 0
    log.close()
    log.release()
    assert disk.counts == Counter()
