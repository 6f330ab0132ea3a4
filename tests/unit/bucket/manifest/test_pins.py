"""Cursors, ranges and versions: what they hold stays, and whoever comes too late is told so."""

from contextlib import suppress

import pytest

from liftpy_bucket.errors import ManifestCorruptError, OvertakenError
from liftpy_bucket.manifest.pins.cursors import Cursor
from liftpy_bucket.manifest.pins.held import Pins, load_pin, load_pins
from liftpy_bucket.manifest.pins.pin import Pin, PinRefusedError, floor_of, held_ranges
from liftpy_bucket.manifest.root.reach import keys_of, reach
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from support.fault_store import FaultStore
from support.garbage_kit import GRACE, PATH, Clock, Ids, Writer, collector, live_of, present


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


@pytest.fixture
def writer(store):
    return Writer(store).filled(10)


def pins_of(store, clock, prefix="p"):
    return Pins(store, PATH, new_id=Ids(prefix), now_ns=clock)


def cursor_of(store, name="table", prefix="u"):
    return Cursor(store, PATH, name, new_id=Ids(prefix))


def held_by(writer, pin):
    return set(keys_of(reach(pin.root, writer.file.snapshot), PATH, PATH))


def test_ranges_are_joined():
    pins = [
        Pin(name="a", kind="range", start=5, until=9),
        Pin(name="b", kind="range", start=9, until=12),
        Pin(name="c", kind="cursor", start=40),
        Pin(name="d", kind="range", start=50, until=60),
        Pin(name="e", kind="range", start=1, until=3, expires_ns=7),
        Pin(name="f", kind="cursor", start=0, dropped=True),
        Pin(name="g", kind="version"),
    ]
    assert held_ranges(pins, now_ns=6) == ((1, 3), (5, 12), (40, None))
    assert held_ranges(pins, now_ns=7) == ((5, 12), (40, None))
    assert floor_of(pins, now_ns=7) == 5
    assert floor_of([], now_ns=7) is None


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "x" * 201, "a b", "../ROOT", "forks/../x"])
def test_names_that_would_leave_the_directory_are_refused(store, name):
    with pytest.raises(PinRefusedError, match="no name for a pin"):
        cursor_of(store, name)


def test_a_cursor_holds_retention(store, clock, writer):
    cursor = cursor_of(store)
    assert cursor.load() is None
    witness = cursor.advance(30, None)
    assert collector(store, clock).run(start=80).loaded.root.start == 30
    witness = cursor.advance(60, witness)
    assert collector(store, clock).run(start=80).loaded.root.start == 60
    assert cursor.load().start == 60
    cursor.drop(witness)
    assert cursor.load() is None
    assert collector(store, clock).run(start=80).loaded.root.start == 80


def test_a_cursor_moves_only_for_who_knows_where_it_stands(store, writer):
    first, second = cursor_of(store), cursor_of(store, prefix="v")
    old = first.advance(10, None)
    with pytest.raises(OvertakenError, match="load it first"):
        second.advance(20, None)
    newer = second.advance(20, second.load())
    for stale in (lambda: first.advance(30, old), lambda: first.drop(old)):
        with pytest.raises(OvertakenError):
            stale()
    assert first.load().start == 20
    second.drop(newer)
    with pytest.raises(OvertakenError):
        second.advance(40, newer)
    assert first.advance(50, None).start == 50, "a dropped name may be used again"


def test_a_cursor_that_goes_forward_costs_one_request(store, writer):
    counting = CountingStore(store)
    cursor = cursor_of(counting)
    witness = cursor.advance(10, None)
    before = dict(counting.counts)
    cursor.advance(20, witness)
    assert counting.counts == {**before, "replace": before["replace"] + 1}


def test_a_cursor_at_what_is_gone_is_refused_and_holds_nothing(store, clock, writer):
    collector(store, clock).run(start=50)
    cursor = cursor_of(store)
    with pytest.raises(PinRefusedError, match="holds it from 50 on"):
        cursor.advance(40, None)
    assert cursor.load() is None
    witness = cursor.advance(70, None)
    with pytest.raises(PinRefusedError):
        cursor.advance(40, witness)
    assert cursor.load().start == 70


