"""Which objects a table of a stream names, from which offset on they count, and what holds them."""

from __future__ import annotations

import threading

import pytest

from liftpy_bucket.errors import StoreError
from liftpy_bucket.manifest.pins.held import bury, load_pins
from liftpy_bucket.manifest.pins.pin import PinRefusedError
from liftpy_bucket.manifest.root import changes as root_changes
from liftpy_bucket.store.memory import MemoryStore
from liftpy_spark.table.plan import PinnedStream
from support.tier_history import PATH, TierHistory, new_id
from support.tier_rows import UUID, plain_records


class Clock:
    def __init__(self):
        self.ns = 10**18

    def __call__(self):
        return self.ns


@pytest.fixture
def history():
    history = TierHistory()
    history.claim(1)
    for base in (0, 10, 20):
        history.append(plain_records(10, base=base), epochs=((0, 0),))
    return history


def held(history, partitions=(0,), **given):
    return held_in(history.store, partitions, **given)


def held_in(store, partitions, **given):
    return PinnedStream(store, UUID, partitions, **{"hold_s": 60, "new_id": new_id, "now_ns": Clock(), **given})


def test_the_objects_of_a_version_in_order_and_up_to_where_they_go(history):
    keys = tuple(PATH.fragment(pointer.name) for pointer in history.root.fragments)
    (cold,) = held(history).cold.values()
    assert cold == (0, history.root.version, 0, 30, keys)
    history.append(plain_records(10, base=30))
    assert held(history).cold[0].keys[:3] == keys
    assert held(history).cold[0].end == 40


def test_offsets_that_retention_let_go_do_not_count_though_the_object_has_them(history):
    snapshots = history.file.snapshots(history.root, end=13)
    history.commit(root_changes.advance_start(history.root, 13, snapshots=snapshots))
    cold = held(history).cold[0]
    assert (cold.start, cold.end, len(cold.keys)) == (13, 30, 2)


def test_objects_without_a_record_are_not_named(history):
    history.append([], end=50)
    cold = held(history).cold[0]
    assert (cold.end, len(cold.keys)) == (50, 3)


def test_partitions_without_history_are_passed_over(history):
    assert list(held(history, (0, 1, 2)).cold) == [0]


def test_partitions_are_pinned_side_by_side():
    together = threading.Barrier(4)

    class Meeting(MemoryStore):
        """A request about any of four partitions is answered when all four are asked about."""

        def get(self, key):
            together.wait(10)
            return super().get(key)

    assert held_in(Meeting(), range(1, 5)).cold == {}


def test_it_is_held_until_it_is_released(history):
    clock = Clock()
    pinned = held(history, now_ns=clock, hold_s=60)
    (pin,) = load_pins(history.store, PATH)
    assert (pin.kind, pin.expires_ns, pin.root) == ("version", clock.ns + 60 * 10**9, history.root)
    clock.ns += 10**9
    pinned.renew(100)
    (pin,) = load_pins(history.store, PATH)
    assert pin.expires_ns == clock.ns + 100 * 10**9
    pinned.release()
    pinned.release()
    (pin,) = load_pins(history.store, PATH)
    assert pin.dropped


def test_what_is_over_is_not_renewed_and_may_be_released(history):
    pinned = held(history)
    (pin,) = load_pins(history.store, PATH)
    assert bury(history.store, PATH, pin, new_id), "as a collector does it with a pin that has expired"
    with pytest.raises(PinRefusedError, match="expired"):
        pinned.renew(60)
    pinned.release()


def test_a_partition_that_can_not_be_pinned_leaves_none_pinned(history):
    class Failing:
        def __getattr__(self, name):
            return getattr(history.store, name)

        def get(self, key):
            if key.startswith(f"streams/{UUID}/1/"):
                raise StoreError("the store is away")
            return history.store.get(key)

    with pytest.raises(StoreError, match="away"):
        PinnedStream(Failing(), UUID, (0, 1), hold_s=60, new_id=new_id, now_ns=Clock())
    assert [pin.dropped for pin in load_pins(history.store, PATH)] == [True]
