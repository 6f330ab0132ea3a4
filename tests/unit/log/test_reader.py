"""Reads and look-ups by time equal those in a list of batches, whatever the sizes, segments, indexes and hints."""

from itertools import accumulate, chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.columns import Column
from liftpy_log.errors import OffsetOutOfRangeError, SegmentCorruptError
from liftpy_log.partition_log import LogConfig, PartitionLog
from liftpy_log.segments import segment as segment_module
from liftpy_log.segments.segment import segment_path
from support.examples import examples
from support.log_batches import with_times, zeros_body
from support.log_model import DIRECTORY, T0, OpenLog, bytes_of, check_read
from support.simdisk import SimDisk

SHAPES = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 400), st.integers(-3, 3)), min_size=1, max_size=40)
SEGMENT_BYTES = st.sampled_from((400, 1_000, 3_000, 10**6))
INTERVALS = st.sampled_from((1, 300, 1_500, 10**6))


def log_of(shapes, segment_bytes=10**6):
    log, now = OpenLog(SimDisk(), LogConfig(segment_bytes=segment_bytes)), T0
    for records, size, later in shapes:
        now += later
        log.append(records, size, now=now)
    return log


@given(SHAPES, SEGMENT_BYTES, INTERVALS, st.booleans(), st.data())
@examples(80)
def test_reads_equal_those_of_a_list(shapes, segment_bytes, interval, reopened, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_module, "INDEX_INTERVAL_BYTES", interval)
        log = log_of(shapes, segment_bytes)
        if reopened:
            log.reopen()
        hint = None
        for _ in range(20):
            end = data.draw(st.sampled_from(log.model.edges))
            offset = data.draw(st.integers(0, end))
            bytes_max = data.draw(st.sampled_from((1, 100, 500, 900, 2_500, 10**9)))
            follow = hint is not None and data.draw(st.booleans()) and hint.next_offset <= end
            slices = check_read(
                log.disk, log.log, log.model, hint.next_offset if follow else offset, end, bytes_max, hint
            )
            hint = slices[-1] if slices else hint


@given(SHAPES, SEGMENT_BYTES, INTERVALS, st.integers(0, 60), st.integers(-12, 40))
@examples(80)
def test_look_ups_by_time_equal_those_of_a_list(shapes, segment_bytes, interval, log_start, moment):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_module, "INDEX_INTERVAL_BYTES", interval)
        log = log_of(shapes, segment_bytes)
        log.model.log_start = min(log_start, log.model.batches[-1].base_offset)
        log.reopen(log_start=log.model.log_start)
        assert log.log.offset_at_time(T0 + moment) == log.model.offset_at_time(T0 + moment)
        for batch in log.model.batches:
            assert log.log.offset_at_time(batch.timestamp) == log.model.offset_at_time(batch.timestamp)


@given(SHAPES, SEGMENT_BYTES, st.sampled_from((1, 700, 3_000)), st.booleans())
@examples(50)
def test_a_consumer_that_follows_gets_everything_once(shapes, segment_bytes, bytes_max, hinted):
    log, offset, hint, got = OpenLog(SimDisk(), LogConfig(segment_bytes=segment_bytes)), 0, None, []
    for records, size, _ in shapes:
        log.append(records, size)
        if len(log.model.batches) % 3:
            continue
        while offset < log.log.log_end:
            slices = check_read(log.disk, log.log, log.model, offset, log.log.log_end, bytes_max, hint)
            got.append(bytes_of(log.disk, slices))
            offset, hint = slices[-1].next_offset, slices[-1] if hinted else None
    assert b"".join(got) == b"".join(batch.data for batch in log.model.between(0, offset))


def test_a_hint_saves_the_look_up(monkeypatch):
    log = log_of([(1, 10, 0)] * 5)
    (piece,) = log.log.read(0, 3, 10**9)
    monkeypatch.setattr(segment_module.Segment, "locate", None)
    assert log.log.read(3, 5, 10**9, piece)[0].position == piece.length


