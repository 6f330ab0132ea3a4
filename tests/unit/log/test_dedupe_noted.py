"""Ids that were noted are found as those that were added; only that they are looked at when somebody asks."""

from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.dedupe import DedupeWindow, Stored
from support.examples import examples

WINDOW_NS = 10


class Ids:
    """The ids of a batch; counts how often somebody looked at them."""

    def __init__(self, base_offset, keys):
        self.base_offset = base_offset
        self.count = len(keys)
        self.keys = keys
        self.looks = 0

    def stored(self):
        self.looks += 1
        return [(key, offset) for offset, key in enumerate(self.keys, self.base_offset)]


class Pair:
    """A window whose ids are added at once, one whose ids are noted, and all batches."""

    def __init__(self, ids_max):
        self.eager, self.lazy = DedupeWindow(WINDOW_NS, ids_max), DedupeWindow(WINDOW_NS, ids_max)
        self.batches = []
        self.now = self.end = self.number = 0
        self.was_cut = False

    def take(self, count, later, *, add_to_both):
        self.now += later
        keys = [b"%d" % (self.number + index) for index in range(count)]
        self.number += count
        ids = Ids(self.end, keys)
        self.eager.add(self.now, ids.stored())
        if add_to_both:
            self.lazy.add(self.now, ids.stored())
        else:
            self.lazy.note(self.now, ids)
        self.batches.append((self.end, self.now, keys))
        self.end += count

    def truncate(self, back):
        for _ in range(min(back, len(self.batches))):
            self.end, _, keys = self.batches.pop()
            self.was_cut |= bool(keys)
        self.eager.truncate(self.end)
        self.lazy.truncate(self.end)

    def check(self):
        found = {key: self.lazy.find(key) for key in map(b"%d".__mod__, range(self.number))}
        for key, place in found.items():
            assert place == self.eager.find(key) or (self.was_cut and self.eager.find(key) is None)
        held = {
            key: Stored(base + index, 1)
            for base, time, keys in self.batches
            if time >= self.now - WINDOW_NS
            for index, key in enumerate(keys)
        }
        assert {key for key, place in found.items() if place} <= held.keys()
        assert all(place in {None, held.get(key)} for key, place in found.items())
        assert len(self.lazy) == sum(place is not None for place in found.values()) <= self.lazy.ids_max


steps = st.one_of(
    st.tuples(st.just("note"), st.integers(1, 4), st.sampled_from([0, 1, 4, 11])),
    st.tuples(st.just("add"), st.integers(1, 4), st.sampled_from([0, 1, 4, 11])),
    st.tuples(st.just("truncate"), st.integers(0, 4)),
    st.tuples(st.just("check")),
)


@given(st.lists(steps, max_size=25), st.sampled_from([100, 5, 1]))
@examples(400)
def test_noted_ids_are_found_like_added_ones(given_steps, ids_max):
    pair = Pair(ids_max)
    for kind, *values in given_steps:
        if kind in {"note", "add"}:
            pair.take(*values, add_to_both=kind == "add")
        elif kind == "truncate":
            pair.truncate(*values)
        else:
            pair.check()
        if not pair.was_cut:
            assert len(pair.lazy) == len(pair.eager)
            assert pair.lazy.is_shortened(pair.now) == pair.eager.is_shortened(pair.now)
    pair.check()


def test_nobody_looks_at_noted_ids_before_somebody_asks():
    window = DedupeWindow(WINDOW_NS, 1_000)
    batches = [Ids(number * 10, [b"%d" % number]) for number in range(20)]
    for now, ids in enumerate(batches):
        window.note(now, ids)
    window.truncate(185)
    assert (len(window), sum(ids.looks for ids in batches)) == (10, 0)
    assert window.find(b"18") == Stored(180, 1)
    assert (window.find(b"19"), window.find(b"7")) == (None, None)
    assert [ids.looks for ids in batches] == [0] * 9 + [1] * 10 + [0]


def test_what_nobody_asks_for_is_bounded():
    window = DedupeWindow(10**9, 100)
    for number in range(1_000):
        window.note(number, Ids(number * 30, [b"%d/%d" % (number, index) for index in range(30)]))
        assert len(window._noted) <= 4
        assert len(window) <= 100
    assert window.is_shortened(1_000)


def test_an_idempotent_batch_is_forgotten_with_its_records():
    window = DedupeWindow(WINDOW_NS, 100)
    window.add(1, [((b"p", 1), Stored(4, 5))])
    window.add(1, [((b"p", 2), Stored(9, 5))])
    window.truncate(5)
    assert (window.find((b"p", 1)), window.find((b"p", 2))) == (Stored(4, 5), None)
    window.truncate(0)
    assert len(window) == 0


def test_a_window_that_is_off_notes_nothing():
    window = DedupeWindow(0, 100)
    window.note(1, Ids(0, [b"a"]))
    assert (len(window), window.find(b"a")) == (0, None)
