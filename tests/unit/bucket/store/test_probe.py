"""The probe names what a store ignores, and leaves nothing behind."""

from __future__ import annotations

from contextlib import suppress

import pytest

from liftpy_bucket.errors import OutcomeUnknownError, PreconditionFailedError, StoreUnavailableError, StoreUnfitError
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.store.object_store import Stored
from liftpy_bucket.store.probe import PROBES, probe
from support.fault_store import Fault, FaultStore, plan_at

DAY_NS = 24 * 3_600 * 10**9


class OverwritesOnCreate(MemoryStore):
    def create(self, key, body, nonce):
        self.delete([key])
        return super().create(key, body, nonce)


class IgnoresIfMatch(MemoryStore):
    def replace(self, key, body, etag, nonce):
        return super().replace(key, body, self.head(key).etag, nonce)


class CreatesOnReplace(MemoryStore):
    def replace(self, key, body, etag, nonce):
        if not list(self.list(key)):
            return self.create(key, body, nonce)
        return super().replace(key, body, etag, nonce)


class RefusesEveryReplace(MemoryStore):
    def replace(self, key, body, etag, nonce):
        raise PreconditionFailedError(key)


class ListsLate(MemoryStore):
    def list(self, prefix, start_after=""):
        return iter(())


class IgnoresRange(MemoryStore):
    def get_range(self, key, start, length):
        return self.get(key).body


class StoresTheFraming(MemoryStore):
    def create(self, key, body, nonce):
        return super().create(key, b"1f\r\n" + bytes(body), nonce)


class DropsMetadata(MemoryStore):
    def get(self, key):
        stored = super().get(key)
        return Stored(stored.body, stored.head._replace(nonce=""))


class AlwaysNewer(MemoryStore):
    def get_newer(self, key, etag):
        return self.get(key)


class DeletesNothing(MemoryStore):
    def delete(self, keys):
        pass


@pytest.mark.parametrize(
    ("store", "said"),
    [
        (OverwritesOnCreate(), "overwrites an object that was to be created only"),
        (IgnoresIfMatch(), "overwrites an object that is not the one that was named"),
        (CreatesOnReplace(), "creates an object that was to be replaced only"),
        (RefusesEveryReplace(), "refuses a condition that is met"),
        (ListsLate(), "does not list an object that was just written"),
        (IgnoresRange(), "does not give parts of objects"),
        (StoresTheFraming(), "gives back other bytes than were written; try checksums = when_required"),
        (DropsMetadata(), "does not keep the metadata"),
        (AlwaysNewer(), "gives an object again that has not changed"),
        (DeletesNothing(), "still shows an object that was deleted"),
    ],
)
def test_what_a_store_ignores_is_named(store, said):
    with pytest.raises(StoreUnfitError, match=said) as caught:
        probe(store, "n")
    assert "would lose data" in str(caught.value)
    if not isinstance(store, (DeletesNothing, ListsLate)):
        assert list(store.list("")) == []


def test_a_good_store():
    store = CountingStore(MemoryStore())
    probe(store, "n")
    assert list(store.list("")) == []
    assert sum(store.counts.values()) <= 25


@pytest.mark.parametrize("number", range(1, 19))
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.UNAVAILABLE])
def test_a_bad_day_is_no_unfit_store(number, fault):
    memory = MemoryStore()
    with suppress(StoreUnavailableError, OutcomeUnknownError):
        probe(FaultStore(memory, plan_at({number: fault})), "first")
    probe(memory, "second")


def test_what_a_dead_probe_left_is_cleared_away_after_a_day():
    now = [1]
    store = MemoryStore(lambda: now[0])
    store.create(f"{PROBES}dead", b"", "dead-replaced")
    store.create(f"{PROBES}dead-absent", b"", "dead-refused")  # of a store that had no idea of conditions
    store.create(f"{PROBES}holiday.jpg", b"a stranger's", "")
    now[0] = DAY_NS
    store.create(f"{PROBES}running", b"", "running")
    now[0] += 4
    probe(store, "n")
    assert [entry.key for entry in store.list("")] == [f"{PROBES}holiday.jpg", f"{PROBES}running"]
