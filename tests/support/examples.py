"""How many examples a property is tried on. The same ones every time, so that a run can be repeated."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def examples(count: int) -> settings:
    """Settings for a property that is tried on `count` examples, which do not differ from run to run."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=slow)
