"""What every object store must do: one set of checks, for those in memory and those that are servers.

    @pytest.mark.parametrize("check", CHECKS, ids=name_of_check)
    def test_conformance(store, check):
        check(store)

Each check takes an empty store.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from liftpy_bucket.errors import ObjectMissingError, PreconditionFailedError, TakenError
from liftpy_bucket.store.conditional import create_once
from liftpy_bucket.store.probe import probe

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["CHECKS", "name_of_check", "race_to_create", "race_to_replace"]

RACERS = 20


def check_an_object_is_read_as_it_was_written(store: ObjectStore) -> None:
    body = bytes(range(256)) * 40
    etag = store.create("a/b", body, "nonce-1")
    stored = store.get("a/b")
    assert stored.body == body
    assert stored.head == store.head("a/b")
    assert stored.head[:3] == (len(body), etag, "nonce-1")
    assert stored.head.modified_ns > 0
    assert '"' not in etag


def check_an_empty_object(store: ObjectStore) -> None:
    store.create("empty", b"", "n")
    assert store.get("empty").body == b""
    assert store.head("empty").size == 0
    assert store.get_range("empty", 0, 10) == b""


def check_a_view_is_written_like_bytes(store: ObjectStore) -> None:
    store.create("view", memoryview(b"0123456789")[2:5], "n")
    assert store.get("view").body == b"234"


def check_ranges(store: ObjectStore) -> None:
    store.create("r", b"0123456789", "n")
    cases = {(0, 1): b"0", (3, 4): b"3456", (8, 2): b"89", (8, 9): b"89", (10, 1): b"", (99, 5): b"", (4, 0): b""}
    assert {case: store.get_range("r", *case) for case in cases} == cases


def check_what_is_not_there(store: ObjectStore) -> None:
    for call in (
        lambda: store.get("no/such"),
        lambda: store.head("no/such"),
        lambda: store.get_range("no/such", 0, 1),
        lambda: store.get_range("no/such", 0, 0),
        lambda: store.get_newer("no/such", "0" * 32),
    ):
        with pytest.raises(ObjectMissingError) as caught:
            call()
        assert caught.value.key == "no/such"
    assert list(store.list("no/")) == []
    store.delete([])
    store.delete(["no/such"])
    store.delete(["no/such", "no/such/either"])


def check_create_refuses_what_exists(store: ObjectStore) -> None:
    store.create("once", b"first", "n1")
    with pytest.raises(PreconditionFailedError):
        store.create("once", b"second", "n2")
    assert store.get("once").body == b"first"
    assert store.head("once").nonce == "n1"
    store.delete(["once"])
    store.create("once", b"third", "n3")
    assert store.head("once").nonce == "n3"


def check_replace_wants_the_etag_of_now(store: ObjectStore) -> None:
    before = store.create("root", b"1", "n1")
    after = store.replace("root", b"2", before, "n2")
    assert after == store.head("root").etag != before
    assert store.head("root").nonce == "n2"
    for etag in (before, "0" * 32):
        with pytest.raises(PreconditionFailedError):
            store.replace("root", b"3", etag, "n3")
    with pytest.raises(PreconditionFailedError):
        store.replace("another", b"3", after, "n3")
    assert store.get("root").body == b"2"
    with pytest.raises(ObjectMissingError):
        store.get("another")


def check_get_newer(store: ObjectStore) -> None:
    before = store.create("root", b"1", "n1")
    assert store.get_newer("root", before) is None
    store.replace("root", b"2", before, "n2")
    newer = store.get_newer("root", before)
    assert newer is not None
    assert (newer.body, newer.head.nonce) == (b"2", "n2")


def check_listing(store: ObjectStore) -> None:
    keys = [f"l/{name}" for name in ("0001", "0002", "0010", "x/1", "x/2", "y")]
    for key in reversed(keys):
        store.create(key, key.encode(), "n")
    store.create("other", b"", "n")
    entries = list(store.list("l/"))
    assert [entry.key for entry in entries] == keys
    assert [(entry.size, entry.etag) for entry in entries] == [store.head(key)[:2] for key in keys]
    assert [entry.key for entry in store.list("l/x/")] == ["l/x/1", "l/x/2"]
    assert [entry.key for entry in store.list("l/00")] == keys[:3]
    assert [entry.key for entry in store.list("l/", start_after="l/0002")] == keys[2:]
    assert [entry.key for entry in store.list("l/", start_after="l/0003")] == keys[2:]
    assert list(store.list("l/", start_after="l/y")) == []


def check_listing_sees_at_once_what_was_done(store: ObjectStore) -> None:
    for number in range(20):
        store.create(f"s/{number:04d}", b"", "n")
        assert [entry.key for entry in store.list("s/")] == [f"s/{number:04d}"]
        store.delete([f"s/{number:04d}"])
        assert list(store.list("s/")) == []


def check_many_objects_are_listed_and_deleted(store: ObjectStore) -> None:
    keys = [f"many/{number:05d}" for number in range(1_050)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.create(key, b"", "n"), keys))
    assert [entry.key for entry in store.list("many/")] == keys
    assert [entry.key for entry in store.list("many/", start_after=keys[40])] == keys[41:]
    store.delete(keys)
    assert list(store.list("many/")) == []


def check_names_with_all_that_we_use(store: ObjectStore) -> None:
    names = ["A-z_0.9", "a=b", "f'(1)*!", "00000000000000000001-3-abc.parquet"]
    for name in names:
        store.create(f"n/{name}", name.encode(), "n")
    assert sorted(entry.key for entry in store.list("n/")) == sorted(f"n/{name}" for name in names)
    assert [store.get(f"n/{name}").body for name in names] == [name.encode() for name in names]
    store.delete([f"n/{name}" for name in names])
    assert list(store.list("n/")) == []


def check_several_megabytes(store: ObjectStore) -> None:
    body = bytes(range(251)) * 40_000
    store.create("large", body, "n")
    assert store.get("large").body == body
    assert store.get_range("large", 9_000_000, 1_000_000) == body[9_000_000:10_000_000]


def check_the_probe_is_content_and_leaves_nothing(store: ObjectStore) -> None:
    probe(store, "first")
    probe(store, "second")
    assert list(store.list("")) == []


def check_creating_once(store: ObjectStore) -> None:
    create_once(store, "k", b"1", "n1")
    create_once(store, "k", b"1", "n1")
    with pytest.raises(TakenError):
        create_once(store, "k", b"2", "n2")
    assert store.get("k").body == b"1"


CHECKS = [function for name, function in list(globals().items()) if name.startswith("check_")]


def name_of_check(check: Callable[[ObjectStore], None]) -> str:
    """For pytest's ids."""
    return check.__name__.removeprefix("check_")


