"""Sums over sets of records: whatever the order and the grouping."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum
from support.examples import examples

PRIMES = (4294967291, 4294967279, 4294967231, 4294967197, 4294967189, 4294967161, 4294967143, 4294967111)
digests = st.lists(st.one_of(st.binary(min_size=32, max_size=32), st.just(b"\xff" * 32)), max_size=20)


def plainly(given_digests):
    """The definition, without an array."""
    columns = [0] * 8
    for digest in given_digests:
        columns = [
            (column + part) % prime
            for column, part, prime in zip(columns, struct.unpack("<8I", digest), PRIMES, strict=True)
        ]
    return struct.pack("<8I", *columns)


@given(digests)
@examples(200)
def test_it_is_what_its_definition_says(records):
    assert Setsum.of_digests(b"".join(records)).digest == plainly(records)


@given(digests, digests)
@examples(200)
def test_sums_of_parts_make_the_whole_and_parts_can_be_taken_away(one, other):
    first, second = (Setsum.of_digests(b"".join(part)) for part in (one, other))
    whole = Setsum.of_digests(b"".join([*other, *one]))
    assert first + second == second + first == whole == Setsum.total([first, second])
    assert whole - second == first
    assert whole - first - second == NO_RECORDS
    assert hash(whole) == hash(first + second)
    assert Setsum.from_hex(whole.hex()) == whole


def test_one_record_more_or_twice_is_another_sum():
    one = Setsum.of_digests(b"\x01" * 32)
    assert one
    assert not NO_RECORDS
    assert one + one != one
    assert Setsum.total([]) == NO_RECORDS


@pytest.mark.parametrize("bad", ["", "00" * 31, "00" * 33, "ff" * 32, "zz" * 32])
def test_what_is_not_a_sum_is_refused(bad):
    with pytest.raises(ValueError):
        Setsum.from_hex(bad)
