"""Retention drops exactly the segments that a record-by-record reading of the limits allows, and never the newest."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.segments.retention import is_active_expired, retention_offset
from support.examples import examples

NOW = 1_000


def segment(base, records, size, time):
    return SimpleNamespace(base_offset=base, next_offset=base + records, size=size, max_timestamp=time)


@st.composite
def segment_lists(draw):
    parts = draw(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 100), st.integers(0, 200)), max_size=8))
    base, time, segments = draw(st.integers(0, 50)), 200, []
    for records, size, later in parts:
        time += later
        segments.append(segment(base, records, size, time))
        base += records
    if segments and draw(st.booleans()):
        segments.append(segment(base, 0, 0, 0))
    return segments


def naive_offset(segments, age_ns, bytes_max, messages_max):
    """Drop the oldest segment as long as that leaves enough, or all of it is too old."""
    left = list(segments)
    while len(left) > 1:
        rest = left[1:]
        allowed = (
            (age_ns and NOW - left[0].max_timestamp > age_ns)
            or (bytes_max and sum(other.size for other in rest) >= bytes_max)
            or (messages_max and sum(other.next_offset - other.base_offset for other in rest) >= messages_max)
        )
        if not allowed:
            break
        left = rest
    return None if len(left) == len(segments) else left[0].base_offset


LIMITS = st.one_of(st.just(0), st.integers(1, 1_000))


@given(segment_lists(), LIMITS, LIMITS, st.one_of(st.just(0), st.integers(1, 120)))
@examples(400)
def test_it_equals_the_naive_reading_of_the_limits(segments, age_ns, bytes_max, messages_max):
    before_ns = NOW - age_ns if age_ns else 0
    found = retention_offset(segments, before_ns=before_ns, bytes_max=bytes_max, messages_max=messages_max)
    assert found == naive_offset(segments, age_ns, bytes_max, messages_max)


THREE = [segment(0, 10, 100, 700), segment(10, 10, 100, 800), segment(20, 10, 100, 900)]


@pytest.mark.parametrize(
    ("before_ns", "expected"), [(0, None), (700, None), (701, 10), (800, 10), (801, 20), (999, 20)]
)
def test_a_segment_goes_when_its_newest_record_is_too_old(before_ns, expected):
    assert retention_offset(THREE, before_ns=before_ns, bytes_max=0, messages_max=0) == expected


@pytest.mark.parametrize(("limit", "expected"), [(0, None), (1, 20), (100, 20), (101, 10), (200, 10), (201, None)])
def test_a_log_keeps_as_many_bytes_as_it_may(limit, expected):
    assert retention_offset(THREE, before_ns=0, bytes_max=limit, messages_max=0) == expected


@pytest.mark.parametrize(("limit", "expected"), [(0, None), (1, 20), (10, 20), (11, 10), (20, 10), (21, None)])
def test_a_log_keeps_as_many_messages_as_it_may(limit, expected):
    assert retention_offset(THREE, before_ns=0, bytes_max=0, messages_max=limit) == expected


def test_no_segments_and_one_segment():
    for segments in ([], THREE[:1]):
        assert retention_offset(segments, before_ns=NOW, bytes_max=1, messages_max=1) is None


@pytest.mark.parametrize(
    ("size", "first", "newest", "before_ns", "expected"),
    [
        (0, None, 0, 999, False),  # nothing in it
        (9, 901, 901, 0, False),  # open for 99
        (9, 900, 990, 0, True),  # open for 100
        (9, 950, 950, 950, False),
        (9, 949, 949, 950, True),
        (9, 949, 950, 950, False),
    ],
)
def test_the_newest_segment_is_closed_when_it_is_old(size, first, newest, before_ns, expected):
    active = SimpleNamespace(size=size, first_timestamp=first, max_timestamp=newest)
    assert is_active_expired(active, NOW, before_ns, segment_age_ns=100) is expected
