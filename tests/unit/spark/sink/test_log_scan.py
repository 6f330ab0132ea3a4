"""Chunks of a producer that are found in a log, and when one that is not found may have been there."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from liftpy_envelope.batch import NO_PRODUCER
from liftpy_spark.sink.log_scan import LogScan

MINE, OTHER = b"m" * 16, b"o" * 16


@dataclass
class Header:
    base_offset: int
    next_offset: int
    producer_id: bytes = NO_PRODUCER
    producer_sequence: int = 0
    is_compacted: bool = False


def scan(*headers, start=0, stop=20):
    found = LogScan(start, MINE)
    for header in headers:
        found.see(header)
    return found.result(stop)


def test_batches_of_ordinary_publishers_are_no_reason_for_doubt():
    """They have no ids, also in a stream that is compacted by key, as long as nothing was compacted there."""
    assert scan(Header(0, 5), Header(5, 10, MINE, 3), Header(10, 15, OTHER, 1), Header(15, 20)) == (20, {3}, "")


def test_a_batch_that_began_before_is_no_hole():
    assert scan(Header(0, 10, MINE, 1), Header(10, 25), start=5) == (20, {1}, "")


@pytest.mark.parametrize(
    "headers",
    [
        (Header(0, 10, MINE, 1), Header(10, 20, is_compacted=True)),
        (Header(0, 10, MINE, 1), Header(11, 20)),
        (Header(1, 20, MINE, 1),),
        (Header(0, 19, MINE, 1),),
        (),
    ],
    ids=["marked", "a hole", "a hole at the start", "a hole at the end", "nothing is left"],
)
def test_where_compaction_was_at_work_is_doubt(headers):
    found = scan(*headers)
    assert found.sequences == ({1} if headers else set())
    assert "key compaction" in found.doubt


def test_nothing_is_to_be_read():
    assert scan(start=7, stop=7) == (7, set(), "")