@pytest.mark.parametrize("at", range(1, 30))
def test_a_cursor_made_during_a_collection_is_honoured_or_refused(clock, at):
    store = MemoryStore(clock)
    writer = Writer(store).filled(10)
    made = []

    def pin(request):
        if request.number == at:
            try:
                made.append(cursor_of(store).advance(20, None))
            except PinRefusedError:
                made.append(None)

    collector(FaultStore(store, before=pin), clock).run(start=80)
    start = writer.root.start
    if made and made[0] is not None:
        assert start <= 20
    elif made:
        assert start == 80
        assert cursor_of(store).load() is None
    assert live_of(store) == present(store)


def test_a_range_holds_while_it_lasts(store, clock, writer):
    pins = pins_of(store, clock)
    pin = pins.hold_range("scan", 35, 50, ttl_ns=100)
    clock.now += 99
    assert collector(store, clock).run(start=80).loaded.root.start == 35
    pin = pins.renew(pin, 100)
    clock.now += 99
    assert collector(store, clock).run(start=80).loaded.root.start == 35
    clock.now += 1
    assert collector(store, clock).run(start=80).loaded.root.start == 80
    with pytest.raises(PinRefusedError, match="has expired"):
        pins.renew(pin, 100)
    with pytest.raises(PinRefusedError):
        pins.hold_range("late", 10, 20, ttl_ns=None)


def test_a_pinned_version_keeps_its_objects_whatever_becomes_of_the_root(store, clock, writer):
    for _ in range(20):
        writer.append()
    pins = pins_of(store, clock)
    pin = pins.hold_version("long-read", ttl_ns=100 * GRACE)
    held = held_by(writer, pin)
    assert writer.root.snapshots
    writer.merge(0, 4)
    collector(store, clock).run(start=250)
    clock.now += 2 * GRACE
    collector(store, clock).run()
    assert held <= present(store)
    pins.release(pin)
    clock.now += GRACE
    collector(store, clock).run()
    assert present(store) == live_of(store)
    assert load_pins(store, PATH) == (), "what was released is deleted in the end"


def test_a_version_expires(store, clock, writer):
    pin = pins_of(store, clock).hold_version("long-read", ttl_ns=2 * GRACE)
    writer.merge(0, 4)
    clock.now += 2 * GRACE - 1
    collector(store, clock).run()
    assert held_by(writer, pin) <= present(store)
    clock.now += 1
    collector(store, clock).run()
    assert present(store) == live_of(store)


@pytest.mark.parametrize("at", range(1, 40))
def test_a_version_pinned_during_a_collection_is_whole_or_of_what_stays(clock, at):
    store = MemoryStore(clock)
    writer = Writer(store).filled(24)
    writer.merge(2, 5)
    clock.now += GRACE
    made = []

    def pin(request):
        if request.number == at:
            made.append(pins_of(store, clock).hold_version("read", ttl_ns=1_000_000))

    collector(FaultStore(store, before=pin), clock).run(start=80)
    collector(store, clock).run(start=90)
    for each in made:
        assert held_by(writer, each) <= present(store)
    assert live_of(store) <= present(store)


@pytest.mark.parametrize("at", range(1, 40))
def test_a_renewal_at_the_last_moment_holds_or_is_refused(clock, at):
    store = MemoryStore(clock)
    writer = Writer(store).filled(24)
    pins = pins_of(store, clock)
    pin = pins.hold_version("read", ttl_ns=GRACE)
    writer.merge(2, 5)
    clock.now += GRACE
    renewed = []

    def renew(request):
        if request.number == at:
            try:
                renewed.append(pins.renew(pin, GRACE))
            except PinRefusedError:
                renewed.append(None)

    with suppress(OvertakenError):
        collector(FaultStore(store, before=renew), clock).run(start=80)
    if renewed and renewed[0] is not None:
        assert held_by(writer, pin) <= present(store)
    else:
        assert load_pin(store, PATH, pin.name) is None or load_pin(store, PATH, pin.name).dropped


def test_a_pin_that_can_not_be_read_stops_the_collection(store, clock, writer):
    writer.merge(0, 4)
    clock.now += GRACE
    store.create(PATH.pin("broken"), b'{"format":1}', "n")
    before = present(store)
    with pytest.raises(ManifestCorruptError, match="broken"):
        collector(store, clock).run(start=80)
    assert present(store) == before


def test_a_version_that_moves_on_all_the_time_is_refused(store, clock, writer):
    def interfere(request):
        if request.kind in ("create", "replace"):
            writer.append()

    faulty = FaultStore(store, before=interfere)
    with pytest.raises(OvertakenError, match="try again"):
        pins_of(faulty, clock).hold_version("read", ttl_ns=None)
    assert all(pin.dropped for pin in load_pins(store, PATH))
