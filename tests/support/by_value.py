"""Functions of tests in Python workers of Spark, which do not find the modules of tests."""

from __future__ import annotations

import sys
from typing import Any

from pyspark import cloudpickle

__all__ = ["by_value"]


def by_value(function: Any) -> Any:
    """The same function, which takes its module along."""
    cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
    return function
