"""Rows come to the same whatever their order and tasks, and to something else when anything of them is another."""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy_spark.sink.contents import RowTally, total_of
from liftpy_spark.sink.rows import flushes
from support.sink_kit import layout_of

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
BYTES = st.none() | st.binary(max_size=3) | st.binary(min_size=60, max_size=70)
ROW = st.tuples(BYTES, BYTES, st.sampled_from([None, [], [("h", b"1")], [("h", b"2")]]), st.sampled_from("ab"))


def total(rows, columns=("value", "key", "headers", "subject"), subject="s.x", partition=None):
    kinds = {"value": pa.binary(), "key": pa.binary(), "headers": HEADERS, "subject": pa.string()}
    values = dict(zip(kinds, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(kinds, ())
    values["headers"] = [given and [{"key": k, "value": v} for k, v in given] for given in values["headers"]]
    values["subject"] = [f"s.{name}" for name in values["subject"]]
    arrays = {name: pa.array(values[name], kinds[name]) for name in columns}
    if partition is not None:
        arrays["partition"] = pa.array([partition] * len(rows), pa.int32())
    tally = RowTally(subject)
    list(flushes([pa.record_batch(arrays)], layout_of(4, subject=subject), 1 << 20, 0, tally))
    return tally.total


@settings(deadline=None)
@given(st.lists(ROW, max_size=12), st.data())
def test_order_and_tasks_do_not_matter(rows, data):
    shuffled = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    assert total(rows) == total(shuffled) == total_of([total(rows[:cut]), total(rows[cut:])])
    assert total(rows) == total(rows, partition=2)


@settings(deadline=None)
@given(st.lists(ROW, min_size=1, max_size=6), st.lists(ROW, min_size=1, max_size=6))
def test_other_rows_come_to_something_else(rows, others):
    def bag(of):
        return sorted(repr((*row[:2], row[2] or None, row[3])) for row in of)

    assert (total(rows) == total(others)) == (bag(rows) == bag(others))


SIZES = [*range(26), *range(1_015, 1_035)]


def row_of(value):
    return value, None, None, "a"


@pytest.mark.parametrize("sizes", [SIZES, [16] * 3, [13] * 3, [1_024] * 2, [1_025] * 2, [0] * 2])
def test_neither_neighbours_nor_their_lengths_matter(sizes):
    rows = [row_of(random.Random(number).randbytes(size)) for number, size in enumerate(sizes)]
    assert total(rows) == total_of(total([row]) for row in rows)


@pytest.mark.parametrize("sizes", [SIZES, [16] * 3, [13] * 3, [1_024] * 2, [1_025] * 2])
def test_every_bit_matters(sizes):
    generator = random.Random(len(sizes))
    rows = [row_of(generator.randbytes(size)) for size in sizes]
    found = {total(rows)}
    for number, size in enumerate(sizes):
        for at in {0, size // 2, size - 1} & set(range(size)):
            flipped = bytearray(rows[number][0])
            flipped[at] ^= 1 << generator.randrange(8)
            found.add(total([*rows[:number], row_of(bytes(flipped)), *rows[number + 1 :]]))
    assert len(found) == 1 + sum(len({0, size // 2, size - 1} & set(range(size))) for size in sizes)


def test_the_signs_of_two_numbers_are_not_taken_for_each_other():
    """The highest bits of two words: a sum of words times odd numbers would not notice."""
    signs = [(1.0, 2.0), (-1.0, 2.0), (1.0, -2.0), (-1.0, -2.0)]
    assert len({total([row_of(struct.pack("<dd", *pair))]) for pair in signs}) == len(signs)


@pytest.mark.parametrize("columns", [("value",), ("value", "key"), ("value", "headers", "subject")])
def test_a_column_that_is_missing_is_one_of_nulls(columns):
    rows = [(b"v", None, None, "x"), (None, None, None, "x")]
    assert total(rows, columns) == total(rows)
