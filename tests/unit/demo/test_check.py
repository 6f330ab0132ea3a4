"""The demonstration's check of what was replayed: it finds each kind of fault."""

from __future__ import annotations

import pytest

from liftpy.demo.check import CheckFailedError, Record, check_records
from liftpy.demo.flights import Flight

FLIGHTS = [Flight(f"flights.UA.EWR.{'ABC'[number % 3]}", b"%d" % number) for number in range(9)]
EXPECTED = frozenset(range(1, 8))


def records_of(*numbers):
    return [Record(place, FLIGHTS[n].subject, str(n), FLIGHTS[n].payload) for place, n in enumerate(numbers)]


def acked_at(records):
    return {int(record.number): record.offset for record in records}


def test_all_there_once():
    records = records_of(1, 2, 3, 5, 4, 6, 7)  # only the order within a subject counts
    found = check_records("s", records, FLIGHTS, EXPECTED, acked_at(records))
    assert set(found.values()) == {0}
    assert {"lost", "doubled"} <= set(found)


def test_what_was_sent_again_may_come_late():
    records = records_of(1, 2, 6, 4, 5, 3, 7)
    found = check_records("s", records, FLIGHTS, EXPECTED, acked_at(records), {3})
    assert {kind: count for kind, count in found.items() if count} == {"late": 1}
    with pytest.raises(CheckFailedError, match="1 out of order"):
        check_records("s", records, FLIGHTS, EXPECTED, acked_at(records), {6})


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((1, 2, 3, 4, 5, 7), "1 lost. For example: lost: flight 6, acknowledged at offset None"),
        ((1, 2, 3, 4, 5, 6, 7, 3), "1 doubled. For example: doubled: offset 7 is flight 3 once more"),
        ((1, 2, 3, 4, 5, 6, 7, 8), "1 strange. For example: strange: offset 7 is flight '8', which is none of ours"),
        ((1, 2, 6, 4, 5, 3, 7), "1 out of order. For example: out of order: offset 5, flight 3, comes after 6"),
    ],
)
def test_a_fault_in_the_set_or_the_order(numbers, said):
    records = records_of(*numbers)
    acked = {int(record.number): record.offset for record in reversed(records)}
    with pytest.raises(CheckFailedError) as caught:
        check_records("s", records, FLIGHTS, EXPECTED, acked)
    assert str(caught.value) == f"s: {said}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"value": b"else"}, "1 changed"),
        ({"value": None}, "1 changed"),
        ({"subject": "flights.UA.EWR.B"}, "1 changed"),
        ({"offset": 9}, "2 misplaced"),  # not in its place, and not where the ack said
        ({"number": ""}, "1 strange, 1 lost"),
    ],
)
def test_a_fault_in_a_record(changes, said):
    records = records_of(1, 2, 3, 4, 5, 6, 7)
    acked = acked_at(records)
    records[2] = records[2]._replace(**changes)
    with pytest.raises(CheckFailedError, match=f"s: {said}"):
        check_records("s", records, FLIGHTS, EXPECTED, acked)


def test_an_ack_that_said_something_else():
    records = records_of(1, 2, 3, 4, 5, 6, 7)
    with pytest.raises(CheckFailedError, match="offset 2 is flight 3, whose ack said 5"):
        check_records("s", records, FLIGHTS, EXPECTED, acked_at(records) | {3: 5})


def test_many_faults_are_counted_and_few_are_shown():
    with pytest.raises(CheckFailedError) as caught:
        check_records("s", [], FLIGHTS, EXPECTED, {})
    assert str(caught.value).startswith("s: 7 lost. ")
    assert str(caught.value).count("acknowledged at") == 3
