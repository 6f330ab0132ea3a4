"""A consumer's filter takes what its subjects match, and says what is wrong with them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from liftpy_client.consumer.decode import RECORDS_SCHEMA
from liftpy_client.consumer.filtering import SubjectFilter
from liftpy_envelope.columns import Column, schema_of
from liftpy_envelope.errors import SubjectInvalidError


def raw(*subjects):
    """Decoded records as they stand in a batch."""
    values = [b"%d" % number for number in range(len(subjects))]
    return pa.record_batch([subjects, values], schema=schema_of(Column.SUBJECT | Column.VALUE))


def as_handed_out(*subjects):
    """Records as `consume_batches` yields them."""
    count = len(subjects)
    columns = [range(count), [0] * count, [0] * count, subjects, *[[None] * count] * 3]
    return pa.record_batch(columns, schema=RECORDS_SCHEMA)


def test_wanted_records_stay_in_order():
    records = raw(b"orders.eu", b"orders.us", b"trades", b"orders.eu.x", b"orders.eu")
    wanted = SubjectFilter(["orders.eu", "trades"])
    assert wanted.select(records).column("value").to_pylist() == [b"0", b"2", b"4"]
    assert SubjectFilter("orders.*").select(records).column("value").to_pylist() == [b"0", b"1", b"4"]
    assert SubjectFilter("orders.>").select(records).num_rows == 4


def test_records_as_they_are_handed_out_are_filtered_too():
    records = as_handed_out("a.b", "c", "ä.b", "a.d")
    assert SubjectFilter("a.*").select(records).column("offset").to_pylist() == [0, 3]
    assert SubjectFilter(["ä.b"]).select(records).column("offset").to_pylist() == [2]
    many = as_handed_out(*(f"a.{number % 100}" for number in range(1_000)))
    assert SubjectFilter(["a.7", "*.9"]).select(many).num_rows == 20


def test_a_batch_of_which_everything_or_nothing_is_wanted_is_not_copied():
    records = raw(b"a.b", b"a.c")
    assert SubjectFilter("a.>").select(records) is records
    assert SubjectFilter("b.>").select(records) is None
    assert SubjectFilter(">").select(raw()) is None


def test_single_subjects_are_told_apart():
    wanted = SubjectFilter(["a.*", "b"])
    assert [wanted.matches(subject) for subject in (b"a.x", b"a", b"a.x.y", b"b", b"a.\xff")] == [
        True,
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ([], "leave it out"),
        ("", "non-empty string"),
        (["a", 7], "not 7"),
        (["a..b"], "empty token"),
        ("a.>.b", "only at the end"),
        (["a b"], "white space"),
        (["a"] * 65, "up to 64 subjects, not 65"),
    ],
)
def test_a_filter_that_can_not_be_meant_is_refused(patterns, message):
    with pytest.raises(SubjectInvalidError, match=message):
        SubjectFilter(patterns)
