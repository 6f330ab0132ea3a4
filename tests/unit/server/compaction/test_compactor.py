"""What is due is compacted by a process of its own, one log after the other; what fails is tried again later."""

from __future__ import annotations

import asyncio
import errno

import psutil
import pytest

from liftpy_envelope.limits import KEY_BYTES_MAX
from liftpy_log.compaction.compact import compact
from liftpy_log.errors import SegmentCorruptError, StorageFullError
from liftpy_log.partition_log import LogConfig
from liftpy_server.compaction.compactor import Compactor
from liftpy_server.compaction.process import CompactionFailedError, WorkerProcess
from support.envelopes import batch
from support.nats_frames import header_block, msg
from support.segments import flip_bit

SETTINGS = {"compact": True, "dedupe_window_s": 0.0, "segment_bytes": 65_536, "min_dirty_ratio": 0.1}
KEYS = 5


class ThreadlessWorker:
    """Runs passes at once."""

    def __init__(self, bench):
        self.bench = bench

    async def run(self, plan, config, owner):
        self.bench.passes.append(plan)
        if self.bench.errors:
            raise self.bench.errors.pop(0)
        return compact(self.bench.kit.disk, plan, config, owner, seed=bytes(32), pause=lambda _: None)

    async def close(self):
        self.bench.closed += 1


class Bench:
    """A partition with many values of few keys, in segments of some records each."""

    def __init__(self, kit, make_worker=None):
        self.kit = kit
        self.passes = []
        self.errors = []
        self.closed = 0
        self.partitions = {kit.partition.key: kit.partition}
        self.compactor = Compactor(lambda: self.partitions, kit.clock, make_worker or (lambda: ThreadlessWorker(self)))

    def write(self, count, size=100):
        log = self.kit.log
        for number in range(log.log_end, log.log_end + count):
            headers = header_block(Lift_Key=f"k{number % KEYS}")
            self.kit.receive(msg(b"orders.a", b"%d " % number + bytes(size), headers=headers))
            self.kit.clock.advance(0.001)
        self.kit.sync()

    @property
    def size(self):
        return self.kit.log.size_bytes


@pytest.fixture
def bench(make_kit):
    def make(make_worker=None, **settings):
        return Bench(make_kit(log=LogConfig(segment_bytes=3_000), **(SETTINGS | settings)), make_worker)

    return make


async def test_a_log_is_compacted_once_and_again_when_enough_is_new(bench):
    here = bench()
    here.write(200)
    before = here.size
    await here.compactor.look()
    assert here.size < before / 10
    for _ in range(3):
        await here.compactor.look()
    assert (len(here.passes), here.closed) == (1, 1)
    here.write(100)
    await here.compactor.look()
    assert len(here.passes) == 2


async def test_other_streams_are_left_alone(bench):
    here = bench(compact=False)
    here.write(200)
    await here.compactor.look()
    assert here.passes == []


async def test_nothing_above_the_high_watermark_is_touched(bench):
    here = bench()
    here.write(200)
    here.kit.partition.high_watermark = 60
    await here.compactor.look()
    assert here.passes[0].segments[-1].next_offset <= 60
    here.kit.partition.high_watermark = 200
    await here.compactor.look()
    assert here.passes[1].segments[-1].next_offset > 60, "although no segment was closed since"


async def test_records_that_are_too_young_are_compacted_when_they_are_older(bench):
    here = bench(min_compaction_lag_s=30.0)
    here.write(200)
    await here.compactor.look()
    assert here.passes == []
    here.kit.clock.advance(61)
    await here.compactor.look()
    assert len(here.passes) == 1


async def test_a_pass_that_fails_is_tried_again_later_and_later(bench, caplog):
    here = bench()
    here.write(200)
    here.errors = [CompactionFailedError("told to"), StorageFullError("told to"), CompactionFailedError("told to")]
    tried_s = []
    for second in range(0, 600, 10):
        before = len(here.passes)
        await here.compactor.look()
        if len(here.passes) > before:
            tried_s.append(second)
        here.kit.clock.advance(10)
    assert tried_s == [0, 60, 180, 420]
    assert caplog.text.count("could not be compacted") == 3
    assert here.kit.log.failure is None
    assert here.size < 10_000
    here.write(200)
    here.errors = [CompactionFailedError("told to")]
    await here.compactor.look()
    here.kit.clock.advance(60)
    await here.compactor.look()
    assert here.size < 10_000, "the first wait is a short one again"


