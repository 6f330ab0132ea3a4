"""Retention sees what shared objects hold of a partition, and takes records of it rather than whole objects."""

from __future__ import annotations

import pytest

from liftpy_bucket.store.memory import MemoryStore
from support.tier_slices import START_NS, LogFile
from support.tier_workers import PATH, Worker, check_whole, root_of

MS = 1_000_000


@pytest.fixture
def log(tmp_path):
    file = LogFile(tmp_path / "0.log")
    file.append(1_000)  # one each ms
    return file


@pytest.fixture
def worker(log):
    worker = Worker(MemoryStore())
    worker.claim()
    worker.upload(log, 0, 100)
    for base in range(100, 1_000, 100):
        worker.upload_set([(log, base, base + 100, 0)])
    worker.context.now_ns = lambda: START_NS + 1_000 * MS
    return worker


def wanted(worker, *, age_ms=0, stored=-1, below=1_000):
    before_ns = START_NS + (1_000 - age_ms) * MS if age_ms else 0
    return worker.call("wanted_start", **PATH._asdict(), before_ns=before_ns, stored_bytes_max=stored, below=below)


@pytest.mark.parametrize("is_merged", [False, True])
def test_by_age(worker, is_merged):
    if is_merged:
        worker.call("collect_sets", node="n1", incarnation=1)
    assert wanted(worker, age_ms=950)["start"] == 0, "objects of its own go as a whole"
    assert wanted(worker, age_ms=800)["start"] == 100, "a share of the age too late is not worth a write"
    assert wanted(worker, age_ms=790)["start"] == 210
    found = wanted(worker, age_ms=250)
    assert found["start"] == 750
    worker.call("retain", **PATH._asdict(), start=750, epoch=0)
    check_whole(worker.context.store, 1_000, 750)
    found = wanted(worker, age_ms=240)
    assert found["start"] == 750, "a share at a time"
    assert found["oldest_ns"] == pytest.approx(START_NS + (750 + 30) * MS, abs=MS), "when it is worth a look again"
    assert wanted(worker, age_ms=200)["start"] == 800
    assert wanted(worker, age_ms=1)["start"] == 999


def test_by_bytes(worker):
    one = wanted(worker, stored=0, below=100)
    assert one["start"] == 100
    objects = worker.context.set_file("n1").pointers(worker.context.sets.get("n1").manifest)
    shared = sum(member.extent.size for each in objects for member in each.members)
    own = root_of(worker.context.store).fragments[0].size
    assert wanted(worker, stored=own + shared)["start"] == 0
    assert wanted(worker, stored=shared)["start"] == 100
    assert wanted(worker, stored=shared // 2)["start"] == pytest.approx(550, abs=10)
    assert wanted(worker, stored=shared // 2, below=300)["start"] <= 300, "what the log has, too, is counted there"
    assert wanted(worker, stored=0)["start"] == 1_000


def test_no_limit_is_no_limit(worker):
    assert wanted(worker)["start"] == 0
