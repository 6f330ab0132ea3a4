"""What ordered producers stored is in the bucket, and known again by a partition whose disk has forgotten it."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace

import pytest

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.store.memory import MemoryStore
from liftpy_envelope.errors import AckErrorCode
from liftpy_log.errors import StorageFullError
from liftpy_log.ids.ordered import StoredBatch, load_ordered
from liftpy_log.segments.segment import segment_path
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.host.jobs import TierJobs
from liftpy_server.tier.host.tiered_partition import further_objects, upload_job
from support.envelopes import batch
from support.nats_frames import msg
from support.tier_workers import Worker, root_of

SOURCES = [bytes([number]) * 16 for number in range(1, 4)]
WATCHER = SimpleNamespace(committed=lambda _: None, role_changed=lambda _: None, closed=lambda _: None)


def put(kit, source, sequence, epoch=1, values=(b"v",)):
    """An output of a source, in a pass of its own, committed."""
    order = {"producer_id": SOURCES[source], "producer_epoch": epoch, "producer_sequence": sequence}
    kit.receive(msg(b"orders.x", batch(list(values), ack_inbox="r", **order)))
    kit.sync()


def fill(kit):
    """Outputs of three sources between plain messages: offsets 0 to 11."""
    for number in range(4):
        put(kit, 0, number)
        put(kit, 1 + number % 2, 10 + number, epoch=1 + number)
        kit.receive(msg(b"orders.x", b"plain"))
        kit.sync()


class Bench:
    """A partition and a bucket."""

    def __init__(self, kit):
        self.kit, self.partition = kit, kit.partition
        self.worker = Worker(MemoryStore())
        self.path = PartitionPath(kit.partition.stream.uuid, 0)
        self.end = 0
        claim = {"epoch": kit.partition.epoch, "node": "n1", "log_start": 0, "epochs": [[kit.partition.epoch, 0]]}
        self.worker.call("claim", **self.path._asdict(), **claim, create=True)

    def upload(self, bytes_max=1, *, further=0):
        """Upload what comes next: one batch where `bytes_max` is small."""
        job = asdict(upload_job(self.partition, self.end, bytes_max))
        job["further"] = [asdict(each) for each in further_objects(self.partition, job["end"], bytes_max)[:further]]
        self.end = self.worker.call("upload", **job)["end"]

    def producers(self):
        """(source, epoch, sequence, offset) of the highest batches, as a leader is told."""
        told = self.worker.call("look", **self.path._asdict(), epochs=[[self.partition.epoch, 0]], log_start=0)[
            "producers"
        ]
        return [(SOURCES.index(bytes.fromhex(row[0])), *row[1:4]) for row in told]


def highest(end):
    """Those of `fill` below an offset."""
    stored = [(0, 1, number, 3 * number) for number in range(4)]
    stored += [(1 + number % 2, 1 + number, 10 + number, 3 * number + 1) for number in range(4)]
    newest = {source: (source, *rest) for source, *rest in sorted(stored, key=lambda row: row[3]) if rest[2] < end}
    return sorted(newest.values(), key=lambda row: row[3])


def test_the_root_has_the_highest_batches_below_its_end_wherever_that_is(kit):
    bench = Bench(kit)
    fill(kit)
    ends = []
    while bench.end < 12:
        bench.upload(further=len(ends) % 3)
        ends.append(bench.end)
        assert bench.producers() == highest(bench.end), f"up to {bench.end}"
    assert len(ends) > 4
    assert len(root_of(bench.worker.context.store, bench.path).producers) == 3


def test_batches_that_were_merged_are_known_from_the_leader(kit, monkeypatch):
    """Key compaction leaves no producer in a batch that it merged."""
    bench = Bench(kit)
    fill(kit)
    nobody = lambda _self, batches: batches
    monkeypatch.setattr("liftpy_server.tier.jobs.parts.producers.ProducersBelow.watch", nobody)
    bench.upload(1 << 20)
    assert bench.producers() == highest(12)


@pytest.fixture
def forgetful(make_kit, tmp_path):
    """Makes a partition that was brought back: its log begins at offset 40, and its node has a bucket."""

    def make(**settings):
        directory = tmp_path / "0" / "0"
        directory.mkdir(parents=True)
        segment_path(directory, 40).touch()
        kit = make_kit(**settings)
        kit.partition.dedupe.ordered.is_whole = False
        kit.partition.watcher = WATCHER
        return kit

    return make


def told():
    return [(SOURCES[0], StoredBatch(2, 50, 33, 4, 9))]


def refusals(kit):
    return [ack["error"]["err_code"] for _, ack in kit.acks() if "error" in ack]


def test_until_the_bucket_was_looked_at_outputs_are_refused_and_others_are_not(forgetful):
    kit = forgetful()
    put(kit, 0, 50, epoch=2)
    kit.receive(msg(b"orders.x", b"plain"))
    kit.sync()
    assert (kit.stored(), refusals(kit)) == ([b"plain"], [AckErrorCode.PARTITION_OFFLINE])
    assert AckErrorCode.PARTITION_OFFLINE.retriable
    kit.partition.learn_producers(told())
    put(kit, 0, 50, epoch=2)
    assert (kit.stored(), refusals(kit)) == ([b"plain"], []), "it was stored before"
    put(kit, 0, 51, epoch=2)
    put(kit, 1, 1)
    assert kit.stored() == [b"plain", b"v", b"v"]
    kit.partition.learn_producers([(SOURCES[1], StoredBatch(1, 99, 39, 1, 0))])
    put(kit, 1, 2)
    assert len(kit.stored()) == 4, "it is asked once"


def test_what_was_learned_outlives_a_restart(forgetful):
    kit = forgetful()
    kit.partition.learn_producers([*told(), (SOURCES[1], StoredBatch(1, 1, 40, 1, 0))])
    log = kit.partition.log
    again = load_ordered(kit.disk, log.directory, log.log_start, log.log_end, 0)
    assert again.is_whole
    assert again.known(log.log_end) == told()


@pytest.mark.parametrize("why", ["whole", "no bucket", "kept out", "looked at", "follows"])
def test_others_wait_for_nothing(forgetful, why):
    kit = forgetful(tier=why != "kept out")
    partition = kit.partition
    if why == "whole":
        partition.dedupe.ordered.is_whole = True
    elif why == "no bucket":
        partition.watcher = None
    elif why == "looked at":
        partition.cold = object()
    elif why == "follows":
        partition.is_leading = False
    assert not partition.awaits_producers


def test_who_ceased_to_lead_while_the_bucket_was_asked_does_not_count_as_knowing(forgetful):
    kit = forgetful()
    kit.partition.is_leading = False
    TierJobs._learn_producers(None, kit.partition, ())
    assert not kit.partition.dedupe.ordered.is_whole, "the next leader may know of more"


def test_what_can_not_be_written_down_is_looked_up_again(forgetful):
    kit = forgetful()
    kit.disk.is_full = True
    with pytest.raises(TierWorkError, match="can not be written down"):
        TierJobs._learn_producers(None, kit.partition, ())
    assert kit.partition.awaits_producers
    with pytest.raises(StorageFullError):
        kit.partition.learn_producers(told())
    kit.disk.is_full = False
    row = (SOURCES[0].hex(), 2, 50, 33, 4, 9)
    TierJobs._learn_producers(None, kit.partition, (row,))
    assert (kit.partition.awaits_producers, len(kit.partition.dedupe.ordered)) == (False, 1)