def race_to_create(store: ObjectStore, key: str) -> None:
    """Of 20 who create an object at the same moment one succeeds, and it is the one whose bytes are there."""

    def create(number: int) -> bool:
        start.wait()
        try:
            create_once(store, key, b"%d" % number, f"n{number}")
        except TakenError:
            return False
        return True

    start = threading.Barrier(RACERS)
    with ThreadPoolExecutor(RACERS) as pool:
        won = list(pool.map(create, range(RACERS)))
    assert sum(won) == 1
    assert store.get(key).body == b"%d" % won.index(True)


def race_to_replace(store: ObjectStore, key: str) -> None:
    """20 who count in one object by compare-and-swap: nobody's count is lost.

    An attempt without a known outcome is settled by the nonces that the body keeps.
    """

    def count(number: int) -> None:
        start.wait()
        nonce = f"n{number}"
        for attempt in range(500):
            there = store.get(key)
            counted = there.body.decode().split()
            if nonce in counted:
                return
            try:
                store.replace(key, " ".join([*counted, nonce]).encode(), there.head.etag, f"{nonce}-{attempt}")
            except PreconditionFailedError:
                continue
        raise AssertionError(f"{nonce} never got through")

    store.create(key, b"", "n")
    start = threading.Barrier(RACERS)
    with ThreadPoolExecutor(RACERS) as pool:
        list(pool.map(count, range(RACERS)))
    assert sorted(store.get(key).body.decode().split()) == sorted(f"n{number}" for number in range(RACERS))
