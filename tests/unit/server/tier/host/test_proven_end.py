"""Disks drop only what the bucket has whoever leads next; and what is missing in between is not taken for purged."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from liftpy_bucket.errors import LineageError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.pins.held import Pin, release, write_pin
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.store.memory import MemoryStore
from liftpy_log.partition_log import LogConfig
from liftpy_server.admin.tier.handlers import LocalTierHandlers
from liftpy_server.metadata.state import LEVEL, PartitionInfo
from liftpy_server.tier.errors import TierWorkError, plain_error
from liftpy_server.tier.host.side import TierSide
from liftpy_server.tier.jobs.uploads import claim as claim_job
from support.plain_worker import PlainWorker
from support.server_kit import UUID
from support.tier_slices import LogFile
from support.tier_workers import Worker, check_whole, root_of
from support.tierer_bench import CONFIG, Bench

PATH = PartitionPath(UUID.hex(), 0)


class StoreWorker(PlainWorker):
    """The real jobs on a store, called as a process of them is."""

    def __init__(self, store) -> None:
        self.worker = Worker(store, "n1")
        self.calls = []

    async def answer(self, job, /, **arguments):
        self.calls.append(job)
        arguments.pop("cluster_id", None)  # there is no catalog
        await asyncio.sleep(0)
        try:
            return self.worker.call(job, **arguments)
        except Exception as error:
            raise TierWorkError(**plain_error(error)) from error

    async def close(self):
        pass


class Node(Bench):
    """A node with a partition of which little is kept on disk, and its bucket."""

    def __init__(self, kit) -> None:
        super().__init__(kit)
        self.store_of = MemoryStore()
        self.worker = StoreWorker(self.store_of)
        members = dict.fromkeys(("n1", "n2"), SimpleNamespace(expired=False))
        state = SimpleNamespace(nodes=members, streams={}, level=LEVEL)
        metadata = SimpleNamespace(cluster_id="mine", state=state, is_leader=False)
        self.side = TierSide(CONFIG, "n1", metadata, lambda: 3, kit.clock, self.worker)
        self.tierer = self.side.tierer

    @property
    def place(self):
        return self.tierer.schedule.places[self.partition.key]

    def other(self):
        """Another node that works on the same bucket."""
        return Worker(self.store_of, "n2")

    def epochs(self):
        return self.partition.log.epochs.entries

    def droppable(self):
        """What local retention would drop below; 0 for nothing."""
        return self.side.droppable(self.partition) or 0

    async def told(self):
        """What a follower is told that has something to drop."""
        body = {"partitions": [f"{PATH.uuid}/0"]}
        return (await LocalTierHandlers(SimpleNamespace(tier=self.side)).ends(body))["ends"][0]

    def reopen(self, log_start=0):
        """The metadata says so."""
        told = {"replicas": ("n1",), "isr": ("n1",), "leader": "n1", "leader_epoch": 9, "log_start": log_start}
        stream = self.partition.stream
        stream.update(replace(self.kit.info, config=stream.config, partitions=(PartitionInfo(**told),)))
        self.open(**told)

    async def pass_by(self):
        for _ in range(4):
            self.kit.clock.advance(0.05)
            await asyncio.sleep(0.02)
            self.tierer._wake.set()


@pytest.fixture
async def node(make_kit):
    node = Node(make_kit(log=LogConfig(segment_bytes=3_000), local_retention_bytes=1))
    yield node
    await node.side.stop()


async def test_what_only_sets_hold_is_dropped_after_a_look_at_the_root(node):
    node.open()
    node.store(8)
    await node.tiered()
    assert node.place.proven_end == 0
    await node.pass_by()
    assert "confirm" not in node.worker.calls, "a quiet round costs no more while nothing is to be dropped"
    assert node.droppable() == 0
    await node.until(lambda: node.droppable() > 3)
    assert await node.told() == 8
    assert node.worker.calls.count("confirm") == 1
    await node.pass_by()
    assert node.droppable() > 3
    assert node.worker.calls.count("confirm") == 1


async def test_a_follower_that_asks_has_it_made_sure_of(node):
    node.open()
    node.store(8)
    await node.tiered()
    assert await node.told() == 0
    await node.until(lambda: node.place.proven_end == 8)
    assert await node.told() == 8


async def test_a_deposed_leader_drops_nothing_that_does_not_count(node):
    node.open()
    node.store(4)
    await node.tiered()
    assert await node.told() == 0
    await node.until(lambda: node.place.proven_end == 4)
    assert node.other().claim(8, node.epochs(), path=PATH)["end"] == 4
    node.store(4)
    await node.tiered()  # it has not heard of it yet
    assert node.place.tiered_end == 8
    for _ in range(3):
        assert node.droppable() <= 4
        assert await node.told() <= 4
        await node.pass_by()
    assert node.partition.log.log_start == 0

    node.partition.follow(8)
    node.partition.lead(9)
    node.open(leader_epoch=9)
    await node.tiered()
    assert node.place.tiered_end == 8
    check_whole(node.store_of, 8, path=PATH)
    assert await node.told() <= 8
    await node.until(lambda: node.place.proven_end == 8)
    assert node.droppable() > 3


async def test_who_has_only_looked_claims_before_anything_is_dropped(node):
    node.store(8)
    log = node.partition.log
    before = node.other()
    before.claim(6, node.epochs(), path=PATH)
    slices = [
        {"path": str(each.segment.path), "position": each.position, "length": each.length}
        for each in log.read(0, 8, 1 << 20)
    ]
    member = {**PATH._asdict(), "tier_epoch": 6, "base": 0, "end": 8, "slices": slices, "keeps_replies": False}
    member["record_hash"] = RecordHash.BLAKE2B
    before.call("upload_set", node="n2", incarnation=1, members=[member])
    node.open()
    await node.tiered()
    assert node.worker.calls[-1] == "look"
    assert node.droppable() == 0
    await node.until(lambda: node.droppable() > 3)
    assert "claim" in node.worker.calls


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_claim_that_has_read_the_sets_already_begins_anew(tmp_path, monkeypatch, is_confirmed):
    store = MemoryStore()
    old, new = Worker(store, "n1"), Worker(store, "n2")
    log = LogFile(tmp_path / "0.log")
    log.append(100)
    old.claim(path=PATH)
    resolved, left = claim_job.resolved, [True]

    def slow(context, root, own=""):
        held = resolved(context, root, own)
        if left:
            left.clear()
            old.upload_set([(log, 0, 50, 0, PATH)])
            if is_confirmed:
                old.call("confirm", **PATH._asdict(), epoch=0, node="n1")
        return held

    monkeypatch.setattr(claim_job, "resolved", slow)
    claimed = new.claim(8, [(0, 0)], path=PATH)
    assert claimed["end"] == claimed["proven_end"] == (50 if is_confirmed else 0)
    with pytest.raises(LineageError):
        old.call("confirm", **PATH._asdict(), epoch=0, node="n1")


def test_a_confirmation_is_one_write(tmp_path):
    worker = Worker(MemoryStore(), "n1")
    log = LogFile(tmp_path / "0.log")
    log.append(100)
    worker.claim(path=PATH)
    worker.upload_set([(log, 0, 50, 0, PATH)])
    worker.asked()
    worker.call("confirm", **PATH._asdict(), epoch=0, node="n1")
    assert worker.asked() == {"replace": 1}
    assert worker.claim(path=PATH)["proven_end"] == 50, "to claim once more confirms, too"


async def test_a_hole_that_no_purge_explains_stops_and_moves_nothing(node, caplog):
    node.store(2)
    node.open()
    await node.tiered()
    await node.until(lambda: not node.place.is_busy)
    node.tierer.closed(node.partition)
    node.store(8)
    node.partition.log.drop_before(6)
    log_start = node.partition.log.log_start
    assert log_start > 2
    node.partition.lead(9)
    node.reopen()
    await node.until(lambda: node.place.trouble is not None)
    assert (node.place.trouble.code, node.place.trouble.stops) == ("hole", True)
    assert f"the bucket ends at offset 2, and the log of this node begins at {log_start}" in caplog.text
    await node.pass_by()
    assert "retain" not in node.worker.calls
    assert root_of(node.store_of, PATH).start == 0
    assert await node.told() == node.droppable() == 0

    node.reopen(log_start=log_start)
    await node.tiered()
    check_whole(node.store_of, 10, log_start, path=PATH)


async def holed(node):
    """Two records are in the bucket, some more are gone, and nobody knows why. Where the log begins."""
    node.store(2)
    node.open()
    await node.tiered()
    await node.until(lambda: not node.place.is_busy)
    node.tierer.closed(node.partition)
    node.store(8)
    node.partition.log.drop_before(6)
    node.partition.lead(9)
    return node.partition.log.log_start


def retention_looks(node):
    node.kit.clock.advance(CONFIG.gc_interval_s + 1)


async def test_a_hole_below_which_retention_wants_nothing_is_gone_over(node, caplog):
    log_start = await holed(node)
    node.reopen()
    await node.until(lambda: node.place.trouble is not None)
    node.kit.change(retention_messages=9)
    retention_looks(node)
    await node.pass_by()
    assert node.place.trouble.code == "hole", "one of the two records in the bucket is wanted still"
    assert root_of(node.store_of, PATH).start == 0
    node.kit.change(retention_messages=8)
    retention_looks(node)
    await node.tiered()
    assert node.place.trouble is None
    check_whole(node.store_of, 10, log_start, path=PATH)
    assert f"that history begins anew at offset {log_start}" in caplog.text


async def test_where_the_bucket_has_nothing_there_is_no_hole(node):
    log_start = await holed(node)
    other = node.other()
    other.claim(8, node.epochs(), path=PATH)
    assert other.call("retain", **PATH._asdict(), epoch=8, start=2)["start"] == 2
    node.reopen()
    await node.tiered()
    assert node.place.trouble is None
    check_whole(node.store_of, 10, log_start, path=PATH)


async def test_what_retention_drops_while_a_stream_is_kept_out_leaves_no_hole(node, caplog):
    node.open()
    node.store(2)
    await node.tiered()
    await node.until(lambda: not node.place.is_busy)
    node.kit.change(tier=False)
    node.reopen()
    node.store(8)
    node.partition.log.drop_before(6)
    log_start = node.partition.log.log_start
    assert node.partition.cold.end == 2 < log_start
    retention_looks(node)
    await node.until(lambda: root_of(node.store_of, PATH).end == log_start)
    assert (node.partition.start, caplog.text.count("begins anew at offset")) == (log_start, 1)
    node.store(4)
    node.partition.log.drop_before(9)  # and again, just before the setting is changed
    assert node.partition.log.log_start > log_start
    node.kit.change(tier=True)
    node.reopen()
    await node.tiered()
    check_whole(node.store_of, 14, node.partition.log.log_start, path=PATH)


async def test_a_pin_that_keeps_a_hole_open_is_named_and_all_goes_on_without_it(node):
    log_start = await holed(node)
    pin = Pin(name="reader", kind="cursor", start=1)
    pin = write_pin(node.store_of, PATH, pin, iter(map(str, range(100))).__next__)
    node.reopen(log_start=log_start)
    await node.until(lambda: node.place.trouble is not None and node.place.trouble.code == "held")
    assert "a pin holds what the bucket has from offset 1 on" in node.place.trouble.message
    assert root_of(node.store_of, PATH).start == 1
    for _ in range(20):
        node.kit.clock.advance(10)
        await node.pass_by()
        assert node.place.trouble.code == "held"
    release(node.store_of, PATH, pin, iter(map(str, range(100, 200))).__next__)
    node.kit.clock.advance(301)
    await node.tiered()
    await node.until(lambda: node.place.trouble is None)
    check_whole(node.store_of, 10, log_start, path=PATH)
