"""Durations by bucket, as Prometheus reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.histogram import BOUNDS_S, Histogram


@given(st.lists(st.floats(0, 100) | st.sampled_from(BOUNDS_S)))
def test_each_bucket_has_what_is_not_above_its_bound(durations_s):
    histogram = Histogram()
    for duration_s in durations_s:
        histogram.observe(duration_s)
    assert histogram.sum_s == pytest.approx(sum(durations_s))
    *buckets, last = histogram.buckets()
    assert last == ("+Inf", len(durations_s))
    assert buckets == [(repr(bound), sum(each <= bound for each in durations_s)) for bound in BOUNDS_S]
