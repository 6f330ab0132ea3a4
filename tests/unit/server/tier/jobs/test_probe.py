"""The first look at a bucket: whose it is, before anything is written to it."""

from __future__ import annotations

import pytest

from liftpy_bucket.errors import ForeignBucketError, StoreUnfitError
from liftpy_bucket.store.memory import MemoryStore
from support.tier_workers import Worker


class Unordered(MemoryStore):
    """Lists from the beginning, wherever it is told to begin."""

    def list(self, prefix, start_after=""):
        return super().list(prefix)


def test_a_bucket_that_can_be_used_is_left_as_it_was():
    store = MemoryStore()
    assert Worker(store).call("probe") == {"cluster_id": None, "generation": 0}
    assert list(store.list("")) == []


def test_nothing_is_written_beside_what_is_not_ours():
    store = MemoryStore()
    store.create("holiday.jpg", b"a beach", "n")
    worker = Worker(store)
    with pytest.raises(ForeignBucketError, match=r"holiday\.jpg"):
        worker.call("probe")
    assert worker.call("counts")["counts"].get("create", 0) == 0


def test_a_store_that_lists_what_it_was_not_asked_for_is_refused():
    store = Unordered()
    store.create("sets/n1/ROOT", b"{}", "n")
    with pytest.raises(StoreUnfitError, match="follows on"):
        Worker(store).call("probe")


def test_what_a_sink_of_spark_has_left_is_ours():
    store = MemoryStore()
    for key in ("spark/commits/stream/application/1.done", "spark/staging/stream/application/1/a"):
        store.create(key, b"", "n")
    assert Worker(store).call("probe") == {"cluster_id": None, "generation": 0}
