"""How many examples a property is tried on. The same ones every time, so that a run can be repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterable

SHARES = {"few": 0.1, "some": 0.2, "all": 1.0}
"""Of the examples that a test names, how many run: with `pytest --examples=few`, `some`, or `all`."""
AT_LEAST = 5
UNNAMED = 100
_ALWAYS: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
}
"""Also of properties that name no examples: a machine that is busy fails none."""
_share = [1.0]


def choose(amount: str) -> None:
    """Try properties on `few`, `some` or `all` of the examples that they name. Call it before any test is imported."""
    _share[0] = SHARES[amount]
    settings.register_profile(amount, max_examples=_shared(UNNAMED), **_ALWAYS)
    settings.load_profile(amount)


def _shared(count: int) -> int:
    return max(AT_LEAST, round(count * _share[0]))


def examples(count: int, **given: Any) -> settings:
    """Settings for a property that is tried on up to `count` examples, which do not differ from run to run."""
    return settings(max_examples=_shared(count), **_ALWAYS, **given)


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """Values of a parameter: `make test` tries the first `count`, `make test-rest` the others."""
    listed = list(values)
    return listed[:count] + [pytest.param(value, marks=pytest.mark.thorough) for value in listed[count:]]
