"""A collection may end anywhere, and others may be at work between any two of its requests."""

import random
from contextlib import suppress

import pytest

from liftpy_bucket.errors import OvertakenError, TierError
from liftpy_bucket.manifest.pins.held import Pins
from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.upkeep.verifying import verify
from support.fault_store import Crash, FaultStore, crash_at, plan_random
from support.garbage_kit import GRACE, PATH, Clock, Ids, Writer, collector, digest_of, fragment, live_of, present

START = 45


def prepared(fragments=24):
    """A partition with some of everything: snapshots, orphans old and young, merged objects, an expired pin."""
    clock = Clock()
    store = MemoryStore(clock)
    writer = Writer(store).filled(fragments)
    Pins(store, PATH, new_id=Ids("p"), now_ns=clock).hold_version("long-read", 1)
    writer.merge(6, 4)
    for number in range(3):
        writer.upload(fragment(10 * fragments, 10 * fragments + 5, f"orphan{number}"))
    clock.now += GRACE
    writer.upload(fragment(10 * fragments, 10 * fragments + 5, "young"))
    return store, clock, writer


def check(store, clock, writer):
    """Nothing live is missing, sums balance, and a collector that is left alone leaves no old orphan."""
    assert live_of(store) <= present(store)
    assert verify(store, PATH).problems == []
    collected = collector(store, clock, ids=Ids("last")).run(start=START)
    while collected.deleted:
        collected = collector(store, clock, ids=Ids("more")).run(start=START)
    assert live_of(store) <= present(store)
    young = {entry.key for entry in store.list(PATH.directory) if entry.modified_ns + GRACE > clock.now}
    assert present(store) - live_of(store) <= young
    report = verify(store, PATH)
    assert report.problems == []
    assert set(report.orphans) <= young
    root = writer.root
    assert root.start >= START
    assert root.setsum + root.collected == Setsum.total(digest_of(offset) for offset in range(root.end))
    reached = None
    for pointer in writer.file.fragments(root):
        assert reached is None or pointer.base == reached, "no hole"
        reached = pointer.end
    assert reached in (None, root.end)


@pytest.mark.parametrize("kind", ["before", "after"])
def test_a_crash_at_any_request_leaves_nothing_live_missing(kind):
    for number in range(1, 500):
        store, clock, writer = prepared()
        faulty = FaultStore(store, **{kind: crash_at(number)})
        with suppress(Crash):
            collector(faulty, clock).run(start=START)
        check(store, clock, writer)
        if number > len(faulty.requests):
            break
    assert 15 < number < 500


class Meanwhile:
    """Somebody else who works on the partition between any two requests."""

    def __init__(self, work, crash=None):
        self.work, self.crash, self.busy = work, crash, False

    def __call__(self, request):
        if self.crash is not None:
            self.crash(request)
        if not self.busy:
            self.busy = True
            try:
                self.work(request)
            finally:
                self.busy = False


@pytest.mark.parametrize("at", range(1, 46))
def test_a_writer_that_does_anything_at_one_moment(at):
    """It appends, merges, moves the start, and commits what it uploaded long ago; then the collector crashes or not."""
    for crash in (None, at + 1):
        store, clock, writer = prepared()
        born, stalled = writer.root.version, fragment(240, 250, "stalled")
        writer.upload(stalled)
        clock.now += GRACE

        def work(request, at=at, writer=writer, store=store, clock=clock, born=born, stalled=stalled):
            if request.number != at:
                return
            try:
                writer.retry_append(stalled, born)
            except OvertakenError:
                writer.append()
            writer.merge(at % 5, 3)
            collector(store, clock, ids=Ids("w")).run(start=25)

        hook = Meanwhile(work, crash_at(crash) if crash else None)
        with suppress(Crash, OvertakenError):
            collector(FaultStore(store, before=hook), clock).run(start=START)
        check(store, clock, writer)


@pytest.mark.parametrize("seed", [*range(25), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(25, 600))])
def test_writers_and_collectors_at_random_moments(seed):
    """Two collectors and a writer, one within the other, with a store that loses answers; crashes here and there."""
    rng = random.Random(seed)
    store, clock, writer = prepared(rng.choice([6, 12, 24]))
    waiting: list = []

    def upload():
        loaded = writer.file.load()
        made = fragment(loaded.root.end, loaded.root.end + rng.choice([1, 10]), writer.ids())
        writer.upload(made)
        waiting.append((loaded, made))

    def finish():
        loaded, made = waiting.pop(rng.randrange(len(waiting)))
        if made.pointer.base == writer.root.end:
            rng.choice(
                [
                    lambda: writer.retry_append(made, loaded.root.version),
                    lambda: writer.commit_append(loaded, made),
                ]
            )()

    def work(request):
        if rng.random() < 0.3:
            clock.now += rng.choice([0, GRACE // 3, 2 * GRACE])
        action = rng.choice([upload, lambda: writer.merge(rng.randrange(5), 3), lambda: None, lambda: None])
        if waiting and rng.random() < 0.4:
            action = finish
        if rng.random() < 0.05:
            action = collector(FaultStore(store, plan_random(rng, 0.1)), clock, ids=Ids(f"b{request.number}-")).run
        with suppress(TierError):
            action()

    for round_ in range(12):
        hook = Meanwhile(work, crash_at(rng.randrange(5, 60)) if rng.random() < 0.5 else None)
        faulty = FaultStore(store, plan_random(rng, 0.05), before=hook)
        with suppress(Crash, TierError):
            collector(faulty, clock, ids=Ids(f"a{round_}-")).run(start=rng.choice([0, START]))
        faulty.deliver_late()
        assert live_of(store) <= present(store), f"seed {seed}, round {round_}"
    clock.now += GRACE
    check(store, clock, writer)


@pytest.mark.parametrize("at", range(1, 40))
def test_two_collectors_at_once_whose_second_runs_within_the_first(at):
    for crash in (None, at + 2):
        store, clock, writer = prepared()

        def work(request, store=store, clock=clock):
            if request.number == at:
                collector(store, clock, ids=Ids("other")).run(start=START)

        hook = Meanwhile(work, crash_at(crash) if crash else None)
        with suppress(Crash, OvertakenError):
            collector(FaultStore(store, before=hook), clock).run(start=START)
        check(store, clock, writer)


def test_sums_of_an_empty_partition_balance():
    clock = Clock()
    store = MemoryStore(clock)
    writer = Writer(store)
    writer.claim()
    assert collector(store, clock).run(start=5).loaded.root.start == 5
    assert writer.root.setsum == NO_RECORDS
