"""Whether the demonstration notices that the pipeline gave something else than the flights say."""

from __future__ import annotations

import copy
import json

import pytest

from liftpy.demo.check import CheckFailedError
from liftpy.demo.delays import check_pipeline, delays_of
from liftpy.demo.flights import Flight

FLIGHTS = [
    Flight(f"flights.{carrier}.EWR.IAH", json.dumps({"carrier": carrier, "dep_delay": delay}).encode())
    for carrier, delay in (("UA", 15), ("UA", None), ("B6", -4), ("UA", 14))
]
STREAMING = {"carrier": {"dropped": 0}, "route": {"dropped": 0}}
BATCH = {
    "records": 5,
    "compared": [
        {"grouping": grouping, "where": where, "rows": rows, "differ": 0}
        for grouping, rows in (("carrier", 3), ("route", 2))
        for where in ("stream", "table")
    ],
    "flights_by_grouping": {"carrier": 4, "route": 4},
    "carriers": [
        {"name": "UA", "flights": 3, "cancelled": 1, "late": 1, "delay_sum_min": 29},
        {"name": "B6", "flights": 1, "cancelled": 0, "late": 0, "delay_sum_min": -4},
    ],
}


def check(streaming=STREAMING, batch=BATCH, stored=5):
    check_pipeline(streaming, batch, FLIGHTS, records=len(FLIGHTS), stored=stored)


def changed(report, *path, value):
    made = copy.deepcopy(report)
    place = made
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return made


def test_what_is_right():
    check()
    assert list(delays_of(FLIGHTS).values()) == BATCH["carriers"]


def test_flights_that_came_too_late():
    with pytest.raises(CheckFailedError, match="for the query route, 1 rows came too late"):
        check(streaming=changed(STREAMING, "route", "dropped", value=1))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("compared", 1, "differ"), 2, "of 3 rows by carrier, 2 differ in the table"),
        (("compared",), BATCH["compared"][:3], "only this was compared"),
        (("records",), 4, "history has 4 records of 5"),
        (("flights_by_grouping", "route"), 3, "the windows by route hold 3 flights of 4"),
        (("carriers", 0, "late"), 2, "the sums of carriers are not those of the flights"),
    ],
)
def test_a_batch_job_that_found_something_else(path, value, said):
    with pytest.raises(CheckFailedError, match=said):
        check(batch=changed(BATCH, *path, value=value))


def test_a_row_that_is_in_the_stream_twice():
    with pytest.raises(CheckFailedError, match="has 6 records, and there are 5 windows"):
        check(stored=6)
