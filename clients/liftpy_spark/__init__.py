"""Streams in Spark: `spark.read.format("liftpy")` and its kin. Needs pyspark; `pip install 'liftpy[spark]'` brings it.

Spark finds the format by itself where liftpy is installed; `register` says so to a session that does not.
"""

from liftpy_spark.functions import partition_of
from liftpy_spark.registration import register
from liftpy_spark.table.frame import table

__all__ = ["partition_of", "register", "table"]
