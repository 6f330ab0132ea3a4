"""Epoch history: equal to what a list of (offset, epoch) says, whatever was truncated and dropped in between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.epochs import EpochHistory
from support.examples import examples

HISTORY = [(1, 10), (3, 20), (7, 40)]


def test_an_empty_history():
    epochs = EpochHistory()
    assert (epochs.latest, epochs.entries) == (-1, [])
    assert epochs.end_offset(5, 30) == (-1, 30)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(0, (-1, 10)), (1, (1, 20)), (2, (1, 20)), (3, (3, 40)), (6, (3, 40)), (7, (7, 55)), (9, (7, 55))],
)
def test_an_epoch_ends_where_the_next_one_begins(epoch, expected):
    assert EpochHistory(HISTORY).end_offset(epoch, 55) == expected


def test_an_epoch_begins_once():
    epochs = EpochHistory(HISTORY)
    epochs.begin(7, 50)
    assert epochs.entries == HISTORY
    epochs.begin(8, 50)
    assert epochs.entries == [*HISTORY, (8, 50)]


def test_an_epoch_without_a_record_gives_way():
    epochs = EpochHistory(HISTORY)
    epochs.begin(8, 40)
    assert epochs.entries == [(1, 10), (3, 20), (8, 40)]


@pytest.mark.parametrize(("epoch", "offset"), [(6, 50), (8, 39)])
def test_neither_epochs_nor_their_beginnings_go_back(epoch, offset):
    with pytest.raises(AssertionError):
        EpochHistory(HISTORY).begin(epoch, offset)


@pytest.mark.parametrize(
    ("end", "left"), [(41, HISTORY), (40, HISTORY[:2]), (21, HISTORY[:2]), (20, HISTORY[:1]), (10, []), (0, [])]
)
def test_truncate_forgets_what_begins_at_the_end_or_later(end, left):
    epochs = EpochHistory(HISTORY)
    epochs.truncate(end)
    assert epochs.entries == left


@pytest.mark.parametrize(
    ("start", "left"),
    [
        (0, HISTORY),
        (10, HISTORY),
        (11, [(1, 11), (3, 20), (7, 40)]),
        (20, [(3, 20), (7, 40)]),
        (39, [(3, 39), (7, 40)]),
        (40, [(7, 40)]),
        (50, [(7, 50)]),
    ],
)
def test_advance_keeps_the_epoch_that_the_start_is_in(start, left):
    epochs = EpochHistory(HISTORY)
    epochs.advance(start)
    assert epochs.entries == left


def entries_in(records, start):
    """(epoch, first offset) of the records from `start` on; `records` is the epoch of each."""
    firsts = {}
    for offset, epoch in enumerate(records):
        if offset >= start:
            firsts.setdefault(epoch, offset)
    return list(firsts.items())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 4)),
        st.tuples(st.just("truncate"), st.integers(0, 6), st.just(0)),
        st.tuples(st.just("advance"), st.integers(0, 6), st.just(0)),
    ),
    max_size=30,
)


@given(STEPS, st.integers(-1, 40))
@examples(200)
def test_it_equals_the_epochs_of_a_list_of_records(steps, asked):
    epochs, records, start = EpochHistory(), [], 0
    for kind, number, count in steps:
        if kind == "append":
            epoch = (records[-1] if records else 0) + number
            epochs.begin(epoch, len(records))
            records += [epoch] * count
        elif kind == "truncate":
            del records[max(start + 1, len(records) - number) :]
            epochs.truncate(len(records))
        else:
            start = min(start + number, max(len(records) - 1, 0))
            epochs.advance(start)
    assert epochs.entries == entries_in(records, start)
    kept = records[start:]
    assert epochs.latest == (kept[-1] if kept else -1)
    older = [epoch for epoch in kept if epoch <= asked]
    end = start + len(older)
    assert epochs.end_offset(asked, len(records)) == (max(older, default=-1), end if kept else len(records))
