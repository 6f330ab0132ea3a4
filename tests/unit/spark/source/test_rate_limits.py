"""What one batch gets of each partition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liftpy_spark.source.rate_limits import Backlog, divide_bytes, divide_offsets

_PLACES = st.tuples(st.sampled_from(["orders", "payments"]), st.integers(0, 5))
_BACKLOGS = st.dictionaries(
    _PLACES,
    st.builds(
        lambda start, waiting, size: Backlog(start, start + waiting, size),
        st.integers(0, 2**40),
        st.one_of(st.integers(0, 5), st.integers(0, 2**40)),
        st.integers(1, 2**20),
    ),
)


def _shares(backlogs, ends):
    return {place: ends[place] - backlog.start for place, backlog in backlogs.items()}


@given(_BACKLOGS, st.integers(1, 2**41))
def test_a_batch_has_as_many_offsets_as_it_may_and_every_partition_moves(backlogs, offsets_max):
    shares = _shares(backlogs, divide_offsets(backlogs, offsets_max))
    waiting = [backlog.offsets for backlog in backlogs.values() if backlog.offsets]
    assert sum(shares.values()) == min(sum(waiting), max(offsets_max, len(waiting)))
    for place, backlog in backlogs.items():
        assert min(1, backlog.offsets) <= shares[place] <= backlog.offsets


@given(_BACKLOGS, st.integers(1, 2**41))
def test_shares_are_in_proportion_to_what_waits(backlogs, offsets_max):
    shares = _shares(backlogs, divide_offsets(backlogs, offsets_max))
    total, places = sum(backlog.offsets for backlog in backlogs.values()), len(backlogs)
    if total > offsets_max > places:
        for place, backlog in backlogs.items():
            assert abs(shares[place] - offsets_max * backlog.offsets / total) <= places + 1


@given(_BACKLOGS, st.integers(1, 2**60))
def test_a_batch_by_bytes_has_no_more_than_it_may_but_one_of_each(backlogs, bytes_max):
    shares = _shares(backlogs, divide_bytes(backlogs, bytes_max))
    read = 0
    for place, backlog in backlogs.items():
        assert min(1, backlog.offsets) <= shares[place] <= backlog.offsets
        read += max(0, shares[place] - 1) * backlog.record_bytes
    assert read <= bytes_max
    if sum(backlog.offsets * backlog.record_bytes for backlog in backlogs.values()) <= bytes_max:
        assert all(shares[place] == backlog.offsets for place, backlog in backlogs.items())


def test_shares_as_one_would_work_them_out():
    backlogs = {("orders", 0): Backlog(10, 910), ("orders", 1): Backlog(0, 100), ("orders", 2): Backlog(7, 7)}
    assert divide_offsets(backlogs, 100) == {("orders", 0): 100, ("orders", 1): 10, ("orders", 2): 7}
    assert divide_offsets(backlogs, 1) == {("orders", 0): 11, ("orders", 1): 1, ("orders", 2): 7}
    sized = {("orders", 0): Backlog(0, 1000, 100), ("orders", 1): Backlog(0, 1000, 300)}
    assert divide_bytes(sized, 40_000) == {("orders", 0): 100, ("orders", 1): 100}


def test_a_partition_that_ends_before_it_starts_stays_where_it_is():
    backlogs = {("orders", 0): Backlog(10, 4)}
    assert divide_offsets(backlogs, 5) == divide_bytes(backlogs, 5) == {("orders", 0): 10}
