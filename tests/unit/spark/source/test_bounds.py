"""Where a batch begins and ends."""

from __future__ import annotations

import logging

import pytest

from liftpy_spark.errors import DataLossError, NoSuchStreamError
from liftpy_spark.heads import PartitionHead, StreamHeads
from liftpy_spark.options.offsets import EARLIEST, LATEST
from liftpy_spark.options.source import Bound
from liftpy_spark.options.values import OptionError
from liftpy_spark.reading.planning import Range
from liftpy_spark.source.bounds import assigned, batch_ranges, ends, starts

HEADS = [
    StreamHeads("a", "ua", {0: PartitionHead(10, 20), 1: PartitionHead(0, 5)}),
    StreamHeads("b", "ub", {0: PartitionHead(3, 3)}),
]


def at_time(head, times_ms):
    """A record every millisecond, at the time that is its offset."""
    found = {number: max(time_ms, head.partitions[number].start) for number, time_ms in times_ms.items()}
    return {number: offset if offset < head.partitions[number].end else None for number, offset in found.items()}


def starts_of(bound, late_is_latest=False):
    return starts(bound, HEADS, at_time, late_is_latest=late_is_latest)


def ends_of(bound):
    return ends(bound, HEADS, at_time)


def test_everything():
    assert starts_of(Bound(everywhere="earliest")) == {"a": {0: 10, 1: 0}, "b": {0: 3}}
    assert ends_of(Bound(everywhere="latest")) == {"a": {0: 20, 1: 5}, "b": {0: 3}}


def test_offsets_of_some_partitions():
    assert starts_of(Bound(offsets={"a": {0: 12, 1: LATEST}})) == {"a": {0: 12, 1: 5}, "b": {0: 3}}
    assert starts_of(Bound(offsets={"a": {0: EARLIEST}})) == {"a": {0: 10, 1: 0}, "b": {0: 3}}
    assert ends_of(Bound(offsets={"a": {0: 12, 1: LATEST}})) == {"a": {0: 12, 1: 5}, "b": {0: 3}}


def test_times():
    assert starts_of(Bound(times_ms={"a": {0: 15}})) == {"a": {0: 15, 1: 0}, "b": {0: 3}}
    assert ends_of(Bound(everywhere=4)) == {"a": {0: 10, 1: 4}, "b": {0: 3}}


def test_a_time_after_the_last_record():
    with pytest.raises(OptionError, match=r"startingTimestamp.*stream a partition 1 has no record that is as young"):
        starts_of(Bound(everywhere=6))
    with pytest.raises(OptionError, match=r"startingOffsetsByTimestamp.*stream a partition 0"):
        starts_of(Bound(times_ms={"a": {0: 20}}))
    assert starts_of(Bound(everywhere=6), late_is_latest=True) == {"a": {0: 10, 1: 5}, "b": {0: 3}}
    assert ends_of(Bound(everywhere=6)) == {"a": {0: 10, 1: 5}, "b": {0: 3}}


def test_what_is_not_read_can_not_be_named():
    with pytest.raises(OptionError, match=r"startingOffsets.*'c' is not one of those that are read: a, b"):
        starts_of(Bound(offsets={"c": {0: 1}}))
    with pytest.raises(OptionError, match=r"endingOffsetsByTimestamp.*partition 7 of stream a is not one"):
        ends_of(Bound(times_ms={"a": {7: 1}}))
    with pytest.raises(NoSuchStreamError, match=r"stream a has partitions 0 to 1, not 2"):
        assigned(HEADS[:1], {"a": (0, 2)})
    assert assigned(HEADS[:1], {"a": (1,)}) == [StreamHeads("a", "ua", {1: PartitionHead(0, 5)})]
    assert assigned(HEADS, None) == HEADS


def ranges_of(begin, end, fail_on_data_loss=True):
    return batch_ranges({"a": begin}, {"a": end}, HEADS[:1], fail_on_data_loss=fail_on_data_loss)


def test_ranges():
    assert ranges_of({0: 12, 1: 0}, {0: 20, 1: 0}) == [Range("a", "ua", 0, 12, 20), Range("a", "ua", 1, 0, 0)]


def test_offsets_beyond_the_end():
    with pytest.raises(OptionError, match=r"startingOffsets.*partition 0 ends at 20, before offset 21"):
        ranges_of({0: 21, 1: 0}, {0: 20, 1: 5})
    with pytest.raises(OptionError, match=r"endingOffsets.*partition 1 ends at 5, before offset 6"):
        ranges_of({0: 10, 1: 0}, {0: 20, 1: 6})


def test_what_is_gone(caplog):
    with pytest.raises(DataLossError, match=r"the records from 7 to 10 are gone .*set failOnDataLoss to false"):
        ranges_of({0: 7, 1: 0}, {0: 20, 1: 5})
    with caplog.at_level(logging.WARNING):
        assert ranges_of({0: 7, 1: 0}, {0: 20, 1: 5}, fail_on_data_loss=False)[0] == Range("a", "ua", 0, 10, 20)
        assert ranges_of({0: 7, 1: 0}, {0: 9, 1: 5}, fail_on_data_loss=False)[0] == Range("a", "ua", 0, 10, 10)
    assert "the records from 7 to 9 are gone" in caplog.text
