from __future__ import annotations

import logging

import pytest

from liftpy_server.listeners.refusals import ListenerRefusals
from liftpy_server.repeated_warnings import RepeatedWarnings
from liftpy_server.settings.limits import LOG_REPEAT_S

logger = logging.getLogger("tested")


@pytest.fixture
def warnings():
    return RepeatedWarnings(logger)


def lines(caplog):
    return [record.getMessage() for record in caplog.records]


def test_the_first_is_logged_at_once_and_the_next_says_how_many_were_left_out(caplog, warnings):
    for tenth in range(101):
        warnings.tell("", "wrong token", tenth / 10)
    assert LOG_REPEAT_S == 10
    assert lines(caplog) == ["wrong token", "wrong token (99 more like it in the last 10 s)"]


def test_half_an_hour_of_it_is_ten_lines(caplog, warnings):
    for second in range(30 * 60):
        warnings.tell("", "wrong token", float(second))
    assert len(lines(caplog)) <= 10


def test_what_did_not_happen_for_a_minute_is_news(caplog, warnings):
    for now_s in (0.0, 1.0, 61.0, 62.0):
        warnings.tell("", "wrong token", now_s)
    assert lines(caplog) == ["wrong token", "wrong token"]


def test_kinds_are_told_apart_and_too_many_of_them_are_one(caplog, warnings):
    for second in range(3):
        for number in range(1_000):
            warnings.tell(f"kind {number}", f"text {number}", float(second))
    assert lines(caplog) == [f"text {number}" for number in range(65)]
    warnings.tell("kind 500", "later", 100.0)
    assert lines(caplog)[-1] == "later"


def test_listeners_count_what_they_refuse_and_log_little_of_it(caplog):
    now_s = 0.0
    refusals = ListenerRefusals(lambda: now_s)
    for number in range(500):
        now_s = number / 100
        refusals.auth_failed("pull", f"10.0.0.{number % 250}:4000", "wrong token")
        refusals.was_busy("admin", "LIFT.API.CLUSTER.INFO", "too many at once")
        refusals.was_malformed("raft", "10.0.0.9:4000", "x" * 10_000)
    assert (refusals.auth_failures["pull"], refusals.busy["admin"], refusals.malformed["raft"]) == (500, 500, 500)
    assert refusals.auth_failures["admin"] == 0
    assert lines(caplog)[:2] == [
        "pull: refused 10.0.0.0:4000: wrong token",
        "admin: refused LIFT.API.CLUSTER.INFO: too many at once",
    ]
    assert len(lines(caplog)) == 3
    assert len(lines(caplog)[2]) < 600
