"""The small parts of a tier worker: memory, cached manifests, what is merged when, and how errors cross the pipe."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket import errors
from liftpy_bucket.store.memory import MemoryStore
from liftpy_envelope.errors import BatchCorruptError
from liftpy_server.tier.errors import SliceGoneError, TierWorkError
from liftpy_server.tier.jobs.parts.loaded_cache import LoadedCache
from liftpy_server.tier.jobs.parts.memory_budget import MemoryBudget
from liftpy_server.tier.jobs.parts.merge_plan import run_to_merge
from liftpy_server.tier.jobs.parts.read_ahead_store import ReadAheadStore
from liftpy_server.tier.worker import main
from liftpy_server.tier.worker.wire import encode_error
from liftpy_server.workers.json_lines import read_line
from support.examples import examples

KIB = 1024


def test_memory_is_never_given_twice():
    budget = MemoryBudget(100)
    now, most = [0], [0]
    lock = threading.Lock()

    def work(size):
        with budget.hold(size, lambda: None):
            with lock:
                now[0] += min(size, 100)
                most[0] = max(most[0], now[0])
            with lock:
                now[0] -= min(size, 100)

    threads = [threading.Thread(target=work, args=(size,)) for size in [60, 30, 1_000, 50, 50, 100, 1] * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < most[0] <= 100


@pytest.mark.parametrize("fails", [False, True])
def test_memory_goes_back_after_each_job(monkeypatch, fails):
    happened = []

    def run(_context, job, _arguments):
        happened.append(job)
        if fails:
            raise OSError("it failed")
        return {"merged": 1}

    pool = SimpleNamespace(release_unused=lambda: happened.append("given back"))
    monkeypatch.setattr(main, "run", run)
    monkeypatch.setattr(main.pa, "default_memory_pool", lambda: pool)
    with pytest.raises(OSError, match="it failed") if fails else nullcontext():
        assert main._run_and_give_back(None, "merge", {}) == {"merged": 1}
    assert happened == ["merge", "given back"]


def test_who_waits_for_memory_says_so(monkeypatch):
    monkeypatch.setattr("liftpy_server.tier.jobs.parts.memory_budget._LOOK_S", 0.01)
    budget = MemoryBudget(10)
    told = threading.Event()
    with budget.hold(10, lambda: None):
        waiting = threading.Thread(target=lambda: budget.hold(1, told.set).__enter__())
        waiting.start()
        assert told.wait(5)
    waiting.join(5)
    assert not waiting.is_alive()


def test_a_job_gives_back_what_it_needs_no_more(monkeypatch):
    monkeypatch.setattr("liftpy_server.tier.jobs.parts.memory_budget._LOOK_S", 0.01)

    class Waits(Exception):  # noqa: N818
        pass

    def refuse():
        raise Waits

    budget = MemoryBudget(10)
    with budget.hold(1_000, refuse) as share:
        share.reduce(20)
        share.reduce(6)
        with budget.hold(4, refuse):
            share.reduce(8)
            with pytest.raises(Waits), budget.hold(1, refuse):
                pass
        share.reduce(0)
        with budget.hold(10, refuse):
            pass
    with budget.hold(10, refuse), pytest.raises(Waits), budget.hold(1, refuse):
        pass


def test_a_failed_job_gives_its_memory_back():
    budget = MemoryBudget(10)
    with pytest.raises(ValueError), budget.hold(10, lambda: None):
        raise ValueError
    with budget.hold(10, lambda: None):
        pass


def test_the_cache_is_bounded_and_keeps_what_was_used_last():
    cache = LoadedCache(10, len)
    for key in "abcde":
        cache.keep(key, "xyz")
        cache.get("a")
    assert [key for key in "abcde" if cache.get(key)] == ["a", "d", "e"]
    cache.keep("huge", "x" * 11)
    assert [key for key in ("a", "d", "e", "huge") if cache.get(key)] == ["a", "d", "e"]
    cache.keep("d", "x" * 11)
    assert cache.get("d") is None, "it is not what the store has"
    cache.keep("a", "x" * 10)
    assert cache.get("a") == "x" * 10
    cache.drop("a")
    assert cache.get("a") is None


def test_an_older_manifest_never_takes_the_place_of_a_newer_one():
    cache = LoadedCache(10, lambda _version: 1, lambda version: version)
    assert cache.keep("a", 2) == 2
    assert cache.keep("a", 1) == 2
    assert cache.get("a") == 2
    assert cache.keep("a", 3) == 3


def test_objects_of_a_size_merge_once_there_are_four():
    assert list(run_to_merge([10 * KIB] * 3, 1 << 20)) == []
    assert list(run_to_merge([10 * KIB] * 4, 1 << 20)) == [0, 1, 2, 3]
    assert list(run_to_merge([600 * KIB, 10 * KIB, 10 * KIB, 10 * KIB], 1 << 20)) == []
    assert list(run_to_merge([600 * KIB, *[10 * KIB] * 5, 600 * KIB], 1 << 20)) == [1, 2, 3, 4, 5]
    assert list(run_to_merge([], 1 << 20)) == []


@given(st.lists(st.integers(1, 300 * KIB), max_size=80))
@examples(200)
def test_merging_ends_with_few_objects_none_too_large(sizes):
    object_bytes = 1 << 20
    sizes, rewritten, whole = list(sizes), 0, sum(sizes)
    while run := run_to_merge(sizes, object_bytes):
        assert len(run) >= 4
        merged = sum(sizes[run.start : run.stop])
        assert merged <= object_bytes
        rewritten += merged
        sizes[run.start : run.stop] = [merged]
    assert sum(sizes) == whole
    assert rewritten <= 4 * whole


def test_small_reads_in_order_become_large_ones():
    store = MemoryStore()
    body = bytes(range(256)) * 40
    store.create("a", body, "n")
    asked = []

    class Watched(MemoryStore):
        def get_range(self, key, start, length):
            asked.append(length)
            return store.get_range(key, start, length)

    ahead = ReadAheadStore(Watched(), 4_000, {"a": len(body)})
    assert b"".join(ahead.get_range("a", at, 10) for at in range(0, len(body), 10)) == body
    assert asked == [4_000, 4_000, 2_240]
    assert ahead.get_range("a", 5, 9_000) == body[5:9_005]
    assert asked[-1] == 9_000


@pytest.mark.parametrize(
    ("error", "code", "retriable"),
    [
        (errors.OvertakenError("x"), "overtaken", True),
        (errors.LineageError("x"), "lineage", False),
        (errors.SealedError("x"), "sealed", False),
        (errors.StoreDeniedError("x"), "denied", False),
        (errors.StoreUnavailableError("x"), "unavailable", True),
        (errors.OutcomeUnknownError("x"), "unavailable", True),
        (errors.StoreUnfitError("x"), "unfit", False),
        (errors.StoreFullError("x"), "full", True),
        (errors.ForeignBucketError("x"), "foreign", False),
        (errors.BucketVersionError("x"), "version", False),
        (errors.ObjectCorruptError("k", "x"), "corrupt", False),
        (errors.ManifestCorruptError("k", "x"), "corrupt", False),
        (BatchCorruptError("x"), "corrupt", False),
        (errors.ObjectMissingError("k"), "missing", False),
        (SliceGoneError("x"), "gone", True),
        (OSError("x"), "internal", True),
        (ZeroDivisionError(), "internal", False),
    ],
)
def test_an_error_crosses_the_pipe(error, code, retriable):
    message = read_line(encode_error(7, error))
    assert message["id"] == 7
    arrived = TierWorkError(**message["error"])
    assert (arrived.code, arrived.retriable) == (code, retriable)
    assert str(error) in arrived.message
    assert arrived.message


def run(program):
    """What a process of its own prints last, as JSON."""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_a_worker_loads_no_pandas():
    pytest.importorskip("pandas")
    assert run("import json, sys, liftpy_server.tier.worker.main; print(json.dumps('pandas' in sys.modules))") is False


PIECES = """
import json, resource
from liftpy_server.tier.worker.memory import keep_memory
is_kept = {keeps} and keep_memory()
def use():
    pieces = [b"x" * (18 << 20) for _ in range(3)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
first = use()
for _ in range(3):
    last = use()
print(json.dumps([is_kept, last - first]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of the C library there")
def test_memory_that_was_used_is_used_again():
    is_kept, faults = run(PIECES.format(keeps=False))
    assert faults > 3 * 3 * 18 * 256 / 2, "by default it is mapped anew each time"
    is_kept, faults = run(PIECES.format(keeps=True))
    assert not is_kept or faults < 1_000