def test_a_hint_that_does_not_fit_is_left_alone():
    log = log_of([(1, 10, 0)] * 12, 1_000)
    hints = [log.log.read(offset, 12, 1)[0] for offset in range(12)]
    for hint in hints:
        for offset in range(12):
            check_read(log.disk, log.log, log.model, offset, 12, 1, hint)


def test_an_end_older_than_the_newest_thousand_batches():
    log = log_of([(2, 0, 0)] * 1_500)
    for end in (2, 900, 950, 952, 954, 960, 2_998, 3_000):
        assert log.log.read(0, end, 10**9)[-1].next_offset == end
        check_read(log.disk, log.log, log.model, max(0, end - 4), end, 10**9)


@pytest.mark.parametrize(("offset", "end"), [(4, 5), (-1, 5), (13, 12), (13, 13)])
def test_offsets_outside_are_refused(offset, end):
    log = log_of([(1, 10, 0)] * 13)
    log.log.purge(5)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        log.log.read(offset, end if end < 13 else 12, 1)
    assert (caught.value.offset, caught.value.log_start) == (offset, 5)


def test_at_the_end_there_is_nothing():
    log = log_of([(3, 10, 0)] * 3, 400)
    for end in log.model.edges:
        assert log.log.read(end, end, 10**9) == []


def test_the_first_batch_may_begin_before_the_offset():
    log = log_of([(5, 10, 0)] * 2)
    for offset in range(5):
        assert log.log.read(offset, 10, 1) == [(log.log.active, 0, len(log.model.batches[0].data), 5)]


@pytest.mark.parametrize(("offset", "end"), [(5, 7), (6, 7), (0, 7), (0, 3), (1, 2)])
def test_an_end_inside_a_batch_gives_nothing_past_it_and_comes_to_an_end(offset, end):
    log, reader_calls = log_of([(5, 10, 0)] * 3), []
    cut = log.log._reader._cut

    def counted(*given_):
        reader_calls.append(given_)
        assert len(reader_calls) < 20, "it reads the same place again and again"
        return cut(*given_)

    log.log._reader._cut = counted
    slices = log.log.read(offset, end, 10**9)
    assert [piece.next_offset for piece in slices] == ([5] if offset < 5 <= end else [])


def timed_log(lists):
    """A log that holds batches whose records have times of their own."""
    disk, base, content = SimDisk(), 0, b""
    for times in lists:
        content += with_times(base, times)
        base += len(times)
    disk.overwrite(segment_path(DIRECTORY, 0), content)
    log = OpenLog.__new__(OpenLog)
    log.disk, log.config = disk, LogConfig()
    return log


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=8), INTERVALS)
@examples(60)
def test_records_with_times_of_their_own_are_found_one_by_one(steps, interval):
    flat = list(accumulate(chain(*steps), initial=T0))[1:]
    rest = iter(flat)
    lists = [[next(rest) for _ in batch] for batch in steps]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_module, "INDEX_INTERVAL_BYTES", interval)
        log: PartitionLog = timed_log(lists).reopen()
        for asked in range(T0 - 1, flat[-1] + 2):
            expected = next((offset for offset, time in enumerate(flat) if time >= asked), None)
            assert log.offset_at_time(asked) == expected


def test_a_damaged_body_met_by_a_look_up_by_time_is_named():
    log = timed_log([[T0, T0 + 10], [T0 + 20, T0 + 30]])
    opened = log.reopen()
    position = len(with_times(0, [T0, T0 + 10]))
    content = bytearray(log.disk.content(opened.active.path))
    content[-1] ^= 1
    log.disk.overwrite(opened.active.path, content)
    with pytest.raises(SegmentCorruptError) as caught:
        opened.offset_at_time(T0 + 25)
    assert (caught.value.path, caught.value.position) == (opened.active.path, position)


def test_a_batch_that_is_not_what_its_header_says_is_named_with_file_and_byte():
    log = log_of([(3, 10, 0)])
    at = log.log.active.size
    log.log.append(zeros_body(Column.TIMESTAMP | Column.SUBJECT), leader_epoch=0, timestamp=T0 + 10)
    with pytest.raises(SegmentCorruptError, match=f"{log.path} is damaged at byte {at}: "):
        log.log.offset_at_time(T0 + 5)
