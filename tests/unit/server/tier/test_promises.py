"""The promises of the bucket, by their names; random histories keep them as well, see `tests/simulation`.

P3  Nothing above the high watermark is shown to the bucket.
P4  A deposed leader can not tier or delete.
P5  An object is live if and only if a manifest reaches it, and the sums of manifests balance.
P6  Garbage collection deletes only what no root and no pin can reach, and survives a crash at any step.
"""

from __future__ import annotations

from itertools import count

import pytest

from liftpy_bucket.errors import LineageError
from liftpy_bucket.manifest.pins.held import Pins
from liftpy_bucket.objects.setsum import Setsum
from liftpy_bucket.reading.version import TierVersion
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.upkeep.verifying import verify
from liftpy_log.partition_log import LogConfig
from support.fault_store import Crash, FaultStore, crash_at
from support.tier_slices import LogFile
from support.tier_workers import PATH, Worker, history, new_id, root_of
from support.tierer_bench import Bench
from support.tierer_looks import looked

LATER_NS = 3 * 10**18


@pytest.fixture
async def bench(make_kit):
    bench = Bench(make_kit(log=LogConfig(segment_bytes=3_000)))
    yield bench
    await bench.tierer.stop()


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    file = LogFile(tmp_path_factory.mktemp("log") / "0.log")
    file.append(100)
    return file


def filled(log):
    """A bucket with objects of a partition, and members of sets behind them; and the worker that filled it."""
    store = MemoryStore()
    worker = Worker(store)
    worker.claim()
    for base in range(0, 40, 10):
        worker.upload(log, base, base + 10)
    for base in (40, 50):
        worker.upload_set([(log, base, base + 10, 0)])
    return store, worker


async def test_p3_nothing_above_the_high_watermark_goes_to_the_bucket(bench):
    bench.open()
    bench.store(4)
    await bench.tiered()
    bench.store(9)
    bench.partition.high_watermark = 6
    bench.tierer.committed(bench.partition)
    for _ in range(5):
        bench.kit.clock.advance(1)
        await looked(bench, 1)
    assert bench.partition.cold.end <= 6
    assert max(bench.worker.ends.values()) <= 6


@pytest.mark.parametrize(
    "job",
    [
        lambda worker, log: worker.upload(log, 60, 70),
        lambda worker, _: worker.call("merge", **PATH._asdict(), epoch=0),
        lambda worker, _: worker.call("retain", **PATH._asdict(), epoch=0, start=20),
        lambda worker, _: worker.call(
            "compact", **PATH._asdict(), epoch=0, clean_end=60, min_compaction_lag_ns=0, delete_retention_ns=0
        ),
        lambda worker, _: worker.claim(),
    ],
    ids=["upload", "merge", "retain", "compact", "claim"],
)
def test_p4_a_deposed_leader_changes_nothing_in_the_bucket(log, job):
    store, worker = filled(log)
    Worker(store, "n2").claim(epoch=1, epochs=[(0, 0), (1, 60)])
    before, root = history(store), root_of(store)
    with pytest.raises(LineageError):
        job(worker, log)
    assert (history(store), root_of(store)) == (before, root)


def test_p4_what_a_deposed_leader_puts_into_sets_does_not_count(log):
    store, worker = filled(log)
    Worker(store, "n2").claim(epoch=1, epochs=[(0, 0), (1, 60)])
    before = history(store)
    worker.upload_set([(log, 60, 70, 0)])
    assert history(store) == before


def test_p5_sums_balance_and_what_is_named_is_there_after_every_change(log):
    store, worker = filled(log)
    steps = (
        lambda: worker.call("merge", **PATH._asdict(), epoch=0),
        lambda: worker.call("retain", **PATH._asdict(), epoch=0, start=20),
        lambda: worker.upload(log, 60, 80),
        lambda: worker.call("collect", **PATH._asdict(), grace_ns=0),
        lambda: worker.call("collect_sets", node="n1", incarnation=1),
        lambda: worker.upload(log, 80, 100),
    )
    for step in steps:
        before = root_of(store)
        step()
        root = root_of(store)
        assert root.setsum == Setsum.total(each.setsum for each in (*root.snapshots, *root.fragments))
        if root.end == before.end:
            assert root.setsum + root.collected == before.setsum + before.collected
        assert verify(store, PATH).problems == []
    whole = MemoryStore()
    one = Worker(whole)
    one.claim()
    one.upload(log, 0, 100)
    assert root.setsum + root.collected == root_of(whole).setsum


def test_p6_collection_deletes_what_nobody_reaches_and_survives_a_crash_at_any_step(log):
    for number in count(1):
        store, worker = filled(log)
        pins = Pins(store, PATH, new_id=new_id, now_ns=lambda: LATER_NS)
        worker.call("merge", **PATH._asdict(), epoch=0)
        pinned = pins.hold_version("reader", None)
        worker.upload(log, 60, 70)
        faulty = FaultStore(store, before=crash_at(number))
        try:
            Worker(faulty).call("retain", **PATH._asdict(), epoch=0, start=60)
            is_done = True
        except Crash:
            is_done = False
        assert [offset for offset, *_ in history(store)][-10:] == list(range(60, 70))
        rows = TierVersion(store, PATH, pinned.root, None).read()
        assert sum(piece.num_rows for piece in rows) == 60
        assert verify(store, PATH).problems == []
        pins.release(pinned)
        for _ in range(2):
            Worker(store).call("collect", **PATH._asdict(), grace_ns=0)
        assert verify(store, PATH).orphans == []
        if is_done:
            break
    assert number > 5
