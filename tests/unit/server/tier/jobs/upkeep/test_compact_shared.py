"""Key compaction in the bucket sees what shared objects hold of a stream."""

from __future__ import annotations

import pytest

from liftpy_bucket.store.memory import MemoryStore
from support.tier_slices import START_NS, LogFile
from support.tier_workers import PATH, Worker, history, root_of

MS = 1_000_000
DAY_NS = 86_400 * 10**9


@pytest.fixture
def worker(tmp_path):
    log = LogFile(tmp_path / "0.log")
    log.append(200)  # one each ms, of seven keys
    worker = Worker(MemoryStore())
    worker.claim()
    for base in range(0, 200, 20):
        worker.upload_set([(log, base, base + 20, 0)])
    worker.context.now_ns = lambda: START_NS + DAY_NS
    return worker


def compact(worker, *, lag_ns=0, clean_end=200):
    return worker.call(
        "compact",
        **PATH._asdict(),
        epoch=0,
        min_compaction_lag_ns=lag_ns,
        delete_retention_ns=0,
        clean_end=clean_end,
    )


def offsets(worker):
    return [row[0] for row in history(worker.context.store)]


def test_superseded_records_go_from_shared_objects_too(worker):
    answer = compact(worker)
    assert offsets(worker) == list(range(193, 200))
    assert (answer["records"], answer["compacted_end"]) == (7, 200)
    assert answer["bytes"] == sum(each.size for each in root_of(worker.context.store).fragments)


def test_what_must_not_be_touched_yet_stays(worker):
    compact(worker, clean_end=110)
    assert offsets(worker) == list(range(103, 200))


def test_what_is_too_young_stays(worker):
    compact(worker, lag_ns=DAY_NS - 149 * MS)  # up to offset 149
    assert offsets(worker) == list(range(142, 200))


def test_what_does_not_pay_is_not_moved(worker):
    compact(worker, clean_end=180)
    before = root_of(worker.context.store)
    worker.asked()
    compact(worker, clean_end=180)
    assert root_of(worker.context.store) == before
