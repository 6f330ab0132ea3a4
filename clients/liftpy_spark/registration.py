"""Tell a Spark session of the format `liftpy`, where it does not find it by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_spark.versions import check_versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Tell a session of the format `liftpy`.

    Needed only where Spark does not find `pyspark_liftpy` by itself: in a session that began before liftpy was
    installed.

    Raises:
        VersionError: Spark or pandas is installed in a version that does not work.
    """
    check_versions()
    from liftpy_spark.source.format import LiftpyDataSource  # noqa: PLC0415 (older versions of Spark have nothing to derive it from)

    spark.dataSource.register(LiftpyDataSource)
