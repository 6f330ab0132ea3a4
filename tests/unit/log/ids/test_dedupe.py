"""A window remembers what a list of all ids says that it must, however it came to be."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.ids import dedupe
from liftpy_log.ids.dedupe import DedupeMemory, DedupeWindow, Stored, hash_id, hash_ids
from liftpy_log.ids.table import HashedIds, IdTable, has_any
from support.examples import examples

WINDOW_NS = 10
S = 10**9


class Model:
    """All (time, id, place) there are, oldest first, and the time of the newest that was forgotten."""

    def __init__(self, ids_max):
        self.ids_max = ids_max
        self.ids = []
        self.forgotten = 0

    def add(self, now, keys, base):
        self.ids += [(now, key, base + index) for index, key in enumerate(keys)]
        self.forget(now)

    def forget(self, now):
        old = [each[0] for each in self.ids if each[0] < now - WINDOW_NS]
        self.forgotten = max(self.forgotten, *old, 0)  # too old by now, and not where an earlier time is asked for next
        self.ids = self.ids[len(old) :]
        if len(self.ids) > self.ids_max:
            self.forgotten = max(self.forgotten, self.ids[-self.ids_max - 1][0])
            del self.ids[: -self.ids_max]

    def truncate(self, end):
        self.ids = [each for each in self.ids if each[2] < end]

    def check(self, window, number):
        held = {key: offset for _, key, offset in self.ids}
        found = {key: window.find(key) for key in (b"%d" % each for each in range(number))}
        assert {key: place.offset for key, place in found.items() if place} == held
        assert len(window) == len(held)


steps = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 70), st.sampled_from([0, 1, 4, 11])),
    st.tuples(st.just("gap"), st.integers(1, 5)),
    st.tuples(st.just("truncate"), st.integers(0, 4)),
    st.tuples(st.just("expire"), st.integers(1, 12)),
)


@given(st.lists(steps, max_size=25), st.sampled_from([10_000, 100, 5, 1]), st.sampled_from([0, 10_000]))
@examples(300)
def test_a_window_remembers_what_a_list_does(given_steps, ids_max, joined_max):
    window, model = DedupeWindow(WINDOW_NS, ids_max), Model(ids_max)
    now = end = number = 0
    batches = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedupe, "_JOINED_MAX", joined_max)
        for kind, count, *more in given_steps:
            if kind == "add":
                now += more[0]
                keys = [b"%d" % each for each in range(number, number + count)]
                assert window.are_new(hash_ids(keys), now)
                window.add(now, hash_ids(keys), range(end, end + count))
                model.add(now, keys, end)
                assert not window.are_new(hash_ids(keys[-1:]), now)
                assert (
                    window.is_shortened(now) == (model.forgotten >= now - WINDOW_NS and model.forgotten > 0) or now < 11
                )
                batches.append(end)
                number, end = number + count, end + count
            elif kind == "gap":
                end += count
            elif kind == "truncate":
                for _ in range(min(count, len(batches))):
                    end = batches.pop()
                window.truncate(end)
                model.truncate(end)
            else:
                window.expire(now + count)
                model.forget(now + count)
            model.check(window, number)
    sizes = [table.size_bytes for table in window._tables]
    assert (window._memory.size_bytes, window._memory.windows) == (sum(sizes), bool(sizes))


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=12), st.data())
@examples(150)
def test_what_is_recalled_comes_before_what_is_there(batches, data):
    ids_max = data.draw(st.sampled_from([10_000, 60, 7]))
    whole, window, model = DedupeWindow(WINDOW_NS, ids_max), DedupeWindow(WINDOW_NS, ids_max), Model(ids_max)
    split = data.draw(st.integers(0, len(batches)))
    older, now, end = [], 20, 0
    for index, (count, later) in enumerate(batches):
        now += later
        keys = [b"%d" % each for each in range(end, end + count)]
        model.add(now, keys, end)
        whole.add(now, hash_ids(keys), range(end, end + count))
        if index < split:
            older.append((now, hash_ids(keys), list(range(end, end + count))))
        else:
            window.add(now, hash_ids(keys), range(end, end + count))
        end += count
    window.recall(older)
    window.recall(older)  # a leader that led before asks again
    window.expire(now)
    model.check(window, end)
    assert len(window) == len(whole)
    assert window.is_shortened(now) == whole.is_shortened(now)
    window.add(now + 1, hash_ids([b"%d" % end]), [end])
    model.add(now + 1, [b"%d" % end], end)
    model.check(window, end + 1)
    assert window._memory.size_bytes == window.size_bytes


def with_one(others, own, number):
    return np.append(others[:40], np.array(own[number], others.dtype))


@pytest.mark.parametrize("count", [1, 31, 32, 1_000, 100_000])
def test_every_id_of_a_table_is_found_and_no_other(count):
    table = IdTable(0, count)
    ids = hash_ids([b"id-%d" % number for number in range(count)])
    table.add(ids, range(5, 5 + count))
    others = hash_ids([b"other-%d" % number for number in range(max(count, 100))])
    assert not has_any([table], others)
    for number in range(0, count, max(1, count // 500)):
        assert table.find(int(ids.first[number]), int(ids.second[number])) == number
        assert has_any([table], HashedIds(*map(with_one, others, ids, [number] * 2)))
    assert (table.oldest, table.newest, table.count) == (5, 4 + count, count)


def test_more_ids_than_a_bucket_holds_are_found():
    table = IdTable(0, 64)
    first = [7 | number << 20 for number in range(40)]
    table.add(HashedIds(np.array(first, np.uint64), np.arange(40, dtype=np.uint32)), range(40))
    table.add(HashedIds(first[:3], [0, 1, 2]), range(40, 43))
    assert [table.find(each, number) for number, each in enumerate(first)] == [40, 41, 42, *range(3, 40)]
    assert len(table.others) == 32
    assert (table.find(first[5], 6), table.find(first[5] | 1 << 62, 5)) == (None, None), "one of the hashes differs"


def test_an_id_that_was_stored_twice_is_found_where_it_was_stored_last():
    window = DedupeWindow(WINDOW_NS, 100)
    window.add(1, hash_ids([b"a", b"b"]), [3, 4])
    window.add(2, hash_ids([b"a"]), [5])
    assert window.find(b"a") == Stored(5, 1)
    window.truncate(5)
    assert window.find(b"a") == Stored(3, 1)


def test_an_idempotent_batch_is_known_with_its_records_and_forgotten_with_them():
    window = DedupeWindow(WINDOW_NS, 100)
    window.add(1, hash_ids([b"m"]), [0])
    for sequence in range(1, 60):
        window.add(1, hash_id((b"p" * 16, sequence)), [sequence * 5 + 4], records=5)
    assert window.find((b"p" * 16, 1)) == Stored(9, 5)
    assert window.find(b"m") == Stored(0, 1)
    assert window.find(b"p" * 16 + (1).to_bytes(8, "little")) is None, "a message id is not a producer's"
    window.truncate(15)
    assert (window.find((b"p" * 16, 2)), window.find((b"p" * 16, 3))) == (Stored(14, 5), None)
    window.truncate(0)
    assert (len(window), window.size_bytes) == (0, 0)


def test_what_is_stored_at_a_place_was_not_stored_there_before():
    """Whoever forgot to truncate does not make ids of records that never were duplicates."""
    window = DedupeWindow(WINDOW_NS, 100)
    window.add(1, hash_ids([b"a", b"b", b"c"]), [0, 1, 2])
    window.add(2, hash_ids([b"d"]), [1])
    assert [window.find(key) for key in (b"a", b"b", b"c", b"d")] == [(0, 1), None, None, (1, 1)]


def test_a_window_that_is_off_remembers_nothing():
    window = DedupeWindow(0, 100)
    window.add(1, hash_ids([b"a"]), [0])
    assert (len(window), window.find(b"a")) == (0, None)
    window.resize(WINDOW_NS, 100)
    assert window.is_shortened(2), "nobody knows the ids of what was stored while it was off"


def test_a_window_says_how_far_it_reaches():
    window = DedupeWindow(120 * S, 1_000)
    for second in range(100):
        window.add(
            1_000 * S + second * S,
            hash_ids([b"%d/%d" % (second, each) for each in range(20)]),
            range(20 * second, 20 * second + 20),
        )
    now = 1_100 * S
    assert (len(window), window.is_shortened(now)) == (1_000, True)
    assert 48 * S <= window.known_ns(now) <= 51 * S
    assert window.find(b"49/19") is None
    assert window.find(b"50/0") == Stored(1_000, 1)
    window.expire(now + 71 * S)
    assert (window.is_shortened(now + 71 * S), window.known_ns(now + 71 * S)) == (False, 120 * S)


def fill(window, count, now, number, batch=1_000):
    for start in range(number, number + count, batch):
        window.add(
            now, hash_ids([b"id-%d" % each for each in range(start, start + batch)]), range(start, start + batch)
        )


def test_two_minutes_of_a_busy_stream_are_remembered_in_arrays():
    """As at 50,000 ids/s, at a tenth of the rate."""
    window, number = DedupeWindow(120 * S, 6_000_000), 0
    for second in range(130):
        fill(window, 5_000, second * S, number)
        number += 5_000
    assert 600_000 <= len(window) <= 610_000
    assert not window.is_shortened(129 * S)
    assert window.find(b"id-%d" % (number - 600_000)) == Stored(number - 600_000, 1)
    assert window.size_bytes / len(window) < 100
    assert len(window._tables) <= 8


def test_windows_that_are_idle_or_quiet_take_next_to_nothing():
    window = DedupeWindow(120 * S, 6_000_000)
    assert window.size_bytes == 0
    fill(window, 100_000, S, 0)
    window.expire(200 * S)
    assert (len(window), window.size_bytes) == (0, 0)
    window.add(200 * S, hash_ids([b"one"]), [100_000])
    assert window.size_bytes < 4_096


def test_the_windows_of_a_node_share_its_memory():
    memory = DedupeMemory(20_000_000)
    windows = [DedupeWindow(120 * S, 6_000_000, memory) for _ in range(4)]
    for second in range(30):
        for window in windows:
            fill(window, 20_000, second * S, second * 20_000)
    assert sum(window.size_bytes for window in windows) == memory.size_bytes <= 2 * memory.bytes_max
    assert all(window.is_shortened(29 * S) for window in windows)
    assert all(window.known_ns(29 * S) < 30 * S for window in windows)
    assert all(window.find(b"id-599999") for window in windows), "each has a share"
    assert min(len(window) for window in windows) > 20_000
    for window in windows:
        window.clear(0)
    assert (memory.size_bytes, memory.windows) == (0, 0)


def test_no_batch_waits_while_the_window_grows():
    window, longest_s = DedupeWindow(120 * S, 6_000_000), 0.0
    for start in range(0, 400_000, 1_000):
        ids = hash_ids([b"id-%d" % each for each in range(start, start + 1_000)])
        before_s = time.thread_time()
        assert window.are_new(ids, start)
        window.add(start, ids, range(start, start + 1_000))
        longest_s = max(longest_s, time.thread_time() - before_s)
    assert longest_s < 0.05, "a dict of this size takes more at once when it grows"
