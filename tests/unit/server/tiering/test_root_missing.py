"""A root that somebody has deleted is missed, and no new one takes its place."""

from __future__ import annotations

import pytest

from liftpy_log.tier.errors import ObjectMissingError, RootMissingError
from liftpy_log.tier.layout import PartitionPath
from liftpy_log.tier.memory_store import MemoryStore
from liftpy_server.tiering.wire import plain_error
from support.tier_workers import Worker

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
