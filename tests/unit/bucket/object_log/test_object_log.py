"""The object log on any store, whatever becomes of requests."""

from __future__ import annotations

import itertools
import math
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from liftpy_bucket.errors import (
    AnotherWriterError,
    BucketVersionError,
    ManifestCorruptError,
    ObjectCorruptError,
    OutcomeUnknownError,
    RecordMissingError,
    StoreUnavailableError,
    TierError,
)
from liftpy_bucket.object_log import ObjectLog, Record
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from support.fault_store import Crash, Fault, FaultStore, crash_at


def log_on(store, **options):
    ids = itertools.count()
    writer = options.setdefault("writer", "one")
    return ObjectLog(store, "log", new_id=lambda: f"{writer}-{next(ids)}", **options)


def contents(store):
    log = log_on(store)
    return list(log.read_range(log.start(), log.end()))


def test_append_and_read():
    store = MemoryStore()
    log = log_on(store)
    assert log.end() == 0
    assert log.last_record() is None
    assert [log.append(b"record %d" % number) for number in range(5)] == list(range(5))
    assert log.append_batch([b"", b"x" * 1_000, b"last"]) == range(5, 8)
    assert log.append(b"again") == 8
    reader = log_on(store)
    assert reader.end() == 9
    assert reader.last_record() == Record(8, b"again")
    assert [reader.read(number) for number in (8, 7, 0, 5, 4, 6)] == [
        b"again", b"last", b"record 0", b"", b"record 4", b"x" * 1_000
    ]  # fmt: skip
    assert list(reader.read_range(3, 6)) == [b"record 3", b"record 4", b""]
    assert list(reader.read_range(6, 6)) == []
    assert [entry.key for entry in store.list("log/")][-1] == "log/00000000000000000006"


def test_what_is_not_there():
    log = log_on(MemoryStore())
    with pytest.raises(RecordMissingError, match="not there yet, the log ends before 0"):
        log.read(0)
    log.append_batch([b"a", b"b"])
    with pytest.raises(RecordMissingError, match="record 2: it is not there yet, the log ends before 2"):
        log.read(2)
    with pytest.raises(RecordMissingError):
        list(log.read_range(1, 3))
    with pytest.raises(RecordMissingError):
        log.trim(3)


def test_bounds():
    log = log_on(MemoryStore())
    with pytest.raises(TierError, match="0 of 0 bytes"):
        log.append_batch([])
    with pytest.raises(TierError, match="at most"):
        log.append(bytes((64 << 20) + 1))
    with pytest.raises(TierError, match="name has at most"):
        log_on(MemoryStore(), writer="x" * 201)


def test_objects_larger_than_what_is_read_at_once():
    store = MemoryStore()
    log = log_on(store)
    sizes = [0, 1, 65_535, 65_536, 65_537, 300_000]
    sizes += [65_536 - 48 - 8 - 8 - 8 - len("one") - len("one-6") + extra for extra in (-1, 0, 1)]
    for size in sizes:
        log.append(bytes([size % 251]) * size)
    assert {entry.size for entry in store.list("log/")} >= {65_535, 65_536, 65_537}
    assert [len(record) for record in log_on(store).read_range(0, len(sizes))] == sizes
    assert [len(log_on(store).read(number)) for number in range(len(sizes))] == sizes


def test_requests():
    store = CountingStore(MemoryStore())
    log = log_on(store)
    log.append(b"first")
    assert store.counts["list"] == 1  # that there is no hole
    before = dict(store.counts)
    for number in range(100):
        log.append(b"%d" % number)
    assert {kind: store.counts[kind] - before[kind] for kind in before if store.counts[kind] != before[kind]} == {
        "create": 100,
        "get": 100,  # of the mark, which is not there
    }
    reader = log_on(store)
    before = dict(store.counts)
    assert b"".join(reader.read_range(0, 101))
    assert store.counts["get_range"] - before["get_range"] == 101
    assert store.counts["head"] == before["head"]
    assert reader.read(50) == b"49"
    assert store.counts["get_range"] - before["get_range"] == 101


