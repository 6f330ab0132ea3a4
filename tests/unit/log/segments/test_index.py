"""Sparse indexes: look-ups equal those in a plain list, files round-trip, and damage is never taken for content."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.segments.index import SegmentIndex
from support.examples import examples

BASE = 1_000


@st.composite
def entry_lists(draw):
    steps = draw(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000), st.integers(0, 30)), max_size=30))
    offset, position, time, entries = BASE, 0, 500, []
    for offset_step, position_step, time_step in steps:
        entries.append((offset, position, time))
        offset, position, time = offset + offset_step, position + position_step, time + time_step
    return entries


def index_of(entries, base=BASE):
    index = SegmentIndex(base)
    for entry in entries:
        index.add(*entry)
    return index


def entries_of(index):
    """Every entry, as look-ups show it."""
    count = len(index)
    return [(*index._entry(number), index._times[number]) for number in range(count)]


def last_of(entries):
    return entries[-1][:2] if entries else (BASE, 0)


@given(entry_lists(), st.integers(0, 3000), st.integers(0, 200_000), st.integers(400, 1500))
@examples(150)
def test_look_ups_equal_those_in_a_list(entries, offset, position, time):
    index = index_of(entries)
    assert len(index) == len(entries)
    assert index.floor(BASE + offset) == last_of([entry for entry in entries if entry[0] <= BASE + offset])
    assert index.floor_position(position) == last_of([entry for entry in entries if entry[1] <= position])
    assert index.before_time(time) == last_of([entry for entry in entries if entry[2] < time])
    assert index.last() == last_of(entries)


@given(entry_lists(), st.data())
@examples(80)
def test_look_ups_at_and_beside_every_entry(entries, data):
    index = index_of(entries)
    for entry in entries:
        step = data.draw(st.integers(-1, 1))
        offset, position, time = (number + step for number in entry)
        assert index.floor(offset) == last_of([other for other in entries if other[0] <= offset])
        assert index.floor_position(position) == last_of([other for other in entries if other[1] <= position])
        assert index.before_time(time) == last_of([other for other in entries if other[2] < time])


@given(entry_lists(), st.integers(0, 200_000))
@examples(80)
def test_keep_before_drops_what_lies_behind(entries, position):
    index = index_of(entries)
    index.keep_before(position)
    assert entries_of(index) == [entry for entry in entries if entry[1] < position]


@given(entry_lists())
@examples(80)
def test_files_round_trip(entries):
    decoded = SegmentIndex.decode(BASE, *index_of(entries).encode())
    assert entries_of(decoded) == entries
    decoded.add(2**31 + BASE, 2**31, 2**62)
    assert decoded.last() == (2**31 + BASE, 2**31)


def test_the_bytes_of_both_files():
    offsets, times = index_of([(BASE, 0, 7), (BASE + 5, 4096, 9)]).encode()
    assert offsets[:8] + offsets[8:16] == struct.pack("<IIq", 0x4958464C, 1, BASE)
    assert offsets[24:] == struct.pack("<IIII", 0, 0, 5, 4096)
    assert times[:16] == struct.pack("<IIq", 0x5449464C, 1, BASE)
    assert times[24:] == struct.pack("<qIqI", 7, 0, 9, 5)


ENTRIES = [(BASE, 0, 7), (BASE + 5, 4096, 9), (BASE + 9, 9000, 9)]


def test_every_flipped_bit_is_noticed():
    files = index_of(ENTRIES).encode()
    for number, content in enumerate(files):
        for bit in range(8 * len(content)):
            turned = bytearray(content)
            turned[bit // 8] ^= 1 << bit % 8
            given_files = [bytes(turned) if place == number else file for place, file in enumerate(files)]
            decoded = SegmentIndex.decode(BASE, *given_files)
            if 20 <= bit // 8 < 24:  # padding
                assert entries_of(decoded) == ENTRIES
            else:
                assert decoded is None, (number, bit)


def test_every_other_length_is_noticed():
    offsets, times = index_of(ENTRIES).encode()
    for length in range(len(offsets)):
        assert SegmentIndex.decode(BASE, offsets[:length], times) is None
    for length in range(len(times)):
        assert SegmentIndex.decode(BASE, offsets, times[:length]) is None
    for more in (b"\0", bytes(8), bytes(12), bytes(24)):
        assert SegmentIndex.decode(BASE, offsets + more, times) is None
        assert SegmentIndex.decode(BASE, offsets, times + more) is None


def test_files_of_another_segment_are_noticed():
    assert SegmentIndex.decode(BASE, *index_of(ENTRIES, BASE - 1).encode()) is None


def test_files_in_each_others_place_are_noticed():
    offsets, times = index_of(ENTRIES).encode()
    assert SegmentIndex.decode(BASE, times, offsets) is None


def test_one_file_older_than_the_other_is_noticed():
    older, newer = index_of(ENTRIES[:2]).encode(), index_of(ENTRIES).encode()
    assert SegmentIndex.decode(BASE, older[0], newer[1]) is None
    assert SegmentIndex.decode(BASE, newer[0], older[1]) is None


def test_files_that_speak_of_other_batches_are_noticed():
    """They are written one after the other, and a crash may keep one of each generation."""
    one, other = index_of(ENTRIES).encode(), index_of([(BASE, 0, 7), (BASE + 6, 4096, 8), (BASE + 9, 9000, 8)]).encode()
    assert SegmentIndex.decode(BASE, one[0], other[1]) is None


@given(st.binary(max_size=200), st.binary(max_size=200))
@examples(100)
def test_garbage_is_noticed(offsets, times):
    assert SegmentIndex.decode(BASE, offsets, times) is None


def test_an_entry_must_lie_behind_the_one_before_it():
    index = index_of(ENTRIES)
    with pytest.raises(AssertionError):
        index.add(BASE + 10, 9000, 9)
