"""Every store that needs no server keeps the contract; what wraps a store changes nothing of it."""

from __future__ import annotations

import itertools

import pytest

from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.store.s3 import S3Store
from support.fault_store import FaultStore
from support.s3_servers import moto_server
from support.store_conformance import (
    CHECKS,
    check_many_objects_are_listed_and_deleted,
    name_of_check,
    race_to_create,
    race_to_replace,
)

PREFIXES = itertools.count()


@pytest.fixture(scope="module")
def moto():
    with moto_server() as server:
        yield server


@pytest.fixture(params=["memory", "counting", "fault", "moto"])
def store(request, moto):
    if request.param == "memory":
        return MemoryStore()
    if request.param == "counting":
        return CountingStore(MemoryStore())
    if request.param == "fault":
        return FaultStore(MemoryStore())
    return moto.store(f"prefix-{next(PREFIXES)}")


@pytest.mark.parametrize("check", CHECKS, ids=name_of_check)
def test_conformance(store, check):
    if isinstance(store, S3Store) and check is check_many_objects_are_listed_and_deleted:
        pytest.skip("takes long on moto; the real servers do it")
    check(store)


@pytest.mark.parametrize("race", [race_to_create, race_to_replace])
def test_races(race):
    race(MemoryStore(), "contended")


def test_prefixes_are_worlds_of_their_own(moto):
    one, other = moto.store("shared/one"), moto.store("shared/one-more")
    one.create("k", b"1", "n")
    other.create("k", b"2", "n")
    assert [entry.key for entry in one.list("")] == ["k"]
    one.delete(["k"])
    assert other.get("k").body == b"2"


def test_requests_are_counted():
    store = CountingStore(MemoryStore())
    etag = store.create("a", b"12345", "n")
    store.replace("a", b"123", etag, "n")
    store.get("a")
    store.get_newer("a", store.head("a").etag)
    store.get_newer("a", etag)
    store.get_range("a", 0, 2)
    list(store.list(""))
    store.delete(["a"])
    assert store.counts == {
        "get": 3, "get_range": 1, "head": 1, "create": 1, "replace": 1, "list": 1, "delete": 1
    }  # fmt: skip
    assert (store.bytes_in, store.bytes_out) == (3 + 3 + 2, 5 + 3)
    assert store.deleted == 1


def test_listings_and_deletions_are_counted_by_the_thousand():
    store = CountingStore(MemoryStore())
    keys = [f"{number:04d}" for number in range(2_001)]
    for key in keys:
        store.create(key, b"", "n")
    assert len(list(store.list(""))) == 2_001
    store.delete(keys)
    store.delete([])
    assert (store.counts["list"], store.counts["delete"]) == (3, 3)
