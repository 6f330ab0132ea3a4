"""Retention drops what it may and nothing that is not committed; a full disk stops messages and lets them go on."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from liftpy_envelope.errors import AckErrorCode
from liftpy_envelope.stream_config import SyncMode
from liftpy_log.checkpoint import load_checkpoint
from liftpy_log.durability.group_commit import GroupCommit
from liftpy_log.errors import PartitionOfflineError
from liftpy_log.ids.ordered import OrderedProducers, load_ordered
from liftpy_log.partition_log import LogConfig
from liftpy_server.node import maintenance as maintenance_module
from liftpy_server.node.maintenance import Maintenance, keep_checkpoint, make_checkpoint, unsaved_ordered
from liftpy_server.settings.config import StorageConfig
from support.envelopes import idempotent
from support.nats_frames import header_block, msg
from support.server_kit import FlakyFile

RECORD = bytes(1_000)
DAY_S = 86_400


class Bench:
    """A stream whose segments hold two records each, and its node's maintenance."""

    def __init__(self, make_kit, tmp_path, **settings):
        self.kit = make_kit(log=LogConfig(segment_bytes=3_000), **settings)
        partitions = list(self.kit.partitions.values())
        at_intervals = {each.key: each for each in partitions if each.stream.config.sync is SyncMode.INTERVAL}
        self.streams = SimpleNamespace(partitions=partitions, by_interval=at_intervals, tell_records=lambda: None)
        self.data_dir = SimpleNamespace(root=tmp_path, checkpoint_path=tmp_path / "checkpoint")
        self.interval_syncs = []
        self.executor = ThreadPoolExecutor(max_workers=1)
        self.config = StorageConfig(disk_reserve_bytes=1_000)
        self.maintenance = Maintenance(
            self.streams,
            self.kit.disk,
            self.data_dir,
            self.config,
            self.kit.clock,
            self.interval_syncs.append,
            self.executor,
        )

    def store(self, count, *, sync=True, apart_s=0.0):
        for _ in range(count):
            self.kit.receive(msg(b"orders.a", RECORD, reply=b"r"))
            self.kit.clock.advance(apart_s)
        if sync:
            self.kit.sync()

    def retain(self):
        """Where the log begins, after a look at it."""
        self.maintenance.retain(self.kit.partition)
        return self.kit.log.log_start


@pytest.fixture
def bench(make_kit, tmp_path):
    benches = []

    def make(**settings):
        benches.append(Bench(make_kit, tmp_path, **settings))
        return benches[-1]

    yield make
    for each in benches:
        each.executor.shutdown()


def test_without_limits_everything_stays(bench):
    here = bench()
    here.store(10, apart_s=30 * DAY_S)
    assert (here.retain(), here.kit.log.log_end) == (0, 10)


def test_retention_by_messages(bench):
    here = bench(retention_messages=3)
    here.store(11)
    assert here.retain() == 8
    assert list(range(8, 11)) == [record.offset for record in here.kit.records()]


def test_retention_by_bytes(bench):
    here = bench()
    here.store(10)
    here.kit.change(retention_bytes=here.kit.log.segments[-1].size * 2)
    assert here.retain() == 6


def test_retention_by_age(bench):
    here = bench(retention_age_s=10)
    here.store(10, apart_s=2)
    assert here.retain() == 4


def test_quiet_stream_loses_its_old_records_too(bench):
    here = bench(retention_age_s=10)
    here.store(5)
    assert here.retain() == 0
    here.kit.clock.advance(10.5)
    assert here.retain() == 5
    assert here.kit.records() == []


def test_segment_that_grew_old_is_closed(bench):
    here = bench(segment_age_s=60)
    here.store(1)
    here.retain()
    assert len(here.kit.log.segments) == 1
    here.kit.clock.advance(61)
    here.retain()
    here.retain()
    assert len(here.kit.log.segments) == 2
    assert here.kit.stored() == [RECORD]


@pytest.mark.parametrize("settings", [{"retention_messages": 1}, {"retention_bytes": 1}, {"retention_age_s": 1}])
def test_records_that_are_not_committed_stay(bench, settings):
    here = bench(**settings)
    here.store(10)
    here.kit.clock.advance(100)
    here.kit.partition.high_watermark = 5  # as while followers are behind
    assert here.retain() == 4
    here.kit.partition.high_watermark = 8
    assert here.retain() == 8


def test_messages_that_a_closed_segment_made_durable_are_committed_and_acknowledged(bench):
    """The round that was asked for finds nothing left to do, so nobody else would tell."""
    here = bench(segment_age_s=60)
    here.store(2, sync=False)
    here.kit.clock.advance(61)
    here.retain()
    results = []
    GroupCommit(here.kit.files, None, results.extend).run_round([log.durability for log in here.kit.sync_requests])
    for _, next_offset, _ in results:
        here.kit.partition.on_synced(next_offset)
    here.kit.outbox.flush()
    assert (here.kit.partition.high_watermark, here.kit.offsets()) == (2, [(b"r", 0), (b"r", 1)])