@pytest.mark.parametrize("records", [1, 7])
def test_the_end_is_found_with_few_requests(records):
    memory = MemoryStore()
    log = log_on(memory)
    objects = 3_000
    for _ in range(objects):
        log.append_batch([b"x"] * records)
    total = objects * records
    for hint in (0, 1, total // 2, total - 10, total, total + 10, total * 5):
        store = CountingStore(memory)
        assert log_on(store).end(hint) == total
        distance = max(2, abs(objects - max(0, hint - 1)))
        assert store.counts["head"] <= 2 * math.log2(distance) + 4
    near = CountingStore(memory)
    assert log_on(near).end(objects) == total
    for sequence in (0, 1, total // 3, total - 1):
        store = CountingStore(memory)
        assert log_on(store).read(sequence) == b"x"
        assert store.counts["get_range"] <= (1 if records == 1 else math.log2(total) + 2)


@pytest.mark.parametrize("seed", range(20))
def test_every_record_of_random_batches_is_found(seed):
    rng = random.Random(seed)
    store = MemoryStore()
    log = log_on(store)
    for number in range(60):
        log.append_batch([b"%d/%d" % (number, part) for part in range(rng.choice((1, 1, 2, 40)))])
    whole = contents(store)
    log.trim(rng.randrange(len(whole)))
    reader = log_on(store, cache_bytes=rng.choice((0, 1_000, 1 << 20)))
    sequences = [rng.randrange(reader.start(), len(whole)) for _ in range(200)]
    assert [reader.read(sequence) for sequence in sequences] == [whole[sequence] for sequence in sequences]


def test_two_processes_one_of_them_is_told():
    store = MemoryStore()
    one, two = log_on(store, writer="host-1"), log_on(store, writer="host-2")
    one.append(b"1")
    two.append(b"2")
    with pytest.raises(AnotherWriterError, match="writer 'host-2' wrote record 1 before us") as caught:
        one.append(b"3")
    assert (caught.value.writer, caught.value.sequence) == ("host-2", 1)
    assert one.append(b"3") == 2
    assert contents(store) == [b"1", b"2", b"3"]


def test_many_share_a_log():
    store = MemoryStore()

    def append(number):
        log = log_on(store, writer=f"w{number}", shared=True)
        start.wait()
        return [(log.append(b"%d-%d" % (number, turn)), b"%d-%d" % (number, turn)) for turn in range(20)]

    start = threading.Barrier(6)
    with ThreadPoolExecutor(6) as pool:
        appended = dict(itertools.chain(*pool.map(append, range(6))))
    assert [appended[sequence] for sequence in range(120)] == contents(store)


def test_threads_of_one_log():
    log = log_on(MemoryStore())
    with ThreadPoolExecutor(8) as pool:
        sequences = list(pool.map(lambda number: (log.append(b"%d" % number), number), range(100)))
    assert sorted(sequence for sequence, _ in sequences) == list(range(100))
    assert all(log.read(sequence) == b"%d" % number for sequence, number in sequences)


def test_trim():
    store = MemoryStore()
    log = log_on(store)
    for number in range(10):
        log.append_batch([b"%d" % number, b"%d+" % number])
    log.trim(7)
    assert log.start() == 7
    assert next(store.list("log/")).key == "log/00000000000000000003"
    assert log_on(store).read(7) == b"3+"
    other = log_on(store)
    for reader in (log, other):
        with pytest.raises(RecordMissingError, match="trimmed up to 7"):
            reader.read(1)
    log.trim(3)  # behind it already
    assert log.start() == 7
    log.trim(20)
    assert log.last_record() is None
    assert (log.start(), log.end(), log_on(store).end()) == (20, 20, 20)
    assert len(list(store.list("log/0"))) == 1
    assert log_on(store).append(b"next") == 20
    assert contents(store) == [b"next"]
    with pytest.raises(RecordMissingError, match="trimmed up to 20"):
        other.read(8)


def test_a_trim_of_nothing():
    store = MemoryStore()
    log_on(store).trim(0)
    assert list(store.list("")) == []


def test_a_stalled_writer_brings_nothing_back():
    store = MemoryStore()
    stalled, other = log_on(store, writer="stalled"), log_on(store, writer="other")
    stalled.append(b"0")
    for number in range(5):
        other.append(b"%d" % number)
    other.trim(5)
    with pytest.raises(OutcomeUnknownError, match="trimmed up to 5"):
        stalled.append(b"too late")
    assert stalled.resolve() is None
    assert contents(store) == [b"4"]
    assert [entry.key for entry in store.list("log/0")] == ["log/00000000000000000005"]
    assert stalled.append(b"now") == 6


@pytest.mark.parametrize("at", range(1, 12))
def test_a_crash_while_trimming_is_harmless(at):
    memory = MemoryStore()
    log = log_on(memory)
    for number in range(6):
        log.append(b"%d" % number)
    with suppress(Crash):
        log_on(FaultStore(memory, before=crash_at(at))).trim(4)
    kept = contents(memory)
    assert kept in ([b"%d" % number for number in range(6)], [b"4", b"5"])
    log_on(memory).trim(4)
    assert contents(memory) == [b"4", b"5"]
    assert [entry.key[-2:] for entry in memory.list("log/0")] == ["04", "05"]


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.TWICE, Fault.REFUSED_AFTER, Fault.NOT_DONE, Fault.LATE])
def test_own_refusal_is_told_from_anothers(fault):
    memory = MemoryStore()
    log_on(memory).append(b"0")
    store = FaultStore(memory)
    log = log_on(store, writer="two")
    log.end()
    store.plan = lambda request: fault if is_first_create(store, request) else None
    assert log.append(b"1") == 1
    store.deliver_late()
    assert contents(memory) == [b"0", b"1"]
    assert [found for _, found in store.faults] == [fault]


def is_first_create(store, request):
    return [one.kind for one in store.requests].count("create") == 1 and request.kind == "create"


