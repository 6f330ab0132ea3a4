"""The shell around the schedule, with real logs and a worker that is played by the test."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from liftpy_bucket.manifest.json import MANIFEST_BYTES_MAX
from liftpy_envelope.errors import ErrorCode
from liftpy_log.partition_log import LogConfig
from liftpy_server.metadata.state import LEVEL
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.host.counters import TierCounters
from liftpy_server.tier.host.status import DiskRoom, tier_status
from liftpy_server.tier.host.tierer import TierRefusedError
from liftpy_server.tier.requests import UploadedObject
from support.nats_frames import msg
from support.tierer_bench import CONFIG, Bench
from support.tierer_looks import looked


@pytest.fixture
async def bench(make_kit):
    kit = make_kit(log=LogConfig(segment_bytes=3_000))
    bench = Bench(kit)
    yield bench
    await bench.tierer.stop()
    assert bench.worker.is_closed


async def test_a_manifest_of_shared_objects_that_is_half_full_is_told_once(bench, caplog):
    bench.open()
    told = []
    for size in (100, MANIFEST_BYTES_MAX // 2 + 1, MANIFEST_BYTES_MAX // 2 + 2):
        bench.worker.manifest_bytes = size
        bench.store()
        await bench.tiered()
        told.append(caplog.text.count("the manifest of this node's shared objects"))
        assert bench.tierer.counters.set_manifest_bytes == size
    assert told == [0, 1, 1]


async def test_what_is_committed_is_claimed_and_uploaded(bench):
    bench.open()
    bench.store()
    await bench.tiered()
    assert bench.worker.jobs() == ["probe", "claim", "upload_set"]
    member = bench.worker.calls[2][1]["members"][0]
    assert (member["base"], member["end"], member["tier_epoch"]) == (0, 4, 7)
    assert sum(piece["length"] for piece in member["slices"]) == bench.partition.log.size_bytes
    assert (bench.partition.cold.start, bench.partition.cold.epochs.latest) == (0, 7)
    assert (bench.partition.cold.holders, bench.partition.cold.root_end) == ({"n1"}, 0)
    bench.store(3)
    await bench.tiered()
    assert bench.worker.jobs()[3:] == ["upload_set"]
    assert bench.tierer.counters.uploads == 2


@pytest.mark.parametrize(("level", "begun_with"), [(1, "blake2b-256"), (LEVEL, "xxh3-128")])
async def test_a_history_is_begun_with_a_hash_that_all_nodes_know_and_goes_on_with_its_own(bench, level, begun_with):
    bench.members.level = level
    bench.open()
    bench.store()
    await bench.tiered()
    assert bench.worker.calls[1][1]["record_hash"] == begun_with
    told = "blake2b-256"  # by the claim: somebody had begun it before
    assert bench.partition.cold.record_hash == told
    assert bench.worker.calls[2][1]["members"][0]["record_hash"] == told


async def test_a_node_of_a_restored_cluster_is_later_than_all_of_the_one_before(bench):
    bench.worker.cluster_id, bench.worker.generation = "mine", 2
    bench.open()
    bench.store()
    await bench.tiered()
    assert bench.worker.calls[2][1]["incarnation"] == 2 * 2**32 + 3


async def test_what_is_not_durable_stays(bench):
    bench.open()
    bench.store(2)
    await bench.tiered()
    bench.kit.receive(msg(b"orders.a", b"not synced", reply=b"r"))
    bench.partition.high_watermark = 3  # as on a leader whose followers were faster than its own disk
    bench.tierer.committed(bench.partition)
    for _ in range(10):
        bench.kit.clock.advance(1)
        await looked(bench, 1)
    assert bench.partition.cold.end == 2


async def test_a_history_is_looked_at_and_not_claimed(bench):
    bench.store(4)
    bench.worker.ends[bench.partition.stream.uuid, 0] = 4
    bench.open()
    await bench.tiered()
    bench.kit.clock.advance(100)
    await looked(bench)
    assert bench.worker.jobs() == ["probe", "look"]
    assert bench.partition.start == 0


async def test_a_log_that_has_lost_what_the_bucket_has_stops(bench, caplog):
    bench.store(4)
    bench.worker.ends[bench.partition.stream.uuid, 0] = 9
    bench.open()
    place = bench.tierer.schedule.places[bench.partition.key]
    await bench.until(lambda: place.trouble is not None)
    assert place.trouble.code == "lineage"
    assert "up to offset 9, and the log of this node ends at 4" in caplog.text
    assert bench.tierer.tiered_end(bench.partition.key) == 0
    assert bench.partition.cold is None


async def test_who_follows_moves_nothing_and_who_leads_again_claims_anew(bench):
    bench.open()
    bench.store()
    await bench.tiered()
    bench.partition.follow(8)
    assert bench.partition.cold is None
    assert not bench.tierer.partitions
    bench.partition.lead(9)
    await bench.tiered()
    bench.store()
    await bench.tiered()
    assert bench.worker.jobs()[3:] == ["look", "claim", "upload_set"]
    assert bench.worker.calls[-1][1].get("members", [{"tier_epoch": 9}])[0]["tier_epoch"] == 9


async def test_a_leader_that_is_deposed_while_it_uploads(bench):
    bench.open()
    bench.store()
    bench.worker.hold.set()
    await bench.until(lambda: "claim" in bench.worker.jobs())
    bench.worker.hold.clear()
    await bench.until(lambda: "upload_set" in bench.worker.jobs())
    bench.partition.follow(8)
    bench.worker.hold.set()
    await looked(bench)
    assert bench.partition.cold is None


async def test_settings_that_keep_a_stream_out_of_the_bucket(bench):
    bench.kit.change(tier=False)
    bench.open()
    bench.store()
    await looked(bench)
    assert bench.worker.jobs() == ["probe"]
    bench.kit.change(tier=True)
    bench.open()
    await bench.tiered()
    bench.kit.change(tier=False)
    bench.open()
    assert bench.partition.cold.end == 4  # what is there stays readable


async def test_a_purge_moves_the_start_in_the_bucket(bench):
    bench.open()
    bench.store(8)
    await bench.tiered()
    bench.open(log_start=3)
    assert bench.partition.start == 0 if bench.partition.log.log_start == 0 else 3
    await bench.until(lambda: bench.worker.starts[bench.partition.stream.uuid, 0] == 3)
    assert bench.partition.cold.start == 3


async def test_it_is_told_when_the_store_goes_and_when_it_comes_back(bench, caplog):
    caplog.set_level(logging.INFO)
    bench.open()
    bench.store()
    await bench.tiered()
    bench.worker.errors |= {"upload_set": "unavailable", "probe": "unavailable"}
    bench.store()
    await bench.until(lambda: bench.tierer.health.state.value == "away")
    assert "everything stays on disk meanwhile: upload_set says unavailable" in caplog.text
    status = tier_status(bench.tierer, DiskRoom(), TierCounters(), bench.kit.clock, limit=10)
    assert (status["state"], status["message"]) == ("away", "upload_set says unavailable")
    assert status["untiered_bytes"] > 4_000
    assert status["partitions"][0]["untiered_age_s"] > 0
    assert status["failures"]["unavailable"] >= 1
    assert "the bucket that takes what is old is away: upload_set says" in bench.tierer.full_text("the disk is full")
    bench.worker.errors.clear()
    await bench.tiered()
    assert "takes what comes in" in caplog.text
    assert bench.tierer.full_text("the disk is full") == "the disk is full"


async def test_it_tells_where_the_bucket_is(bench):
    def told():
        status = tier_status(bench.tierer, DiskRoom(), TierCounters(), bench.kit.clock, limit=0)
        return status["endpoint"], status["region"]

    assert told() == (None, None)
    address = {"endpoint": "https://store:9000", "region": "eu-west-1"}
    bench.tierer.config = replace(bench.tierer.config, **address)
    assert told() == ("https://store:9000", "eu-west-1")


@pytest.mark.parametrize("code", ["unfit", "version", "foreign"])
async def test_a_bucket_that_can_not_be_used_is_refused(bench, code):
    if code == "foreign":
        bench.worker.cluster_id = "another"
    else:
        bench.worker.errors["probe"] = code
    with pytest.raises(TierRefusedError, match="s3://bucket/prefix can not be used"):
        await bench.check()
    bench.open()
    bench.store()
    await looked(bench)
    assert set(bench.worker.jobs()) == {"probe"}


@pytest.mark.parametrize("code", ["unavailable", "denied"])
async def test_a_bucket_that_is_away_is_no_reason_not_to_start(bench, code):
    bench.worker.errors["probe"] = code
    await bench.check()


async def test_a_cluster_without_streams_may_be_given_anothers_bucket(bench):
    bench.worker.cluster_id = "another"
    await bench.check(may_be_foreign=True)
    bench.worker.cluster_id = "mine"
    bench.tierer.try_soon()
    bench.open()
    bench.store()
    await bench.tiered()


async def test_a_bucket_that_says_nothing_is_not_waited_for(bench, caplog):
    bench.worker.hold.clear()
    await bench.check(0.05)
    assert "has not answered within" in caplog.text


async def test_a_catalog_of_another_cluster_stops_everything(bench):
    bench.open()
    bench.store()
    await bench.tiered()
    bench.tierer.catalog_failed(None)
    bench.tierer.catalog_failed(TierWorkError("foreign", "it is another cluster's"))
    assert bench.tierer.health.state.value == "refused"


async def test_a_partition_that_is_closed_is_forgotten(bench):
    bench.open()
    bench.partition.close(ErrorCode.UNKNOWN_STREAM)
    assert not bench.tierer.partitions
    assert not bench.tierer.schedule.places


async def test_requests_are_counted(bench):
    bench.open()
    bench.store()
    await bench.tiered()
    bench.kit.clock.advance(10)
    await bench.until(lambda: bench.tierer.counters.requests["create"] > 0)


async def test_what_a_node_that_is_gone_holds_is_moved_and_it_is_cleared_up_after(bench):
    bench.members.nodes["n2"] = other = SimpleNamespace(expired=True)
    bench.worker.holders = ["n1", "n2"]
    bench.worker.ends[bench.partition.stream.uuid, 0] = 4
    bench.store()
    bench.open()
    await bench.tiered()
    bench.kit.clock.advance(CONFIG.grace_s / 2)
    await looked(bench)
    other.expired = False  # it was away, and not gone
    bench.kit.clock.advance(CONFIG.grace_s)
    await looked(bench)
    assert not {"claim", "merge"} & set(bench.worker.jobs())
    other.expired = True
    await looked(bench)
    bench.kit.clock.advance(6)
    await looked(bench)
    assert not {"claim", "merge"} & set(bench.worker.jobs())
    bench.kit.clock.advance(CONFIG.grace_s + 1)
    await bench.until(lambda: "merge" in bench.worker.jobs())
    jobs = bench.worker.jobs()
    assert jobs.index("claim") < jobs.index("merge")
    assert "adopt_sets" not in jobs  # another node leads the metadata
    bench.members.is_leader = True
    bench.kit.clock.advance(CONFIG.gc_interval_s + 1)
    await bench.until(lambda: "adopt_sets" in bench.worker.jobs())
    assert dict(bench.worker.calls)["adopt_sets"] == {"present": ["n1"]}
    for _ in range(3):
        bench.kit.clock.advance(6)
        await looked(bench, 1)
    assert bench.worker.jobs().count("merge") == 1


async def test_what_a_removed_node_holds_is_moved_at_once(bench):
    bench.worker.holders = ["n2"]
    bench.store()
    bench.worker.ends[bench.partition.stream.uuid, 0] = 4
    bench.open()
    await bench.until(lambda: "merge" in bench.worker.jobs())


async def test_what_a_merge_has_left_is_merged_next(bench):
    bench.worker.holders = ["n2"]
    bench.worker.merges_left = 3
    bench.store()
    bench.worker.ends[bench.partition.stream.uuid, 0] = 4
    bench.open()
    await bench.until(lambda: bench.worker.jobs().count("merge") == 3)
    for _ in range(3):
        bench.kit.clock.advance(6)
        await looked(bench, 1)
    assert bench.worker.jobs().count("merge") == 3


@pytest.mark.parametrize("sync", ["never", "interval"])
async def test_what_the_kernel_may_keep_is_synced_when_it_is_time_to_upload_it(bench, sync):
    bench.kit.change(sync=sync)
    bench.open()
    synced = []
    bench.partition._request_sync = lambda log: (synced.append(log.log_end), log.durability.mark_synced(log.log_end))
    bench.kit.receive(msg(b"orders.a", b"in the kernel", reply=b"r"))
    assert bench.partition.high_watermark == 1
    assert bench.partition.log.synced_end == 0
    await asyncio.sleep(0.1)
    assert not synced, "it may become more"
    await bench.tiered()
    assert synced == [1]
    bench.kit.clock.advance(100)
    await asyncio.sleep(0.1)
    assert synced == [1]


@pytest.fixture
async def far_behind(make_kit, monkeypatch):
    """Of 224 records, of which fifty make an object: four objects, and a rest that goes when it is old enough."""
    monkeypatch.setattr("support.tierer_bench.CONFIG", replace(CONFIG, upload_bytes=1 << 16, set_member_bytes_max=0))
    bench = Bench(make_kit(log=LogConfig(segment_bytes=1 << 20)))
    for _ in range(56):
        bench.store(4)
    assert (1 << 16) * 224 // bench.partition.log.size_bytes == 49  # and a part of the next one
    yield bench
    await bench.tierer.stop()


@pytest.mark.parametrize(("stops_after", "further"), [(9, [3, 0]), (2, [3, 1, 0]), (1, [3, 2, 1, 0, 0])])
async def test_what_is_far_behind_goes_as_several_objects_at_once(far_behind, stops_after, further):
    far_behind.worker.stops_after = stops_after  # as where the next one can not be made
    far_behind.open()
    await far_behind.tiered()
    told = [arguments for job, arguments in far_behind.worker.calls if job == "upload"]
    assert [len(each["further"]) for each in told] == further
    assert told[0]["further"][-1]["end"] == 4 * 50
    assert told[-1]["base"] == 4 * 50
    assert told[-1]["end"] == far_behind.partition.cold.records == 4 * 56
    counters = far_behind.tierer.counters
    assert (counters.uploads, counters.uploaded_bytes) == (5, far_behind.partition.log.size_bytes)


async def test_each_object_of_an_upload_counts_before_the_others_are_there(far_behind):
    worker, begun, goes_on = far_behind.worker, asyncio.Event(), asyncio.Event()
    does = worker.answer

    async def answer(job, /, **arguments):
        if job == "upload":
            begun.set()
            await goes_on.wait()
        return await does(job, **arguments)

    worker.answer = answer
    far_behind.open()
    await far_behind.until(begun.is_set)
    cold, place = far_behind.partition.cold, far_behind.tierer.schedule.places[far_behind.partition.key]
    assert cold.end == 0
    for number in (1, 2):
        worker.told(UploadedObject(end=50 * number, bytes=60_000, stored_bytes=1_000))
        assert (cold.end, cold.root_end, cold.records) == (50 * number,) * 3
        assert (place.tiered_end, place.proven_end, place.object_bytes) == (50 * number, 50 * number, 60_000 * number)
    assert cold.stored_bytes == 5 + 2_000, "what was there, by the claim, and two objects"
    assert (cold.epochs.latest, place.is_busy) == (7, True)
    told = worker.told
    worker.stops_after = 2
    goes_on.set()
    await far_behind.tiered()
    assert cold.end == cold.records == 4 * 56
    assert not place.is_alone
    far_behind.tierer.closed(far_behind.partition)
    told(UploadedObject(end=1_000, bytes=1, stored_bytes=1))  # by a worker that is asked no more
    assert cold.end == 4 * 56
