"""How often properties of the log are tried: the same examples every time, and no files left behind."""

from hypothesis import HealthCheck, settings


def examples(count: int, **given) -> settings:
    """Settings for a property that is tried on `count` examples, which do not differ from run to run."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    return settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=slow, **given
    )