def test_an_unknown_outcome_is_settled():
    memory = MemoryStore()
    store = FaultStore(memory)
    log = log_on(store)
    log.append(b"0")
    store.plan = lambda request: Fault.LOST
    with pytest.raises(OutcomeUnknownError):
        log.append(b"1")
    with pytest.raises(OutcomeUnknownError):
        log.append(b"2")  # not while nobody knows of the one before
    store.plan = None
    assert log.resolve() == range(1, 2)
    assert log.resolve() is None
    assert log.append(b"2") == 2
    assert contents(memory) == [b"0", b"1", b"2"]


def test_an_unknown_outcome_is_settled_by_another():
    memory = MemoryStore()
    store = FaultStore(memory)
    log = log_on(store, writer="one")
    log.append(b"0")
    store.plan = lambda request: Fault.NOT_DONE
    with pytest.raises(OutcomeUnknownError):
        log.append(b"1")
    store.plan = None
    log_on(memory, writer="two").append(b"1 of two")
    assert log.resolve() is None
    assert log.append(b"2") == 2
    assert contents(memory) == [b"0", b"1 of two", b"2"]


def test_a_store_that_is_away_takes_nothing():
    memory = MemoryStore()
    store = FaultStore(memory)
    log = log_on(store)
    log.append(b"0")
    store.plan = lambda request: Fault.UNAVAILABLE
    with pytest.raises(StoreUnavailableError):
        log.append(b"1")
    store.plan = None
    assert log.resolve() is None
    assert log.append(b"2") == 1


@pytest.mark.parametrize("seed", range(40))
def test_nothing_acknowledged_is_lost_or_doubled_by_faults(seed):
    rng = random.Random(seed)
    memory = MemoryStore()
    rate = rng.choice((0.1, 0.3, 0.6))
    faults = [fault for fault in Fault if fault is not Fault.SLOW]
    writers = [
        (FaultStore(memory, lambda _: rng.choice(faults) if rng.random() < rate else None), f"w{number}")
        for number in range(2)
    ]
    logs = [log_on(store, writer=writer, shared=True) for store, writer in writers]
    sequence_of, unknown = {}, {0: None, 1: None}
    for turn in range(60):
        which = rng.randrange(2)
        try:
            if unknown[which] is not None:
                data, unknown[which] = unknown[which], None
                try:
                    settled = logs[which].resolve()
                except OutcomeUnknownError:
                    unknown[which] = data
                    continue
                if settled is not None:
                    sequence_of[data] = settled[0]
            sequence_of[data] = logs[which].append(data := b"%d-%d" % (which, turn))
        except OutcomeUnknownError:
            unknown[which] = data
        except StoreUnavailableError:
            continue
    for store, _ in writers:
        store.deliver_late()
    there = contents(memory)
    assert len(set(there)) == len(there)
    assert all(there[sequence] == data for data, sequence in sequence_of.items())
    open_ends = {data for data in unknown.values() if data is not None}
    assert set(sequence_of) <= set(there) <= set(sequence_of) | open_ends


@pytest.mark.parametrize("at", [0, 5, 8, 12, 16, 24, 32, 40, 44, 50, 60, 66, 75, -1, -5, -12])
def test_a_flipped_bit_is_found(at):
    clean, damaged = MemoryStore(), MemoryStore()
    log = log_on(clean)
    log.append_batch([b"some record", b"another"])
    body = bytearray(clean.get(entry := "log/00000000000000000000").body)
    body[at] ^= 1
    damaged.create(entry, bytes(body), "n")
    with pytest.raises((ObjectCorruptError, BucketVersionError)) as caught:
        list(log_on(damaged).read_range(0, 2))
    assert "log/00000000000000000000" in str(caught.value)


@pytest.mark.parametrize("length", [0, 10, 47, 48, 100])
def test_a_broken_off_object_is_found(length):
    clean, damaged = MemoryStore(), MemoryStore()
    log_on(clean).append(b"x" * 200)
    damaged.create(key := "log/00000000000000000000", clean.get("log/00000000000000000000").body[:length], "n")
    with pytest.raises(ObjectCorruptError, match=key):
        log_on(damaged).read(0)


def test_swapped_missing_and_foreign_objects_are_found():
    def build():
        store = MemoryStore()
        log = log_on(store)
        for number in range(4):
            log.append(b"%d" % number)
        return store, [f"log/{number:020d}" for number in range(4)]

    store, keys = build()
    other = store.get(keys[2]).body
    store.delete([keys[1]])
    reader = log_on(store)
    assert reader.end(hint=4) == 4
    with pytest.raises(ObjectCorruptError, match="missing between others"):
        reader.read(1)
    with pytest.raises(ObjectCorruptError, match="it is missing, and log/00000000000000000002 is there"):
        log_on(store).append(b"in the hole")
    store.create(keys[1], other, "n")
    with pytest.raises(ObjectCorruptError, match="it is object 2"):
        log_on(store).read(1)
    store.create("log/TRIM", b"no JSON", "n")
    with pytest.raises(ManifestCorruptError, match="log/TRIM"):
        log_on(store).end()
    store, _ = build()
    store.create("log/TRIM", b'{"format":2}', "n")
    with pytest.raises(BucketVersionError, match="update it"):
        log_on(store).start()
