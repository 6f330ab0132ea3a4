"""Spark looks for top-level modules named `pyspark_*` and registers their `DefaultSource`: this one is ours."""

from liftpy_spark.source.format import LiftpyDataSource as DefaultSource

__all__ = ["DefaultSource"]
