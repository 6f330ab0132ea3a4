"""A root that somebody has deleted is missed, and no new one takes its place."""

from __future__ import annotations

import pytest

from liftpy_bucket.errors import ObjectMissingError, OvertakenError, RootMissingError, TierError
from liftpy_bucket.layout import PartitionPath, set_root_key
from liftpy_bucket.store.memory import MemoryStore
from liftpy_server.tier.errors import plain_error
from support.fault_store import Fault, FaultStore, plan_at
from support.tier_slices import LogFile
from support.tier_workers import PATH, Worker, check_whole

UUID = "a" * 32
ROOT = PartitionPath(UUID, 0).root
ARGUMENTS = {"uuid": UUID, "partition": 0, "epoch": 2, "node": "n1", "epochs": [[0, 0]]}


@pytest.fixture
def store():
    store = MemoryStore()
    store.create(PartitionPath(UUID, 0).fragment("some.parquet"), b"of an earlier leadership", "n")
    return store


@pytest.mark.parametrize("job", ["look", "claim"])
def test_a_log_that_has_lost_its_beginning_needs_the_root(store, job):
    with pytest.raises(RootMissingError, match=r"some\.parquet.*Put it back") as caught:
        Worker(store, "n1").call(job, log_start=816, create=True, **ARGUMENTS)
    assert plain_error(caught.value)["code"] == "rootless"
    assert ROOT not in [entry.key for entry in store.list("")]


@pytest.mark.parametrize("job", ["look", "claim"])
def test_a_root_that_was_seen_before_is_missed_as_well(job):
    store = MemoryStore()
    worker = Worker(store, "n1")
    worker.call("claim", log_start=0, create=True, **ARGUMENTS)
    store.create(PartitionPath(UUID, 0).fragment("some.parquet"), b"uploaded", "n")
    store.delete([ROOT])
    with pytest.raises(RootMissingError):
        worker.call(job, log_start=816, create=True, **ARGUMENTS | {"epoch": 3})


def test_a_log_that_has_everything_begins_anew(store):
    with pytest.raises(ObjectMissingError, match=f"no object {ROOT}$"):
        Worker(store, "n1").call("look", log_start=0, create=True, **ARGUMENTS)
    assert Worker(store, "n1").call("claim", log_start=0, create=True, **ARGUMENTS)["end"] == 0


def test_what_retention_took_before_there_was_a_bucket_is_not_missed():
    answer = Worker(MemoryStore(), "n1").call("claim", log_start=816, create=True, **ARGUMENTS)
    assert (answer["start"], answer["is_new"]) == (816, True)


@pytest.fixture
def log(tmp_path):
    file = LogFile(tmp_path / "0.log")
    file.append(100)
    return file


def shared(store, log, rounds=3):
    worker = Worker(store)
    worker.claim()
    for base in range(0, 10 * rounds, 10):
        worker.upload_set([(log, base, base + 10, 0)])
    return worker


def keys_in(store):
    return [entry.key for entry in store.list("")]


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_set_manifest_that_somebody_deleted_is_missed(log, rounds):
    store = MemoryStore()
    shared(store, log, rounds)
    end = 10 * rounds
    manifest = store.get(set_root_key("n1")).body
    store.delete([set_root_key("n1")])
    left = keys_in(store)
    worker = Worker(store)  # a new process, which knows of nothing
    worker.claim()
    with pytest.raises(RootMissingError, match="Put it back"):
        worker.upload_set([(log, end, end + 10, 0)])
    with pytest.raises(RootMissingError):
        worker.call("collect_sets", node="n1", incarnation=1)
    for job in ("look", "claim"):
        with pytest.raises(RootMissingError):
            worker.call(job, **PATH._asdict(), epoch=1, node="n1", log_start=end, epochs=[[0, 0]], create=True)
    assert keys_in(store) == left, "nothing was begun anew, and nothing that it named was taken for garbage"
    store.create(set_root_key("n1"), manifest, "n")
    worker.upload_set([(log, end, end + 10, 0)])
    check_whole(store, end + 10)


@pytest.mark.parametrize("fault", [Fault.NOT_DONE, Fault.LOST, Fault.UNAVAILABLE])
@pytest.mark.parametrize("at", range(1, 6))
def test_a_first_round_that_was_cut_short_is_not_a_manifest_that_is_gone(log, fault, at):
    store = MemoryStore()
    Worker(store).claim()
    faulty = FaultStore(store, plan_at(dict.fromkeys(range(at, at + 40), fault)))  # and nobody answers from then on
    with pytest.raises(TierError):
        Worker(faulty).upload_set([(log, 0, 10, 0)])
    worker = Worker(store)
    worker.claim(epoch=1, epochs=[(0, 0)])
    end = worker.call("look", **PATH._asdict(), epoch=1, node="n1", log_start=0, epochs=[[0, 0]], create=True)["end"]
    worker.upload_set([(log, end, 20, 1)])
    check_whole(store, 20)


def test_a_process_that_knew_the_manifest_misses_it_as_well(log):
    store = MemoryStore()
    worker = shared(store, log)
    store.delete([set_root_key("n1")])
    with pytest.raises(RootMissingError):
        worker.call("look", **PATH._asdict(), epoch=0, node="n1", log_start=30, epochs=[[0, 0]], create=True)
    with pytest.raises((OvertakenError, RootMissingError)):
        worker.upload_set([(log, 30, 40, 0)])
    with pytest.raises(RootMissingError):
        worker.upload_set([(log, 30, 40, 0)])
    assert set_root_key("n1") not in keys_in(store)


def test_a_node_that_has_shared_nothing_is_not_missed():
    store = MemoryStore()
    Worker(store).claim(log_start=5)
    assert Worker(store, "n2").claim(epoch=1, epochs=[(0, 5)], log_start=9)["end"] == 5
