"""Collection against a real S3 server, whose clock counts whole seconds and whose lists come in pages."""

from __future__ import annotations

import time
from itertools import count

import pytest

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.pins import held as pins_held
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.upkeep.forking import fork
from liftpy_bucket.upkeep.verifying import verify
from support.tier_slices import LogFile
from support.tier_workers import PATH, Worker, check_whole, history, new_id

GRACE_S = 3.0
GRACE_NS = int(GRACE_S * 1e9)
LONG_GRACE_NS = 600 * 10**9  # longer than all that was done until then, however busy the machine is
FORK = PartitionPath("f" * 32, 0)


@pytest.fixture
def log(tmp_path):
    file = LogFile(tmp_path / "0.log")
    file.append(400)
    return file


@pytest.fixture
def store(s3, tmp_path):
    return s3.store(tmp_path.name)


@pytest.fixture
def worker(store):
    worker = Worker(store)
    worker.context.now_ns = time.time_ns
    worker.context.grace_ns = GRACE_NS
    return worker


def collect(worker, path=PATH, grace_ns=GRACE_NS):
    return worker.call("collect", **path._asdict(), grace_ns=grace_ns)["deleted"]


def after_grace():
    time.sleep(GRACE_S + 1.1)  # the store counts seconds


def filled(worker, log):
    worker.claim()
    for base in range(0, 100, 10):
        worker.upload(log, base, base + 10)


def keys(store, prefix):
    return [entry.key for entry in store.list(prefix)]


def test_what_merging_leaves_goes_after_the_grace_period_and_not_before(worker, store, log):
    filled(worker, log)
    assert worker.call("merge", **PATH._asdict(), epoch=0)["merged"] >= 10
    assert collect(worker, grace_ns=LONG_GRACE_NS) == 0, "somebody may still be reading it"
    after_grace()
    store.create(PATH.fragment(f"{100:020d}-0-young.parquet"), b"in the making", "young")
    assert collect(worker) >= 10
    assert PATH.fragment(f"{100:020d}-0-young.parquet") in keys(store, PATH.directory)
    check_whole(store, 100)
    after_grace()
    assert collect(worker) == 1
    report = verify(store, PATH)
    assert (report.problems, report.orphans) == ([], [])
    assert collect(worker) == 0


def test_retention_deletes_at_once_what_no_pin_holds(worker, store, log):
    filled(worker, log)
    pin = pins_held.write_pin(store, PATH, pins_held.Pin(name="reader", kind="cursor", start=30), new_id)
    assert worker.call("retain", **PATH._asdict(), start=60, epoch=0)["start"] == 30
    check_whole(store, 100, 30)
    pins_held.release(store, PATH, pin, new_id)
    assert worker.call("retain", **PATH._asdict(), start=60, epoch=0)["start"] == 60
    assert len(keys(store, f"{PATH.directory}fragments/")) == 4
    check_whole(store, 100, 60)


def test_shared_objects_go_when_nothing_of_them_counts(worker, store, log):
    worker.claim()
    for base in range(0, 100, 20):
        worker.upload_set([(log, base, base + 20, 0)])
    assert worker.call("collect_sets", node="n1", incarnation=1)["merged"] == 5
    worker.call("merge", **PATH._asdict(), epoch=0)
    after_grace()
    told = worker.call("collect_sets", node="n1", incarnation=1)
    assert (told["dropped"], told["deleted"]) == (1, 6)
    assert keys(store, "sets/n1/objects/") == []
    check_whole(store, 100)


def test_more_orphans_than_a_list_has_on_a_page(worker, store, log):
    worker.claim()
    worker.upload(log, 0, 50)
    for number in range(1_100):
        store.create(PATH.fragment(f"{number:020d}-0-lost{number}.parquet"), b"x", f"lost{number}")
    after_grace()
    deleted = 0
    for _ in count():
        told = worker.call("collect", **PATH._asdict(), grace_ns=GRACE_NS)
        deleted += told["deleted"]
        if not told["more"]:
            break
    assert deleted == 1_100
    assert len(keys(store, f"{PATH.directory}fragments/")) == 1
    check_whole(store, 50)


def test_a_fork_outlives_the_stream_it_was_made_of(worker, store, log):
    filled(worker, log)
    before = [row[0] for row in history(store)]
    fork(store, PATH, FORK, epoch=1, node="n1", new_id=new_id)
    worker.call("drop_stream", uuid=PATH.uuid, partitions=1)
    after_grace()
    collect(worker)
    rows = [offset for rows in open_version(store, FORK).read() for offset in rows.column("offset").to_pylist()]
    assert rows == before
    assert verify(store, FORK).problems == []
    worker.call("drop_stream", uuid=FORK.uuid, partitions=1)
    after_grace()
    collect(worker, FORK)
    collect(worker)
    assert keys(store, f"{PATH.directory}fragments/") == []
