"""Properties are tried on the same examples every time, and no busy machine fails them."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from support.examples import examples


def test_properties_that_name_no_examples_are_tried_like_the_others():
    named, unnamed = examples(100), settings()
    for given in (named, unnamed):
        assert given.derandomize
        assert given.deadline is None
        assert HealthCheck.too_slow in given.suppress_health_check
    assert named.max_examples == unnamed.max_examples
