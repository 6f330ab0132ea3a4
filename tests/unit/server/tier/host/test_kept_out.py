"""A stream that is not to go to the bucket, and has a history there, is read, retained and purged all the same."""

from __future__ import annotations

import pytest

from liftpy_log.partition_log import LogConfig
from support.tierer_bench import Bench
from support.tierer_looks import looked


@pytest.fixture
async def bench(make_kit):
    bench = Bench(make_kit(log=LogConfig(segment_bytes=3_000)))
    yield bench
    await bench.tierer.stop()


async def let_time_pass(bench):
    for _ in range(10):
        bench.kit.clock.advance(1)
        await looked(bench, 1)


async def keep_out(bench):
    """Four records are in the bucket, and the stream is not to go there any more."""
    bench.open()
    bench.store(4)
    await bench.tiered()
    bench.kit.change(tier=False)
    bench.open()


async def test_what_the_bucket_has_stays_readable_and_nothing_more_goes_there(bench):
    await keep_out(bench)
    bench.store(3)
    await let_time_pass(bench)
    assert (bench.partition.cold.start, bench.partition.cold.end) == (0, 4)
    assert bench.worker.jobs() == ["probe", "claim", "upload_set"]
    assert bench.tierer.schedule.places[bench.partition.key].since_s is None
    bench.kit.change(tier=True)
    bench.open()
    await bench.tiered()
    assert bench.worker.jobs() == ["probe", "claim", "upload_set", "upload_set"]


async def test_the_next_leader_looks_and_claims_nothing(bench):
    await keep_out(bench)
    bench.partition.follow(8)
    assert bench.partition.cold is None
    bench.partition.lead(9)
    await bench.until(lambda: bench.partition.cold is not None)
    bench.store(3)
    await let_time_pass(bench)
    assert bench.partition.cold.end == 4
    assert bench.worker.jobs()[3:] == ["look"]


async def test_a_purge_moves_the_start_in_the_bucket(bench):
    await keep_out(bench)
    bench.partition.lead(9)
    bench.open(log_start=3, leader_epoch=9)
    await bench.until(lambda: bench.worker.starts[bench.partition.stream.uuid, 0] == 3)
    assert bench.partition.cold.start == 3
    assert dict(bench.worker.calls)["claim"]["create"] is False
    assert bench.partition.cold.end == 4


async def test_total_retention_moves_the_start_in_the_bucket(bench):
    await keep_out(bench)
    bench.kit.change(retention_messages=5)
    bench.open()
    bench.store(3)
    bench.kit.clock.advance(bench.tierer.config.gc_interval_s + 1)
    await bench.until(lambda: bench.worker.starts[bench.partition.stream.uuid, 0] == 2)
    assert (bench.partition.cold.start, bench.partition.cold.end) == (2, 4)


async def test_one_of_which_the_bucket_has_nothing_is_looked_at_once(bench):
    bench.kit.change(tier=False)
    bench.store(4)
    for _ in range(3):
        bench.open()
        bench.store(1)
        await let_time_pass(bench)
    assert bench.worker.jobs() == ["probe", "look"]
    assert bench.partition.cold is None
    assert not bench.tierer.partitions
    assert not bench.tierer.schedule.places


async def test_it_is_looked_at_again_after_somebody_else_was_faster(bench):
    await keep_out(bench)
    bench.worker.errors["retain"] = "overtaken"
    bench.open(log_start=3)
    await bench.until(lambda: "retain" in bench.worker.jobs())
    bench.worker.errors.clear()
    await bench.until(lambda: bench.worker.starts[bench.partition.stream.uuid, 0] == 3)


async def test_an_upload_that_was_due_when_it_was_kept_out_is_not_made(bench):
    await bench.check()
    bench.worker.hold.clear()
    bench.open()
    bench.store(4)
    await bench.until(lambda: "claim" in bench.worker.jobs())
    bench.kit.change(tier=False)
    bench.worker.hold.set()
    await let_time_pass(bench)
    assert bench.worker.jobs() == ["probe", "claim"]
    assert bench.tierer.schedule.places[bench.partition.key].since_s is None