def test_purge_commits_what_it_made_durable(bench):
    here = bench()
    here.store(2, sync=False)
    here.kit.partition.purge(2)
    assert (here.kit.partition.high_watermark, here.kit.offsets()) == (2, [(b"r", 0), (b"r", 1)])
    assert (here.kit.load.unsynced_bytes, here.kit.log.log_start) == (0, 2)


def test_retention_that_meets_a_broken_disk_tells_those_who_wait(bench):
    here = bench(segment_age_s=60)
    here.store(2, sync=False)
    here.kit.clock.advance(61)
    with (
        patch.object(FlakyFile, "sync", side_effect=OSError(errno.EIO, "told to")),
        pytest.raises(PartitionOfflineError),
    ):
        here.retain()
    assert here.kit.errors() == [(b"r", AckErrorCode.OUTCOME_UNKNOWN)] * 2
    assert here.kit.partition.high_watermark == 0


def test_checkpoint_says_what_is_committed(bench):
    here = bench()
    here.store(3)
    here.store(1, sync=False)
    checkpoint = make_checkpoint(here.streams, here.kit.clock, clean=True)
    key = (here.kit.partition.key.uuid, 0)
    assert (checkpoint.high_watermarks, checkpoint.clean) == ({key: 3}, True)


def test_checkpoint_leaves_out_what_is_offline(bench):
    here = bench()
    here.store(3)
    here.kit.log.durability.fail("told to")
    assert make_checkpoint(here.streams, here.kit.clock, clean=False).high_watermarks == {}


async def test_checkpoint_is_written(bench):
    here = bench()
    here.store(3)
    await here.maintenance._checkpoint()
    found = load_checkpoint(here.kit.disk, here.data_dir.checkpoint_path)
    assert make_checkpoint(here.streams, here.kit.clock, clean=False) == found


async def test_checkpoint_that_can_not_be_written_stops_nothing(bench, caplog):
    here = bench()
    here.kit.disk.is_full = True
    await here.maintenance._checkpoint()
    assert "checkpoint could not be written" in caplog.text


async def test_without_room_for_the_ordered_producers_there_is_no_checkpoint(bench, caplog):
    """It would say that a log without their file has none below."""
    here = bench()
    here.kit.receive(msg(b"orders.a", idempotent([b"v"], 1, producer_epoch=1, ack_inbox="r")))
    here.kit.sync()
    here.kit.disk.is_full = True
    await here.maintenance._checkpoint()
    assert "the checkpoint is not written: the file of the ordered producers" in caplog.text
    here.kit.disk.is_full = False
    assert not here.data_dir.checkpoint_path.exists()
    await here.maintenance._checkpoint()
    assert load_checkpoint(here.kit.disk, here.data_dir.checkpoint_path).high_watermarks
    log = here.kit.log
    assert len(load_ordered(here.kit.disk, log.directory, log.log_start, log.log_end, 0)) == 1


async def test_what_a_checkpoint_took_of_ordered_producers_is_not_written_over_what_came_later(bench):
    """The thread that writes it may be busy for seconds. What the file said was not so any more before, either."""
    here = bench()
    here.kit.receive(msg(b"orders.a", idempotent([b"v"], 1, producer_epoch=1, ack_inbox="r")))
    here.kit.sync()
    log, ordered = here.kit.log, here.kit.partition.dedupe.ordered
    ordered.saved_end = -1
    (unsaved,) = unsaved_ordered(here.streams, may_wait=False)
    log.save_ordered(OrderedProducers().encode(0))
    log.rebuild(5)
    ordered.clear(5)
    unsaved.save()
    unsaved.note()
    assert ordered.saved_end == -1
    assert len(load_ordered(here.kit.disk, log.directory, 0, 5, 0)) == 0


async def test_of_a_log_that_failed_nothing_is_written_and_no_checkpoint_says_that_it_was(bench):
    """Another log may be in its place when the thread has time for it."""
    here = bench()
    here.kit.receive(msg(b"orders.a", idempotent([b"v"], 1, producer_epoch=1, ack_inbox="r")))
    here.kit.sync()
    log = here.kit.log
    made = make_checkpoint(here.streams, here.kit.clock, clean=False)
    unsaved = unsaved_ordered(here.streams, may_wait=False)
    log.durability.fail("told to")
    keep_checkpoint(here.kit.disk, here.data_dir, made, unsaved)
    unsaved[0].note()
    assert here.kit.partition.dedupe.ordered.saved_end is None
    assert not here.data_dir.checkpoint_path.exists()
    assert len(load_ordered(here.kit.disk, log.directory, 0, 1, 0)) == 0


@pytest.mark.parametrize(("sync", "asked"), [("interval", 1), ("never", 0), ("always", 0)])
def test_interval_sync_is_for_streams_that_say_so(bench, sync, asked):
    here = bench(sync=sync)
    here.store(1, sync=False)
    here.maintenance._sync()
    assert [here.kit.log] * asked == here.interval_syncs


