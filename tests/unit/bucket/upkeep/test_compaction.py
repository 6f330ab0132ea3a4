"""Key compaction in the bucket against a model: plain lists of records, and what must hold of them."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.objects.merging import merge_fragments
from liftpy_bucket.objects.read import ObjectReader
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.upkeep.compaction import HistoryCompaction, HistoryCompactionConfig, plan_history
from liftpy_log.compaction.offset_map import MEMORY_BYTES_MIN
from support.examples import examples
from support.tier_rows import UUID, Record, plain_records, records_of, rows_from, written

PATH = PartitionPath(UUID, 0)
RETENTION_NS = 100
CONFIG = HistoryCompactionConfig(delete_retention_ns=RETENTION_NS, min_dirty_ratio=0.0)
SEED = b"0123456789abcdef"
LATER_NS = 2**62


class History:
    """A partition in a bucket, as its root would have it."""

    def __init__(self, config=CONFIG):
        self.store = CountingStore(MemoryStore())
        self.config = config
        self.pointers = []
        self.compacted_end = self.delete_horizon = 0
        self.collected = NO_RECORDS
        self.names = count()

    @property
    def setsum(self):
        return sum((pointer.setsum for pointer in self.pointers), NO_RECORDS)

    @property
    def end(self):
        return self.pointers[-1].end if self.pointers else 0

    def append(self, records, end=None):
        body, result = written([rows_from(records)], row_group_bytes=max(300, 30 * len(records)))
        self._put(body, pointer := result.pointer(f"{next(self.names)}", base=self.end, end=end))
        self.pointers.append(pointer)

    def records(self):
        found = []
        for pointer in self.pointers:
            reader = ObjectReader(self.store, PATH.fragment(pointer.name), pointer.extent)
            reader.check_fragment(PATH, pointer)
            found += [record for rows in reader.rows(0, 2**62) for record in records_of(rows)]
        return found

    def compact(self, now_ns, *, held=(), clean_end=2**62, taken=None):
        plan = plan_history(
            self.pointers,
            path=PATH,
            compacted_end=self.compacted_end,
            delete_horizon=self.delete_horizon,
            clean_end=clean_end,
            held=held,
            now_ns=now_ns,
            config=self.config,
        )
        if plan is None:
            return None
        compaction = HistoryCompaction(
            self.store, plan, self.config, seed=SEED, open_sink=io.BytesIO, new_nonce=lambda: "n"
        )
        for number, found in enumerate(compaction.run()):
            if number == taken:
                return compaction  # the process dies here
            self._commit(found)
        self.compacted_end = compaction.clean_end
        return compaction

    def _commit(self, found):
        pointer = found.pointer(f"{next(self.names)}")
        assert sum((old.setsum for old in found.old), NO_RECORDS) == pointer.setsum + found.collected
        at = self.pointers.index(found.old[0])
        assert tuple(self.pointers[at : at + len(found.old)]) == found.old
        assert (pointer.base, pointer.end) == (found.old[0].base, found.old[-1].end)
        self._put(found.sink.getvalue(), pointer)
        self.pointers[at : at + len(found.old)] = [pointer]
        self.collected += found.collected
        assert found.delete_horizon >= self.delete_horizon
        self.delete_horizon = found.delete_horizon

    def _put(self, body, pointer):
        self.store.create(PATH.fragment(pointer.name), body, "n")


def latest(records):
    """The last record of every key."""
    return {record.key: record for record in records if record.key is not None}


def is_tombstone(record):
    return record.key is not None and record.value is None


KEYS = st.sampled_from([None, b"", b"a", b"b", b"c", b"d"])
STEPS = st.one_of(
    st.tuples(
        st.just("append"),
        st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=3), st.integers(1, 3)), min_size=1, max_size=12),
    ),
    st.tuples(
        st.just("compact"),
        st.integers(1, 80),
        st.lists(st.tuples(st.integers(0, 60), st.none() | st.integers(1, 20)), max_size=2),
        st.none() | st.integers(0, 2),
        st.none() | st.integers(0, 60),
    ),
)


class Model:
    """Checks a history after every pass."""

    def __init__(self):
        self.history = History()
        self.now_ns = 1_000
        self.appended = []
        self.alone_since = {}  # by offset of a tombstone: since when nothing older of its key is left

    def append(self, plain):
        offset, records = self.history.end, []
        for key, value, step in plain:
            records.append(Record(offset, offset, b"s", key=key, value=value))
            offset += step
        self.history.append(records, offset)
        self.appended += records
        self._note_alone()

    def compact(self, passed_ns, held, taken, clean_end):
        self.now_ns += passed_ns
        held = [(start, None if length is None else start + length) for start, length in held]
        before, sum_before = self.history.records(), self.history.setsum + self.history.collected
        self.history.compact(self.now_ns, held=held, taken=taken, clean_end=2**62 if clean_end is None else clean_end)
        after = self.history.records()
        self._check(before, after, held, clean_end)
        assert self.history.setsum + self.history.collected == sum_before
        self._note_alone()

    def _check(self, before, after, held, clean_end):
        kept = {record.offset for record in after}
        assert after == [record for record in before if record.offset in kept]
        newest = latest(self.appended)
        for record in before:
            if record.offset in kept:
                continue
            assert record.key is not None
            assert not any(start <= record.offset and (end is None or record.offset < end) for start, end in held)
            assert clean_end is None or record.offset < clean_end
            if record == newest[record.key]:
                assert is_tombstone(record)
                assert self.now_ns - self.alone_since[record.offset] >= RETENTION_NS
                assert record.offset < self.history.delete_horizon
        left = latest(after)
        for key, record in newest.items():
            assert left.get(key, record) == record, "a deleted key is alive again, or an old value is the last"
        clean = [
            record.key for record in after if record.offset < self.history.compacted_end and record.key is not None
        ]
        assert len(set(clean)) == len(clean)

    def _note_alone(self):
        first = {}
        for record in self.history.records():
            if record.key is None:
                continue
            if is_tombstone(record) and record.key not in first:
                self.alone_since.setdefault(record.offset, self.now_ns)
            first.setdefault(record.key, record.offset)


@examples(25)
@given(st.lists(STEPS, min_size=2, max_size=14))
def test_whatever_comes_nothing_is_lost_and_nothing_comes_back(steps):
    run(steps)


@pytest.mark.slow
@examples(200)
@given(st.lists(STEPS, min_size=2, max_size=25))
def test_whatever_comes_nothing_is_lost_and_nothing_comes_back_at_length(steps):
    run(steps)


def run(steps):
    model = Model()
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
    # left alone it ends with the last record of every key, and none that is deleted
    for _ in range(4):
        model.append([(None, b"new", 1)])
        model.compact(RETENTION_NS, [], None, None)
    expected = {record.offset for record in latest(model.appended).values() if not is_tombstone(record)}
    expected |= {record.offset for record in model.appended if record.key is None}
    assert {record.offset for record in model.history.records()} == expected


def keyed(offset, key, value=b"v"):
    return Record(offset, offset, b"s", key=key, value=value)


def test_a_pass_that_does_not_pay_is_not_planned():
    history = History(replace(CONFIG, min_dirty_ratio=0.5))
    history.append(plain_records(100, key=lambda place: b"%d" % (place % 10)))
    assert history.compact(LATER_NS, clean_end=99) is None
    assert history.compact(LATER_NS).keys == 10
    assert len(history.records()) == 10
    history.append([keyed(100, b"1")])
    size = history.store.counts["get_range"]
    history.config = replace(CONFIG, min_dirty_ratio=0.9)
    assert history.compact(LATER_NS) is None
    assert history.store.counts["get_range"] == size


class Deleted:
    """A value at offset 0 and its tombstone at offset 1, in an object each, and passes at chosen times."""

    def __init__(self):
        self.history = History()
        self.history.append([keyed(0, b"a")])
        self.history.append([keyed(1, b"a", value=None)])

    def after(self, now_ns, held=()):
        """Which of the two are left after a pass; one more record came in, so that it pays."""
        offset = self.history.end
        self.history.append([Record(offset, offset, b"s", value=b"new")])
        assert self.history.compact(now_ns, held=held)
        return [record.offset for record in self.history.records() if record.key is not None]


def test_a_tombstone_stays_as_long_as_it_must_after_what_it_deletes_is_gone():
    deleted = Deleted()
    assert deleted.after(10_000) == [1]
    assert deleted.after(10_000 + RETENTION_NS - 1) == [1]
    assert deleted.history.delete_horizon == 0
    assert deleted.after(10_000 + RETENTION_NS) == []
    assert deleted.history.delete_horizon == 2


def test_a_tombstone_stays_while_what_it_deletes_is_pinned_and_as_long_as_it_must_after_that():
    deleted = Deleted()
    pins = [(0, 1)]
    assert deleted.after(10_000, pins) == [0, 1]
    assert deleted.after(20_000, pins) == [0, 1]
    assert deleted.history.compacted_end == 0
    assert deleted.after(30_000) == [1]
    assert deleted.after(30_000 + RETENTION_NS - 1) == [1]
    assert deleted.after(30_000 + RETENTION_NS) == []


def test_merging_what_is_clean_keeps_the_time_at_which_a_tombstone_goes():
    deleted = Deleted()
    history = deleted.history
    assert deleted.after(10_000) == [1]
    sink = io.BytesIO()
    result = merge_fragments(history.store, PATH, history.pointers, sink, nonce="m")
    merged = result.pointer("merged", base=history.pointers[0].base, end=history.end)
    history._put(sink.getvalue(), merged)
    history.pointers = [merged]
    assert deleted.after(10_000 + RETENTION_NS - 1) == [1]
    assert deleted.after(10_000 + RETENTION_NS) == []


def test_young_objects_are_not_touched():
    history = History(replace(CONFIG, min_lag_ns=50))
    history.append([keyed(0, b"a"), keyed(1, b"a")])
    history.append([keyed(2, b"a"), keyed(3, b"a")])
    assert history.compact(52)
    assert [record.offset for record in history.records()] == [1, 2, 3]


def test_what_has_no_losses_is_not_written_anew():
    history = History()
    history.append([keyed(0, b"a"), keyed(1, b"b")])
    history.append([keyed(2, b"c"), keyed(3, b"c")])
    first = history.pointers[0]
    history.compact(LATER_NS)
    assert history.pointers[0] == first
    assert [record.offset for record in history.records()] == [0, 1, 3]


def test_neighbours_become_one_object_up_to_a_size():
    history = History()
    for base in range(0, 40, 4):
        history.append([keyed(base + place, b"a") for place in range(4)])
    size = max(pointer.size for pointer in history.pointers)
    history.config = replace(CONFIG, object_bytes=5 * size)
    history.compact(LATER_NS)
    assert len(history.pointers) == 2
    assert [(each.base, each.end) for each in history.pointers] == [(0, 20), (20, 40)]
    assert [record.offset for record in history.records()] == [39]
    empty = history.pointers[0]
    assert (empty.records, empty.first_timestamp, empty.last_timestamp) == (0, 0, 19)


def test_a_map_that_is_full_ends_the_pass_and_the_next_one_goes_on():
    history = History(replace(CONFIG, memory_bytes_max=MEMORY_BYTES_MIN))
    for base in range(0, 4_000, 1_000):
        history.append(plain_records(1_000, size=1, base=base, key=lambda place, base=base: b"%d" % (base + place)))
    history.append(plain_records(1_000, size=1, base=4_000, key=lambda place: b"%d" % place))
    ends = []
    while history.compacted_end < history.end:
        assert history.compact(LATER_NS).memory_bytes <= MEMORY_BYTES_MIN
        ends.append(history.compacted_end)
    assert len(ends) > 5
    assert ends == sorted(set(ends))
    assert [record.offset for record in history.records()] == list(range(1_000, 5_000))


def test_the_first_pass_fetches_only_what_stands_up_to_the_keys():
    history = History()
    records = [keyed(place, b"k%d" % place, value=bytes([place % 251]) * 5_000) for place in range(50)]
    body, result = written([rows_from(records)], row_group_bytes=20_000)
    history.store.create(PATH.fragment("x"), body, "n")
    history.pointers.append(result.pointer("x"))
    history.compact(LATER_NS)
    reader = ObjectReader(history.store, PATH.fragment("x"), result.extent)
    groups = range(len(reader.row_groups))
    of_keys = sum(end - start for start, end in (reader.metadata.extent(index, ["offset", "key"]) for index in groups))
    footer = result.extent.size - result.extent.footer + 8
    assert history.store.bytes_in == 2 * of_keys + 2 * footer
    assert history.store.counts["get_range"] == 2 * len(groups) + 2


def test_an_object_whose_records_do_not_give_its_sum_is_named(monkeypatch):
    history = History()
    history.append([keyed(0, b"a"), keyed(1, b"a")])
    monkeypatch.setattr(ObjectReader, "check_fragment", lambda *_: None)
    history.pointers[0] = replace(history.pointers[0], setsum=NO_RECORDS)
    with pytest.raises(ManifestCorruptError, match=PATH.fragment("0")):
        history.compact(LATER_NS)


def test_sinks_are_closed_when_a_pass_fails():
    history = History()
    history.append([keyed(0, b"a"), keyed(1, b"a")])
    sinks = []

    class Full(io.BytesIO):
        def __init__(self):
            super().__init__()
            sinks.append(self)

        def write(self, data):
            raise OSError("no space left")

    plan = plan_history(
        history.pointers,
        path=PATH,
        compacted_end=0,
        delete_horizon=0,
        clean_end=2,
        held=(),
        now_ns=LATER_NS,
        config=CONFIG,
    )
    compaction = HistoryCompaction(history.store, plan, CONFIG, seed=SEED, open_sink=Full, new_nonce=lambda: "n")
    with pytest.raises(OSError, match="no space left"):
        list(compaction.run())
    assert [sink.closed for sink in sinks] == [True]