async def test_a_damaged_segment_takes_the_partition_offline(bench):
    here = bench(WorkerProcess)
    here.write(200)
    segment = here.kit.log.segments[1]
    flip_bit(segment.path, segment.size - 30)
    await here.compactor.look()
    assert here.kit.log.failure is not None
    assert str(segment.path) in str(here.kit.log.failure)
    await here.compactor.look()


async def test_damage_that_was_a_cut_is_none(bench):
    here = bench()
    here.write(200)
    path = here.kit.log.segments[0].path

    class Overtaken(ThreadlessWorker):
        async def run(self, plan, config, owner):
            here.kit.log.truncate(50)
            raise CompactionFailedError(str(SegmentCorruptError(path, 0, "told to")), is_damage=True)

    here.compactor._make_worker = lambda: Overtaken(here)
    await here.compactor.look()
    assert here.kit.log.failure is None


async def test_a_partition_that_is_gone_meanwhile_is_no_trouble(bench, caplog):
    here = bench()
    here.write(200)

    class Slow(ThreadlessWorker):
        async def run(self, plan, config, owner):
            here.partitions.clear()
            raise CompactionFailedError("its directory is gone")

    here.compactor._make_worker = lambda: Slow(here)
    await here.compactor.look()
    assert "could not be compacted" not in caplog.text
    await here.compactor.look()


async def test_the_process_compacts_and_ends(bench):
    before = set(psutil.Process().children())
    here = bench(WorkerProcess)
    here.write(300)
    (here.kit.log.directory / "00000000000000000000.c00000007.log.tmp").write_bytes(b"of a pass that was killed")
    size = here.size
    await here.compactor.look()
    assert here.size < size / 10
    assert set(psutil.Process().children()) <= before
    assert not [path for path in here.kit.log.directory.iterdir() if path.suffix in {".gone", ".tmp"}]


async def test_an_error_of_the_nodes_disk_amid_a_swap_reaches_the_partition(bench, monkeypatch):
    here = bench(WorkerProcess)
    here.write(300)

    def refuse(*_):
        raise OSError(errno.EIO, "told to fail")

    monkeypatch.setattr(here.kit.disk, "sync_directory", refuse)
    await here.compactor.look()
    assert "told to fail" in str(here.kit.log.failure)


async def test_a_full_disk_amid_a_swap_is_waited_out(bench, monkeypatch, caplog):
    here = bench(WorkerProcess)
    here.write(300)
    size = here.size

    def refuse(*_):
        raise OSError(errno.ENOSPC, "told to fail")

    with monkeypatch.context() as patched:
        patched.setattr(here.kit.disk, "rename", refuse)
        await here.compactor.look()
    assert (here.kit.log.failure, here.size) == (None, size)
    assert "no room" in caplog.text
    here.kit.clock.advance(60)
    await here.compactor.look()
    assert here.size < size / 10


async def test_a_look_that_is_cancelled_leaves_no_process(bench, monkeypatch):
    here = bench(WorkerProcess)
    here.write(300)
    before = set(psutil.Process().children())
    asked = asyncio.Event()
    serve = WorkerProcess._serve

    async def slow(self, *arguments):
        asked.set()
        await asyncio.sleep(30)
        return await serve(self, *arguments)

    monkeypatch.setattr(WorkerProcess, "_serve", slow)
    looking = asyncio.ensure_future(here.compactor.look())
    async with asyncio.timeout(20):
        await asked.wait()
        assert set(psutil.Process().children()) > before
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
    assert set(psutil.Process().children()) <= before


async def test_keys_of_a_mebibyte(bench):
    here = bench(WorkerProcess)
    keys = [bytes([letter]) * KEY_BYTES_MAX for letter in b"ab"]
    for number in range(8):
        here.kit.receive(msg(b"orders.a", batch([b"%d" % number], keys=[keys[number % 2]])))
        here.kit.clock.advance(1)
        here.kit.sync()
    await here.compactor.look()
    assert here.kit.log.failure is None
    assert [record.value for record in here.kit.records()] == [b"5", b"6", b"7"], "7 is in the newest segment"