def test_interval_sync_leaves_out_what_is_on_disk(bench):
    here = bench(sync="interval")
    here.store(1)
    here.kit.partition.on_synced(1)
    here.maintenance._sync()
    assert here.interval_syncs == []


async def test_trouble_with_one_partition_does_not_stop_the_others(make_kit, tmp_path, caplog):
    here = Bench(make_kit, tmp_path, partitions=3, retention_messages=1, spread="mapping")
    for sid in (1, 2, 3):
        here.kit.receive(*(msg(b"lift.%d.orders.a" % (sid - 1), RECORD, sid) for _ in range(1)))
    here.kit.sync()
    with patch.object(
        Maintenance, "retain", side_effect=[here.kit.log.durability.fail("told to"), None, None]
    ) as retain:
        here.kit.log.durability.failure = None
        await here.maintenance._retain()
    assert retain.call_count == 3
    assert "retention of stream orders: told to" in caplog.text
    here.executor.shutdown()


def check_with(here, free, total=100_000):
    with patch.object(maintenance_module, "_space", return_value=(free, total)):
        here.maintenance.check_disk()
    return here.kit.partition.storage_full


def test_full_disk_refuses_messages_until_there_is_room_to_spare(bench):
    here = bench()
    assert [check_with(here, free) for free in (1_000, 999, 1_000, 1_099, 1_100, 1_000)] == [
        False,
        True,
        True,
        True,
        False,
        False,
    ]
    assert here.maintenance.storage_full is False


def test_reserve_is_a_tenth_of_a_small_disk_at_most(bench):
    here = bench()
    assert [check_with(here, free, total=5_000) for free in (500, 499)] == [False, True]


def test_partition_that_comes_later_is_told_too(bench):
    here = bench()
    check_with(here, 5)
    here.kit.partition.storage_full = False
    assert check_with(here, 5)


async def test_tasks_end(bench):
    here = bench()
    here.maintenance.start()
    await asyncio.sleep(0)
    tasks = list(here.maintenance._tasks)
    await here.maintenance.stop()
    assert [task.done() for task in tasks] == [True] * 5


async def test_task_that_fails_is_tried_again(bench, caplog):
    here = bench()
    times = []

    def fail_once():
        times.append(len(times))
        if len(times) == 1:
            raise RuntimeError("told to")

    repeating = asyncio.ensure_future(here.maintenance._repeat(fail_once, 0.001))
    async with asyncio.timeout(10):
        while len(times) < 3:
            await asyncio.sleep(0.001)
    repeating.cancel()
    assert "maintenance failed" in caplog.text


def test_ids_that_are_forgotten_early_are_said_once_and_so_is_that_it_is_over(make_kit, tmp_path, caplog):
    bench = Bench(make_kit, tmp_path, dedupe_ids_max=5, dedupe_window_s=100)
    caplog.set_level("INFO", "liftpy_server.node.maintenance")
    kit = bench.kit

    def watch():
        caplog.clear()
        bench.maintenance.watch_ids(kit.partition)
        return caplog.text

    for number in range(8):
        kit.receive(msg(b"orders.a", b"v", reply=b"r", headers=header_block(**{"Nats-Msg-Id": f"id-{number}"})))
        kit.clock.advance(10)
    shown = watch()
    assert "the message ids of the last 60.0 s are known, not of 100 s" in shown
    assert "dedupe_ids_max (now 5, of which 5 are known)" in shown
    assert watch() == ""
    kit.clock.advance(45)
    assert "the message ids of 100 s are known again" in watch()
    assert watch() == ""
    kit.clock.advance(100)
    watch()
    assert (len(kit.partition.dedupe), kit.partition.dedupe.size_bytes) == (0, 0), (
        "a stream that is quiet takes nothing"
    )


def test_the_checkpoint_says_up_to_when_logs_are_whole(bench):
    """Of what is on disk, and of what is in the log: a power loss may leave only that."""
    here = bench()
    key = (here.kit.partition.key.uuid, 0)
    here.store(3)
    assert make_checkpoint(here.streams, here.kit.clock, clean=False).wholes == {}, "nothing was heard of NATS"
    here.kit.partition.heard_s = here.kit.clock.elapsed() - 1
    now_ns = here.kit.clock.ns
    assert make_checkpoint(here.streams, here.kit.clock, clean=False).wholes == {key: [(now_ns - 10**9, 3)]}
    here.kit.clock.advance(5)
    here.kit.clock.ns -= 60 * 10**9
    here.kit.partition.heard_s = here.kit.clock.elapsed()
    here.kit.receive(msg(b"orders.a", b"not synced"))
    found = make_checkpoint(here.streams, here.kit.clock, clean=False).wholes
    assert found == {key: [(here.kit.clock.ns - 6 * 10**9, 3), (here.kit.clock.ns, 4)]}
    here.kit.partition.gaps.open(0.0, "lost")
    here.kit.partition.heard_s = here.kit.clock.elapsed()
    assert make_checkpoint(here.streams, here.kit.clock, clean=False).wholes == found, "not while a gap lasts"
