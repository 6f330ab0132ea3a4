"""Spark's own way to a bucket, S3A of Hadoop, as a peer on the very same objects.

Its JARs are not on PyPI, so they are optional: in a directory (`--s3a-jars DIRECTORY`), or fetched by Spark from Maven
Central (`--s3a-jars maven`); `LIFTPY_S3A_JARS` says the same to benchmarks and tests. A directory needs hadoop-aws of
the version of Hadoop that Spark has, and what it depends on: `bundle` of the AWS SDK, and `analyticsaccelerator-s3`.

Credentials are no settings: S3A takes `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` from the environment of the JVM.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

__all__ = [
    "FETCH",
    "PARQUET_BY_S3A",
    "TABLE",
    "VARIABLE",
    "hadoop_version",
    "jar_settings",
    "s3a_settings",
    "s3a_trouble",
]

VARIABLE = "LIFTPY_S3A_JARS"
FETCH = "maven"
PARQUET_BY_S3A = "spark.read.parquet by S3A"
TABLE = "liftpy_spark.table"
_BESIDE = ("bundle", "analyticsaccelerator-s3")


def hadoop_version():
    """Of the Hadoop that this Spark has; hadoop-aws works with no other."""
    home = os.environ.get("SPARK_HOME") or Path(importlib.util.find_spec("pyspark").origin).parent
    (found,) = Path(home).glob("jars/hadoop-client-api-*.jar")
    return found.stem.removeprefix("hadoop-client-api-")


def s3a_trouble(jars):
    """Why there is no S3A, in words; None where there is. `jars` is a directory, `FETCH`, or None."""
    if not jars:
        return f"neither --s3a-jars nor {VARIABLE} says where its JARs are"
    if jars == FETCH:
        return None
    wanted = [f"hadoop-aws-{hadoop_version()}.jar", *(f"{name}-*.jar" for name in _BESIDE)]
    missing = [pattern for pattern in wanted if not any(Path(jars).glob(pattern))]
    return f"{jars} has no {' and no '.join(missing)}" if missing else None


def jar_settings(jars):
    """Settings of a session on one machine that give its JVM the JARs."""
    if jars == FETCH:
        return {"spark.jars.packages": f"org.apache.hadoop:hadoop-aws:{hadoop_version()}"}
    return {"spark.driver.extraClassPath": f"{jars}/*"}  # `spark.jars` would copy 690 MB for every session


def s3a_settings(endpoint):
    """Settings of a session that let S3A find a store which is not AWS, by plain HTTP where the endpoint says so."""
    return {"spark.hadoop.fs.s3a.endpoint": endpoint, "spark.hadoop.fs.s3a.path.style.access": "true"}
