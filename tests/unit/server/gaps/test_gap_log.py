"""What the log says of gaps: a line for each cause, however many partitions have one."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from liftpy_server.gaps.gap_log import GapLog
from liftpy_server.gaps.partition_gaps import LED_ELSEWHERE

LOST = "the NATS connection was lost"


def partition(name, number=0):
    return SimpleNamespace(name=name, number=number)


@pytest.fixture
def gathered(caplog):
    caplog.set_level(logging.WARNING)
    scheduled = []
    log = GapLog(lambda _delay_s, call: scheduled.append(call))

    def lines():
        assert len(scheduled) == 1
        scheduled.pop()()
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    return log, lines


def test_a_single_one_is_named(gathered):
    log, lines = gathered
    log.begun(partition("s", 2), LOST)
    log.ended(partition("s", 2), LOST, 0.25)
    assert lines() == [
        f"stream s partition 2: messages may be missing from now on: {LOST}",
        f"stream s partition 2: gap of 0.250 s closed ({LOST})",
    ]
    log.begun(partition("s", 2), LOST)
    assert len(lines()) == 1


def test_many_are_counted(gathered):
    log, lines = gathered
    many = [partition(f"s{number // 10}", number % 10) for number in range(1_000)]
    for each in many:
        log.begun(each, LOST)
    log.begun(partition("t"), "another cause")
    assert lines() == [
        f"streams s0, s1, s2 and 97 more, 1000 partitions: messages may be missing from now on: {LOST}",
        "stream t partition 0: messages may be missing from now on: another cause",
    ]
    for number, each in enumerate(many[:10]):
        log.ended(each, LOST, number / 10)
    assert lines() == [f"stream s0, 10 partitions: gaps of up to 0.900 s closed ({LOST})"]


def test_a_failover_is_told_elsewhere(gathered):
    log, lines = gathered
    log.begun(partition("s"), LED_ELSEWHERE)
    assert lines() == []
