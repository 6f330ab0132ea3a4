"""Uploads of a partition that is behind: several objects, made while others are sent, and what may fail."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from liftpy_bucket.errors import ObjectCorruptError, OutcomeUnknownError, OvertakenError, StoreUnavailableError
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.upkeep.collecting import Collector
from liftpy_server.tier.errors import SliceGoneError
from liftpy_server.tier.jobs.uploads import upload as upload_job
from support.garbage_kit import Ids
from support.tier_slices import LogFile
from support.tier_workers import PATH, Worker, check_whole, root_of

LONG_S = 30.0  # nothing takes as long unless it would last for ever


class Store(MemoryStore):
    """Calls a hook before each object of the stream is written, with the offset that it begins at, in hundreds."""

    def __init__(self):
        super().__init__()
        self.written = []
        self.before = lambda _number: None
        self._changed = threading.Condition()

    def create(self, key, body, nonce):
        if "/fragments/" not in key:
            return super().create(key, body, nonce)
        number = int(key.rsplit("/", 1)[1][:20]) // 100
        self.before(number)
        etag = super().create(key, body, nonce)
        with self._changed:
            self.written.append(number)
            self._changed.notify_all()
        return etag

    def wait_until(self, is_so):
        """Wait for something that is so once other objects are there."""
        with self._changed:
            assert self._changed.wait_for(is_so, LONG_S)


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def worker(store):
    worker = Worker(store)
    worker.claim()
    worker.asked()
    return worker


def made(monkeypatch):
    """Events that are set when the first, the second... object is begun to be made."""
    begun = [threading.Event() for _ in range(4)]
    left = iter(begun)
    taken = upload_job.batches_in

    def batches_in(*arguments):
        next(left).set()
        return taken(*arguments)

    monkeypatch.setattr(upload_job, "batches_in", batches_in)
    return begun


def test_each_becomes_an_object_that_the_root_names(store, log, worker):
    answer = worker.upload(log, 0, 100, further=[250, 251, 700])
    fragments = root_of(store).fragments
    assert [(each.base, each.end) for each in fragments] == [(0, 100), (100, 250), (250, 251), (251, 700)]
    assert (answer["end"], answer["records"]) == (700, 700)
    assert answer["stored_bytes"] == sum(each.size for each in fragments)
    assert answer["bytes"] == sum(
        piece["length"]
        for start, end in [(0, 100), (100, 250), (250, 251), (251, 700)]
        for piece in log.slices(start, end)
    )
    assert worker.asked() == {"create": 4, "replace": 4}, "no looks"
    worker.upload(log, 700, 1_000)
    check_whole(store, 1_000)


def test_each_is_told_when_it_counts(store, log, worker):
    told = []

    def tell(part):
        if part is not None:
            assert part.end <= root_of(store).end
            told.append(part)

    with worker.context.progress_to(tell):
        answer = worker.upload(log, 0, 100, further=[250, 700])
    assert [each.end for each in told] == [100, 250, 700]
    assert sum(each.bytes for each in told) == answer["bytes"]
    assert sum(each.stored_bytes for each in told) == answer["stored_bytes"]


def test_one_is_told_of_while_others_are_made(log, worker, monkeypatch):
    told, is_told, met, calls = [], threading.Event(), [], count()
    taken = upload_job.batches_in

    def batches_in(*arguments):
        if next(calls) == 1:
            met.append(is_told.wait(LONG_S))
        return taken(*arguments)

    monkeypatch.setattr(upload_job, "batches_in", batches_in)

    def tell(part):
        if part is not None:
            told.append(part)
            is_told.set()

    with worker.context.progress_to(tell):
        worker.upload(log, 0, 100, further=[200])
    assert met == [True]
    assert [part.end for part in told] == [100, 200]


def test_what_sets_hold_in_front_goes_into_the_first(store, log, worker):
    worker.upload_set([(log, 0, 50, 0)])
    worker.upload(log, 50, 100, further=[200])
    assert [(each.base, each.end) for each in root_of(store).fragments] == [(0, 100), (100, 200)]
    check_whole(store, 200)


def test_one_is_made_while_the_two_before_are_sent(store, log, worker, monkeypatch):
    begun = made(monkeypatch)
    met = []
    store.before = lambda _number: met.append(begun[2].wait(LONG_S))
    worker.upload(log, 0, 100, further=[200, 300])
    assert met == [True] * 3
    check_whole(store, 300)


def test_no_more_than_two_are_sent_at_once(store, log, worker, monkeypatch):
    begun = made(monkeypatch)
    met = []

    def before(number):
        if number < 2:
            begun[2].wait(LONG_S)
            met.append(begun[3].wait(0.2))  # the third one is made, and has to wait

    store.before = before
    worker.upload(log, 0, 100, further=[200, 300, 400])
    assert met == [False] * 2
    check_whole(store, 400)


def test_none_is_begun_when_the_upload_has_lasted_for_some_seconds(store, log, worker):
    worker.context.now_ns = count(0, 3 * 10**9).__next__  # at the beginning, and before every object but the first
    assert worker.upload(log, 0, 100, further=[200, 300, 400])["end"] == 200
    assert root_of(store).end == 200
    assert worker.upload(log, 200, 300, further=[400])["end"] == 400
    check_whole(store, 400)


def test_one_that_is_sent_sooner_than_the_one_before_is_named_behind_it(store, log, worker):
    """Without a look: nobody else has changed the root since it was begun."""
    store.before = lambda number: number or store.wait_until(lambda: 1 in store.written)
    worker.upload(log, 0, 100, further=[200, 300])
    assert store.written[:2] == [1, 0]
    assert [(each.base, each.end) for each in root_of(store).fragments] == [(0, 100), (100, 200), (200, 300)]
    assert worker.asked() == {"create": 3, "replace": 3}
    check_whole(store, 300)


@pytest.mark.parametrize(("number", "is_answered"), [(1, True), (1, False), (2, True)])
def test_what_was_collected_before_it_was_named_is_not_named(store, log, worker, number, is_answered):
    """A collector comes before the first or the second of two objects is named, of which both are in the bucket.

    Or just after the first one was named, while the answer is lost on its way.
    """
    replace, replaced = store.replace, count(1)

    def collected(key, body, etag, nonce):
        if next(replaced) != number:
            return replace(key, body, etag, nonce)
        store.wait_until(lambda: len(store.written) == 2)
        if is_answered:
            assert collector.run().deleted == 3 - number
            return replace(key, body, etag, nonce)
        replace(key, body, etag, nonce)
        assert collector.run().deleted == 1
        raise OutcomeUnknownError("by the test")

    collector = Collector(store, PATH, new_id=Ids("g"), now_ns=lambda: 10**18, grace_ns=0)
    store.replace = collected
    with pytest.raises(OvertakenError, match="may have been collected"):
        worker.upload(log, 0, 100, further=[200])
    store.replace = replace
    end = worker.claim()["end"]
    assert end == (100 * (number - 1) if is_answered else 100)
    worker.upload(log, end, 300)
    check_whole(store, 300)


def test_memory_for_one_object_is_enough_for_several(store, log):
    worker = Worker(store, memory_bytes_max=1)  # whoever works has all of it
    worker.claim()
    done = threading.Thread(target=worker.upload, args=(log, 0, 100), kwargs={"further": [200, 300]}, daemon=True)
    done.start()
    done.join(LONG_S)
    assert not done.is_alive()
    check_whole(store, 300)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_nothing_follows_on_what_could_not_be_sent(store, log, worker, number):
    def fail(now):
        if now == number:
            store.before = lambda _number: None
            raise ObjectCorruptError("ROOT", "by the test")

    store.before = fail
    with pytest.raises(OvertakenError if number else ObjectCorruptError, match="by the test"):
        worker.upload(log, 0, 100, further=[200, 300])
    assert worker.claim()["end"] == 100 * number
    with worker.context.memory.hold(worker.context.memory.bytes_max, lambda: pytest.fail("some memory is not free")):
        pass
    check_whole(store, 100 * number)


@pytest.mark.parametrize("number", [0, 1])
def test_a_store_that_is_away_is_told_as_that(store, log, worker, number):
    def fail(now):
        if now >= number:
            raise StoreUnavailableError("by the test")

    store.before = fail
    with pytest.raises(StoreUnavailableError, match="by the test"):
        worker.upload(log, 0, 100, further=[200])
    store.before = lambda _number: None
    end = worker.claim()["end"]
    assert end == 100 * number
    worker.upload(log, end, 300)
    check_whole(store, 300)


def test_what_was_made_counts_where_the_next_one_can_not_be_made(store, log, worker, tmp_path):
    gone = LogFile(tmp_path / "1.log", 200)
    gone.append(100)
    further = [{"end": 200, "slices": log.slices(100, 200)}, {"end": 300, "slices": gone.slices(200, 300)}]
    gone.path.unlink()
    about = {**PATH._asdict(), "epoch": 0, "epochs": [[0, 0]], "keeps_replies": False}
    answer = worker.call("upload", **about, base=0, end=100, slices=log.slices(0, 100), further=further)
    assert (answer["end"], answer["records"]) == (200, 200)
    with pytest.raises(SliceGoneError):
        worker.upload(gone, 200, 300)
    worker.upload(log, 200, 300)
    check_whole(store, 300)


def test_what_is_sent_holds_memory_for_the_object_and_no_more(store, log, worker):
    held = []
    budget = worker.context.memory
    store.before = lambda _number: held.append(budget.bytes_max - budget._left)
    worker.upload(log, 0, 500)
    assert held == [root_of(store).fragments[0].size], "nothing is made beside it"
    worker.upload(log, 500, 750, further=[1_000])
    assert len(held) == 3
    assert min(held[1:]) >= min(each.size for each in root_of(store).fragments[1:])
    assert budget._left == budget.bytes_max
