"""Columns of strings of one size give what columns of any strings give."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.ipc import values_column
from liftpy_server.messages.packed import PackedColumn, strided
from support.examples import examples

equal_strings = st.integers(0, 12).flatmap(
    lambda width: st.lists(st.binary(min_size=width, max_size=width), min_size=1, max_size=12)
)


def columns(strings):
    """The strings as a column that knows of their size, and as one that does not."""
    data = b"".join(strings)
    edges = np.array(list(itertools.accumulate(map(len, strings), initial=0)), np.int32)
    return PackedColumn.of_equal(data, len(strings[0]), len(strings)), PackedColumn(edges, pa.py_buffer(data))


def bytes_of(column):
    return column.null_count, [bytes(buffer) for buffer in column.buffers]


@given(equal_strings, st.integers(0, 12), st.integers(0, 12), st.integers(0, 14))
@examples(300)
def test_cut(strings, some, other, skip):
    first, last = sorted((some % (len(strings) + 1), other % (len(strings) + 1)))
    expected = bytes_of(values_column([string[skip:] for string in strings[first:last]]))
    for column in columns(strings):
        assert first == last or expected == bytes_of(column.cut(first, last, skip))


@given(equal_strings, st.integers(0, 12), st.integers(0, 12), st.integers(0, 14))
@examples(200)
def test_strings_and_slices(strings, some, other, skip):
    first, last = sorted((some % (len(strings) + 1), other % (len(strings) + 1)))
    for column in columns(strings):
        part = column.slice(first, last)
        assert strings[first:last] == column.strings(first, last) == part.strings(0, last - first)
        assert first == last or bytes_of(column.cut(first, last, skip)) == bytes_of(part.cut(0, last - first, skip))


@given(equal_strings, st.integers(0, 12), st.lists(st.integers(0, 11), max_size=20))
@examples(200)
def test_take(strings, first, numbers):
    first %= len(strings)
    order = np.array([number % (len(strings) - first) for number in numbers], np.int32)
    for column in columns(strings):
        taken = column.take(first, len(strings), order)
        assert [strings[first + number] for number in order] == taken.strings(0, len(order))


@given(equal_strings, st.integers(0, 12), st.integers(0, 12))
@examples(200)
def test_repeated(strings, some, other):
    first, last = sorted((some % len(strings), other % len(strings)))
    part = strings[first : last + 1]
    with_width, without = columns(strings)
    assert with_width.repeated(first, last + 1) == (part[0] if part.count(part[0]) == len(part) else None)
    assert without.repeated(first, last + 1) is None


def test_repeated_among_others():
    with_width, _ = columns([b"ab", b"cd", b"cd", b"cd", b"ce"])
    assert [with_width.repeated(first, first + 3) for first in range(3)] == [None, b"cd", None]


def test_strided_views_write_through():
    data = bytearray(b"a12b34c56")
    assert strided(data, 1, 3, 3, 2).tobytes() == b"123456"
    strided(data, 0, 3, 3, 1)[:] = strided(b"xyz", 0, 1, 3, 1)
    assert data == b"x12y34z56"
