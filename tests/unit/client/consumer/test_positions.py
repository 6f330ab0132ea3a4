"""Where a consumer starts and stops, from what the user says and the leader answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from liftpy_client.consumer.positions import (
    Position,
    check_partitions,
    check_start,
    check_stop,
    offset_of,
    position,
    queries,
    time_query,
)
from liftpy_client.errors import UsageError
from liftpy_envelope.pull import EARLIEST, LATEST

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("start", ["earliest", "latest", "new", 0, 2**63 - 1, NOON, {}, {0: 5, 3: 0}])
def test_sound_starts(start):
    check_start(start)


@pytest.mark.parametrize(
    "start",
    ["newest", -1, 2**63, 1.5, True, None, b"3", datetime(2026, 1, 31), {"0": 5}, {0: -1}, {-1: 5}, {0: "5"}],  # noqa: DTZ001
)
def test_senseless_starts(start):
    with pytest.raises(UsageError):
        check_start(start)


@pytest.mark.parametrize("stop", [None, "latest", 0, 17, NOON])
def test_sound_stops(stop):
    check_stop(stop)


@pytest.mark.parametrize("stop", ["earliest", -1, True, 0.0, {0: 3}, datetime(2026, 1, 31)])  # noqa: DTZ001
def test_senseless_stops(stop):
    with pytest.raises(UsageError):
        check_stop(stop)


@pytest.mark.parametrize("partitions", [[], [-1], ["0"], [True], [None]])
def test_senseless_partitions(partitions):
    with pytest.raises(UsageError, match="partitions"):
        check_partitions(partitions)


def test_times_are_exact_and_zones_do_not_matter():
    moment = datetime(2026, 3, 4, 5, 6, 7, 890_123, tzinfo=UTC)
    assert time_query(moment) == 1_772_600_767_890_123_000
    assert time_query(moment.astimezone(timezone(timedelta(hours=-7)))) == time_query(moment)
    assert time_query(datetime(1950, 1, 1, tzinfo=UTC)) == 0
    assert time_query(datetime(2262, 4, 11, tzinfo=UTC)) < 2**63
    with pytest.raises(UsageError, match=r"2263-01-01 .* 64 bits"):
        time_query(datetime(2263, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(("word", "offset"), [("earliest", 3), ("latest", 9), ("new", 10)])
def test_a_word_means_one_place(word, offset):
    assert offset_of(word, 3, 10) == offset
    assert position(word, None, 0, [3, 10])[0].offset == offset
    assert offset_of(word, 10, 10) == 10  # nothing is there


def test_from_the_latest_to_the_latest_is_one_message():
    found, _ = position("latest", "latest", 0, [3, 10])
    assert (found.offset, found.stop) == (9, 10)


@pytest.mark.parametrize(
    ("start", "stop", "answers", "expected"),
    [
        ("earliest", None, [3, 10], (3, None)),
        ("latest", None, [3, 10], (9, None)),
        ("latest", None, [10, 10], (10, None)),
        ("new", None, [3, 10], (10, None)),
        ("earliest", "latest", [3, 10], (3, 10)),
        (5, "latest", [3, 10], (5, 10)),
        (10, "latest", [3, 10], (10, 10)),
        (5, 7, [3, 10], (5, 7)),
        (50, None, [3, 10], (50, None)),
        (50, 60, [3, 10], (50, 60)),
        (NOON, None, [3, 10, 6], (6, None)),
        (NOON, "latest", [3, 10, 6], (6, 10)),
        (4, NOON, [3, 10, 6], (4, 6)),
        (NOON, NOON, [3, 10, 6, 8], (6, 8)),
        ({1: 8}, None, [3, 10], (8, None)),
        ({0: 8}, None, [3, 10], (3, None)),
    ],
)
def test_position(start, stop, answers, expected):
    assert len(queries(start, stop)) == len(answers)
    found, reachable = position(start, stop, 1, answers)
    assert (found.offset, found.stop) == expected
    assert reachable


def test_queries():
    assert queries("new", None) == [EARLIEST, LATEST]
    assert queries(NOON, NOON + timedelta(hours=1)) == [EARLIEST, LATEST, time_query(NOON), time_query(NOON) + 3600e9]


@pytest.mark.parametrize("stop", ["latest", NOON])
def test_an_offset_beyond_the_end_is_not_silently_nothing(stop):
    found, reachable = position(11, stop, 0, [3, 10, 6])
    assert not reachable
    assert found.is_exact


def test_only_given_offsets_are_exact():
    assert not position("earliest", None, 0, [3, 10])[0].is_exact
    assert not position(NOON, None, 0, [3, 10, 5])[0].is_exact
    assert position(3, None, 0, [3, 10])[0].is_exact
    assert position({0: 3}, None, 0, [3, 10])[0].is_exact


def test_done():
    assert not Position(5, None).is_done
    assert not Position(5, 6).is_done
    assert Position(6, 6).is_done
