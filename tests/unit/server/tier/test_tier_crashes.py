"""A worker that dies, or whose store fails it, between any two requests: whoever goes on loses and doubles nothing."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import count

import pytest

from liftpy_bucket.errors import TierError
from liftpy_bucket.store.memory import MemoryStore
from support.fault_store import Crash, Fault, FaultStore, crash_at, plan_at, plan_random
from support.tier_slices import LogFile
from support.tier_workers import PATH, Worker, check_whole, history, root_of

END = 400
COPIED_NS = 10**6  # after everything that was written before


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    file = LogFile(tmp_path_factory.mktemp("log") / "0.log")
    file.append(END)
    return file


@pytest.fixture(scope="module")
def prepared(log):
    """A bucket as a job finds it: filled once, and copied for every attempt."""
    filled = {}

    def copy_of(prepare):
        if prepare not in filled:
            filled[prepare] = MemoryStore()
            prepare(Worker(filled[prepare]), log)
        store = MemoryStore(count(COPIED_NS).__next__)
        store._objects.update(filled[prepare]._objects)
        return store

    return copy_of


def with_objects(worker, log):
    worker.claim()
    for base in range(0, 100, 10):
        worker.upload(log, base, base + 10)


def with_members(worker, log):
    worker.claim()
    worker.upload(log, 0, 40)
    for base in range(40, 100, 20):
        worker.upload_set([(log, base, base + 20, 0)])


def with_many_objects(worker, log):
    worker.claim()
    for base in range(98):  # the next one folds
        worker.upload(log, base, base + 1)
    worker.upload(log, 98, 100)


def with_nothing(worker, log):
    pass


def collect_sets(worker, _log):
    worker.call("collect_sets", node="n1", incarnation=1)


def with_rounds(worker, log):
    worker.claim()
    for base in range(0, 100, 20):
        worker.upload_set([(log, base, base + 20, 0)])


def with_superseded(worker, log):
    with_members(worker, log)
    worker.call("merge", **PATH._asdict(), epoch=0)


JOBS = {
    "create": (with_nothing, lambda worker, log: worker.claim()),
    "claim": (with_objects, lambda worker, log: worker.claim(epoch=1, epochs=[(0, 0)])),
    "claim members": (with_members, lambda worker, log: worker.claim(epoch=1, epochs=[(0, 0)])),
    "upload": (with_objects, lambda worker, log: worker.upload(log, 100, 150)),
    "upload and fold": (with_many_objects, lambda worker, log: worker.upload(log, 100, 150)),
    "upload with members in front": (with_members, lambda worker, log: worker.upload(log, 100, 150)),
    "upload of several": (with_members, lambda worker, log: worker.upload(log, 100, 120, further=[130, 150])),
    "upload_set": (with_members, lambda worker, log: worker.upload_set([(log, 100, 150, 0)])),
    "first upload_set": (with_objects, lambda worker, log: worker.upload_set([(log, 100, 150, 0)])),
    "retain": (with_objects, lambda worker, log: worker.call("retain", **PATH._asdict(), start=45, epoch=0)),
    "merge objects": (with_objects, lambda worker, log: worker.call("merge", **PATH._asdict(), epoch=0)),
    "merge members": (with_members, lambda worker, log: worker.call("merge", **PATH._asdict(), epoch=0)),
    "merge sets": (with_rounds, collect_sets),
    "collect sets": (with_superseded, collect_sets),
    "collect": (with_many_objects, lambda worker, log: worker.call("collect", **PATH._asdict(), grace_ns=0)),
}
MOST = ("claim members", "upload with members in front", "upload_set")


def go_on(store, log, worker, epoch):
    """What a leader does that finds the bucket as it is: it claims, and moves on from where the history ends."""
    claimed = worker.claim(epoch=epoch, epochs=[(0, 0)])
    assert claimed["end"] <= 150
    worker.upload(log, claimed["end"], 300, epoch=epoch, epochs=[(0, 0)])
    start = root_of(store).start
    assert start in (0, 45)
    check_whole(store, 300, start // 10 * 10)  # objects are let go as a whole
    worker.call("merge", **PATH._asdict(), epoch=epoch)
    worker.upload_set([(log, 300, 320, epoch)])
    worker.upload(log, 320, END, epoch=epoch, epochs=[(0, 0)])
    check_whole(store, END, start // 10 * 10)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("job", "who"),
    [
        *((job, "a deposed one wakes") for job in JOBS),
        *(pytest.param(job, who, marks=pytest.mark.slow) for job in JOBS for who in ("the same", "another")),
    ],
)
def test_a_crash_at_every_step(log, prepared, job, who):
    prepare, run = JOBS[job]
    number, is_done = 0, False
    while not is_done:
        number += 1
        store = prepared(prepare)
        faulty = FaultStore(store)
        worker = Worker(faulty)
        faulty.before = crash_at(number)
        try:
            run(worker, log)
            is_done = True
        except Crash:
            faulty.before = None
        if who == "the same" and not job.startswith("claim"):
            go_on(store, log, Worker(store), 0)
        else:
            go_on(store, log, Worker(store, "n2"), 2)
        if who == "a deposed one wakes":
            before = history(store)
            with pytest.raises((TierError, Crash)):
                worker.upload(log, 150, END)
            worker.upload_set([(log, 150, END, 0)])
            assert history(store) == before
    assert number > 2


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.SLOW])
@pytest.mark.parametrize(
    "job", [*MOST, *(pytest.param(job, marks=pytest.mark.slow) for job in JOBS if job not in MOST)]
)
def test_a_failure_at_every_step(log, prepared, job, fault):
    prepare, run = JOBS[job]
    number, is_done = 0, False
    while not is_done:
        number += 1
        store = prepared(prepare)
        faulty = FaultStore(store, plan_at({number: fault}))
        with suppress(TierError):
            run(Worker(faulty), log)
        is_done = not faulty.faults
        claimed = Worker(store, "n2").claim(epoch=2, epochs=[(0, 0)])
        faulty.deliver_late()  # which is too late
        worker = Worker(store, "n2")
        go_on(store, log, worker, 2)
        assert worker.claim(epoch=2, epochs=[(0, 0)])["end"] >= claimed["end"]


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 40))])
def test_two_workers_of_two_leaders_on_a_store_that_fails(log, seed):
    rng = random.Random(seed)
    store = MemoryStore()
    faulty = FaultStore(store, plan_random(rng, 0.15))
    workers = [Worker(faulty, "n1"), Worker(faulty, "n2")]
    epoch, leader = 0, 0
    for _ in range(60):
        action = rng.choice(["claim", "upload", "upload", "set", "set", "merge", "new leader", "new worker", "deposed"])
        if action == "new leader":
            leader, epoch = 1 - leader, epoch + 1
        elif action == "new worker":
            workers[leader] = Worker(faulty, f"n{leader + 1}")
        try:
            act(workers, leader, epoch, action, log, rng)
        except TierError:
            continue
    faulty.deliver_late()
    final = Worker(store, "n1")
    end = final.claim(epoch=epoch + 1, epochs=[(0, 0)])["end"]
    check_whole(store, end)
    if end < END:
        final.upload(log, end, END, epoch=epoch + 1, epochs=[(0, 0)])
    check_whole(store, END)


def act(workers, leader, epoch, action, log, rng):
    worker = workers[leader]
    if action == "deposed":
        worker, epoch = workers[1 - leader], max(0, epoch - 1)
        base = rng.randrange(END - 10)
        worker.upload_set([(log, base, base + 7, epoch)])
        worker.upload(log, base, base + 10, epoch, [(0, 0)])
        return
    end = worker.claim(epoch=epoch, epochs=[(0, 0)])["end"]
    until = min(END, end + rng.randrange(1, 20))
    if action == "merge":
        worker.call("merge", **PATH._asdict(), epoch=epoch)
    elif action == "set" and end < until:
        worker.upload_set([(log, end, until, epoch)])
    elif action == "upload" and end < until:
        first, *further = sorted({*rng.sample(range(end + 1, until + 1), min(rng.randrange(3), until - end)), until})
        worker.upload(log, end, first, epoch, [(0, 0)], further=further)


@pytest.mark.thorough
def test_a_crash_at_every_step_of_key_compaction(log, prepared):
    """Every key keeps its last record, whatever was reached; and none comes twice."""
    number, is_done = 0, False
    while not is_done:
        number += 1
        store = prepared(with_objects)
        faulty = FaultStore(store, before=crash_at(number))
        try:
            compact(Worker(faulty), 0)
            is_done = True
        except Crash:
            faulty.before = None
        worker = Worker(store, "n2")
        assert worker.claim(epoch=1, epochs=[(0, 0)])["end"] == 100
        assert {row[0] for row in history(store)} >= set(range(93, 100))
        answer = compact(worker, 1)
        assert answer["compacted_end"] == 100
        assert [row[0] for row in history(store)] == list(range(93, 100))  # of seven keys
        worker.upload(log, 100, 120, epoch=1, epochs=[(0, 0)])
        assert [row[0] for row in history(store)] == list(range(93, 120))
    assert number > 6


def compact(worker, epoch):
    return worker.call(
        "compact", **PATH._asdict(), epoch=epoch, min_compaction_lag_ns=0, delete_retention_ns=0, clean_end=100
    )
