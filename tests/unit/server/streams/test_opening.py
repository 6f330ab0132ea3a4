"""Opening the logs of partitions: where an empty one begins, and what is told before the node registers."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from unittest.mock import Mock

import pytest

from liftpy_envelope.stream_config import StreamConfig
from liftpy_log.checkpoint import Checkpoint
from liftpy_log.clock import SystemClock
from liftpy_log.data_dir import DataDir
from liftpy_log.errors import UnfinishedCutError
from liftpy_log.ids.ordered import OrderedProducers, StoredBatch, save_ordered
from liftpy_log.log_time import LogTimeState
from liftpy_log.storage.disk import OsDisk
from liftpy_log.storage.files import FileCache
from liftpy_server.gaps.gap import Gap
from liftpy_server.metadata.state import MetadataState, PartitionInfo, StreamInfo
from liftpy_server.partition.committing import Load
from liftpy_server.partition.outbox import Outbox
from liftpy_server.replication.host.durability_record import DurabilityRecord
from liftpy_server.streams.opening import StreamOpening
from support.durability_records import proven
from support.gap_notes import GapNotes
from support.log_batches import headers_of, with_times
from support.server_kit import SetClock
from support.simdisk import ROOT, SimDisk

CONFIG = StreamConfig(name="orders", subject="orders.>")
UUID = "ab" * 16


@pytest.fixture
def opening(tmp_path):
    disk, data_dir = OsDisk(), DataDir.open(tmp_path / "data", "n1")
    files = FileCache(disk, 16)
    data_dir.streams_directory.mkdir(parents=True, exist_ok=True)
    yield StreamOpening(
        "n1", disk, files, data_dir, Checkpoint(), SystemClock(), None, Load(), lambda _log: None, GapNotes()
    )
    files.close()
    data_dir.close()


def info(*replicas, **marks):
    partition = PartitionInfo(replicas=replicas, isr=replicas, leader=replicas[0], leader_epoch=10_003, **marks)
    return StreamInfo(uuid=UUID, config=CONFIG, created_ns=1, partitions=(partition,))


def opened(opening, stream):
    local = opening.begin(stream)
    opening.open_partition(local, 0)
    return local.partitions[0]


@pytest.mark.parametrize("replicas", [("n1",), ("n2", "n1")], ids=["alone", "follower"])
@pytest.mark.parametrize("is_made_ahead", [False, True])
@pytest.mark.parametrize(
    ("marks", "begins"),
    [({}, 0), ({"log_start": 5, "local_start": 70}, 70), ({"log_start": 90, "local_start": 70}, 90)],
)
def test_an_empty_log_begins_behind_what_is_in_the_bucket_alone(opening, replicas, is_made_ahead, marks, begins):
    stream = info(*replicas, **marks)
    if is_made_ahead:
        opening.make_names([stream])
    partition = opened(opening, stream)
    log = partition.log
    assert (log.failure, log.log_start, log.log_end, partition.high_watermark) == (None, begins, begins, begins)
    assert [segment.base_offset for segment in log.segments] == [begins]
    log.close()


def test_a_restored_log_goes_on_at_the_time_of_the_newest_record_in_the_bucket(opening):
    """So ids and records of before the loss are as old as they were, however long the cluster was away."""
    newest_ns = 10**18
    partition = opened(opening, info("n1", local_start=70, restored_time=newest_ns))
    assert 0 <= partition.now_ns() - newest_ns < 60 * 10**9
    stamped = partition.log_time.stamp(newest_ns + 3_600 * 10**9, SystemClock().elapsed())
    assert partition.log_time.leapt_ns >= 3_500 * 10**9, "the time of the new cluster's clock does not age what was"
    assert partition.log_time.before(stamped, 120 * 10**9) <= newest_ns
    partition.log.close()


@pytest.mark.parametrize("is_made_ahead", [False, True])
@pytest.mark.parametrize(
    ("replicas", "marks", "has_failed"),
    [
        (("n1",), {"first_end": 2}, True),
        (("n1",), {"first_end": 2, "log_start": 2}, False),  # they were purged
        (("n2", "n1"), {"first_end": 2}, False),  # they are copied
    ],
)
def test_the_only_log_is_not_begun_anew_where_the_metadata_know_of_records(
    opening, replicas, marks, has_failed, is_made_ahead
):
    """As where its directory vanished before the first checkpoint."""
    stream = info(*replicas, **marks)
    if is_made_ahead:
        opening.make_names([stream])
    log = opened(opening, stream).log
    assert (log.failure is not None) is has_failed
    log.close()


@pytest.mark.parametrize(("replicas", "since_ns"), [(("n1",), 7 * 10**9), (("n1", "n2"), 2 * 10**9)])
def test_the_end_of_a_gap_says_nothing_of_another_log(opening, replicas, since_ns):
    """The other replica led, and listened again; what came before then may be in its log alone."""
    gap = Gap(id="n2.1.1", since_ns=5 * 10**9, until_ns=7 * 10**9, cause="c")
    stream = replace(info(*replicas), gaps={0: (gap,)}, created_ns=2 * 10**9)
    local = opening.begin(stream)
    opening.open_partition(local, 0)
    clock = opening._clock
    since_s = opening.whole_until_s(local, local.partitions[0])
    assert clock.now_ns() - (clock.elapsed() - since_s) * 1e9 == pytest.approx(since_ns, abs=1e9)


def test_a_log_with_records_stays_as_it_is(opening):
    stream = info("n1", log_start=5, local_start=70)
    first = opened(opening, stream)
    data = with_times(70, [1, 2, 3], epoch=10_003)
    first.log.append_batches(data, headers_of(data))
    first.log.close()
    partition = opened(opening, replace(stream, version=2))
    assert (partition.log.log_start, partition.log.log_end) == (70, 73)
    partition.log.close()


class Life:
    """One run of a node after the other on a simulated disk, up to where it registers, and beyond."""

    def __init__(self):
        self.disk = SimDisk()
        self.disk.make_directory(ROOT / "streams")
        proven(self.disk, ROOT)
        self.checkpoint = Checkpoint()
        self.begin()

    def begin(self):
        self.disk = self.disk.kill()
        self.record = DurabilityRecord(self.disk, ROOT / "standing.json", "boot")
        self.files = FileCache(self.disk, 16)
        data_dir = DataDir(ROOT, -1)
        self.opening = StreamOpening(
            *("n1", self.disk, self.files, data_dir, self.checkpoint, SetClock(), Outbox(lambda _: True), Load()),
            *(lambda _log: None, None, self.record),
        )

    def filled(self, stream):
        """A run in which a log comes to 3 batches of 3 records each. Returns its file."""
        log = opened(self.opening, stream).log
        for base in (0, 3, 6):
            data = with_times(base, [1, 2, 3], epoch=10_003)
            log.append_batches(data, headers_of(data))
        log.close()
        self.begin()
        return log.active.path

    def knows(self, mark):
        """The checkpoint says that records below `mark` were committed."""
        place = bytes.fromhex(UUID), 0
        self.checkpoint = Checkpoint(
            True, {place: mark}, {place: LogTimeState(10**9, ())}, {place: [(self.opening._clock.now_ns(), mark)]}
        )
        self.begin()

    def torn(self, path):
        self.disk.overwrite(path, self.disk.content(path)[:-1])

    def told(self, stream):
        """What the node would register with: logs that were cut, that failed, and that are lost."""
        state = state_of(stream)
        asyncio.run(self.opening.open_logs(state))
        return [
            tell(state, "n1")
            for tell in (
                self.record.cut_logs,
                self.record.failed_logs,
                self.record.lost_logs,
            )
        ]


def state_of(stream):
    return MetadataState(streams={stream.name: stream})


@pytest.fixture
def life():
    return Life()


THIS = [(UUID, 0)]


def test_a_log_that_is_whole_is_opened_once_and_nothing_is_told(life, monkeypatch):
    stream = info("n2", "n1")
    life.filled(stream)
    assert life.told(stream) == [[], [], []]
    monkeypatch.delattr("liftpy_server.streams.opening.PartitionLog.open")
    partition = opened(life.opening, stream)
    assert (partition.log.log_end, partition.log.torn_tail) == (9, None)


def test_a_cut_end_is_told_of_when_the_node_registers_however_often_it_is_killed_before(life, caplog):
    stream = info("n2", "n1")
    path = life.filled(stream)
    life.torn(path)
    for _ in range(3):
        life.begin()
        assert life.told(stream) == [THIS, [], []]
    assert "stream orders partition 0: the end of its log can not be read, from offset 6 on" in caplog.text
    assert opened(life.opening, stream).log.log_end == 6


def test_an_end_that_can_not_be_told_of_is_not_cut(life):
    """The log can not be used in this run; the next one finds it as it was."""
    stream = info("n2", "n1")
    path = life.filled(stream)
    life.torn(path)
    before = life.disk.content(path)
    life.disk.fail("create", "write", code=errno.ENOSPC, times=None, where=lambda path: "standing" in path.name)
    assert life.told(stream) == [[], THIS, []]
    assert life.disk.content(path) == before
    assert life.told(stream) == [[], THIS, []]
    assert life.disk.content(path) == before
    assert "No space left" in str(opened(life.opening, stream).log.failure)
    life.begin()
    assert life.told(stream) == [THIS, [], []]


def test_the_cut_end_of_the_only_copy_is_told_to_no_one_who_could_have_more(life):
    stream = info("n1")
    path = life.filled(stream)
    life.torn(path)
    size = len(life.disk.content(path))
    life.disk.fail("create", "write", code=errno.ENOSPC, times=None, where=lambda path: "standing" in path.name)
    assert life.told(stream) == [[], [], []]
    log = opened(life.opening, stream).log
    assert log.torn_tail == (path, log.size_bytes, size - log.size_bytes, 6)


def test_a_log_that_is_not_there_is_missed_until_the_node_has_registered(life):
    stream = info("n2", "n1")
    for _ in range(2):
        life.begin()
        assert life.told(stream) == [[], [], THIS]
    assert opened(life.opening, stream).log.failure is None
    life.begin()
    assert life.told(stream) == [[], [], []]


def test_a_log_that_fails_at_opening_is_told_of_with_the_same_start(life):
    stream = info("n2", "n1")
    path = life.filled(stream)
    content = bytearray(life.disk.content(path))
    content[100] ^= 1
    life.disk.overwrite(path, content)
    for _ in range(2):
        life.begin()
        assert life.told(stream) == [[], THIS, THIS]


def test_a_log_that_can_not_be_opened_now_is_told_of_with_this_start_and_not_with_the_next(life):
    stream = info("n2", "n1")
    life.filled(stream)
    life.disk.fail("open", code=errno.EMFILE, times=None, where=lambda path: path.suffix == ".log")
    assert life.told(stream) == [[], THIS, []]
    life.begin()
    assert life.told(stream) == [[], [], []]


async def test_the_node_votes_while_it_opens_logs(life):
    names = [f"s{number}" for number in range(20)]
    streams = [replace(info("n2", "n1"), config=replace(CONFIG, name=name, subject=name)) for name in names]
    for stream in streams:
        opened(life.opening, stream).log.close()
    life.begin()
    opening = asyncio.create_task(life.opening.open_logs(MetadataState(streams={each.name: each for each in streams})))
    turns = 0
    while not opening.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= len(streams)


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_disk_that_fails_says_something_of_what_is_on_it(life, code):
    stream = info("n2", "n1")
    life.filled(stream)
    life.disk.fail("open", code=code, times=None, where=lambda path: path.suffix == ".log")
    assert life.told(stream)[1] == THIS
    assert not life.opening.try_again(stream, 0), "only lack of room or files passes by itself"
    life.begin()
    assert life.told(stream)[1] == (THIS if code == errno.EIO else [])


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC, errno.ENOMEM])
def test_a_log_that_could_not_be_opened_for_lack_of_something_is_opened_later(life, code):
    stream = info("n2", "n1")
    life.torn(life.filled(stream))
    life.disk.fail("open", "create", code=code, times=None, where=lambda path: path.suffix in {".log", ".tmp"})
    assert life.told(stream) == [[], THIS, []]
    partition = opened(life.opening, stream)
    partition.fail(str(partition.log.failure))  # as maintenance does
    assert not life.opening.try_again(stream, 0)
    assert life.record.failed_logs(state_of(stream), "n1") == THIS
    life.disk.heal()
    assert life.opening.try_again(stream, 0)
    assert opened(life.opening, stream).log.log_end == 6
    assert not life.opening.try_again(stream, 0), "it is open"
    assert life.record.failed_logs(state_of(stream), "n1") == []
    life.begin()
    assert life.record.cut_logs(state_of(stream), "n1") == THIS, "the end was cut after the node had registered"


def test_what_could_not_be_opened_takes_no_room_of_the_nodes_ordered_producers(life, monkeypatch):
    """It is tried every few seconds: after some of them the node would refuse new producers for good."""
    stream = info("n2", "n1")
    path = life.filled(stream)
    ordered = OrderedProducers()
    for offset in range(6):
        ordered.add(bytes([offset]) * 16, StoredBatch(1, offset, offset, 1, 0), 6)
    save_ordered(life.disk, path.parent, ordered.encode(6))
    memory = life.opening._ordered_memory
    with monkeypatch.context() as patch:
        lack = OSError(errno.EMFILE, "too many open files")
        patch.setattr("liftpy_server.streams.opening.note_log", Mock(side_effect=lack))
        partition = opened(life.opening, stream)
        partition.fail(str(partition.log.failure))
        for _ in range(3):
            assert not life.opening.try_again(stream, 0)
        assert memory.producers == 0
    assert life.opening.try_again(stream, 0)
    assert (len(opened(life.opening, stream).dedupe.ordered), memory.producers) == (6, 6)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC])
def test_a_cut_that_lacked_something_in_the_middle_is_finished_later_in_the_same_run(life, code):
    stream = info("n2", "n1")
    life.filled(stream)
    partition = opened(life.opening, stream)
    life.disk.fail("truncate", code=code, times=None)
    with pytest.raises(UnfinishedCutError) as error:
        partition.log.truncate(6)
    partition.fail(str(error.value), is_lasting=False)
    assert not life.opening.try_again(stream, 0), "it lacks that still"
    assert life.record.failed_logs(state_of(stream), "n1") == THIS, "of this run"
    life.disk.heal()
    assert life.opening.try_again(stream, 0)
    log = opened(life.opening, stream).log
    assert (log.failure, log.log_end) == (None, 6)
    assert life.record.failed_logs(state_of(stream), "n1") == []
    life.begin()
    assert life.told(stream) == [[], [], []]


def opened_again(life, stream, partition):
    """Its log lacks a descriptor for a moment."""
    partition.fail("told to", is_lasting=False)
    assert life.opening.try_again(stream, 0)
    return opened(life.opening, stream)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_copy_that_is_opened_again_knows_nothing_of_the_log_before_it(life, is_kept):
    """As after an unclean election: what was committed of the log that was set aside may not be in the copy."""
    stream = info("n2", "n1")
    life.filled(stream)
    life.knows(9)
    first = opened(life.opening, stream)
    assert (first.high_watermark, first.whole.newest(9) is None) == (9, False)
    first.log.close()
    without = replace(stream, partitions=(replace(stream.partitions[0], isr=("n2",)),))
    if is_kept:
        life.opening.set_aside(without, 0, "damaged")
    else:  # it was moved elsewhere, and is back
        life.disk.remove(first.log.active.path)
        life.opening.forget_log(UUID, 0)
    copy = opened(life.opening, without)
    data = with_times(0, [1, 2, 3], epoch=10_004)
    copy.log.append_batches(data, headers_of(data))
    again = opened_again(life, without, copy)
    assert (again.log.failure, again.log.log_end, again.high_watermark) == (None, 3, 0)
    data = with_times(3, [4, 5, 6] * 2, epoch=10_004)
    again.log.append_batches(data, headers_of(data))
    assert again.whole.newest(9) is None


def test_a_log_that_is_opened_again_knows_what_was_committed_in_this_run(life):
    stream = info("n2", "n1")
    life.filled(stream)
    life.knows(6)
    first = opened(life.opening, stream)
    first.commit(9)
    again = opened_again(life, stream, first)
    assert (again.high_watermark, again.log_time.state() >= first.log_time.state()) == (9, True)
    again.was_cut(3)  # as where it is copied anew because it was away for too long
    again.log.rebuild(3)
    assert opened_again(life, stream, again).log.failure is None


def test_what_the_metadata_says_by_the_time_the_node_has_registered_is_what_counts(life):
    """Records were purged meanwhile, another's settings changed, and a third stream is gone."""
    stream = info("n2", "n1")
    life.filled(stream)
    assert life.told(stream) == [[], [], []]
    purged = info("n2", "n1", log_start=5)
    assert opened(life.opening, purged).log.log_start == 5
    life.begin()
    life.told(stream)
    changed = replace(stream, config=replace(CONFIG, segment_bytes=70_000_000))
    assert opened(life.opening, changed).log.config.segment_bytes == 70_000_000
    life.begin()
    life.told(stream)
    life.opening.release_rest()
    assert len(life.files) == 0
