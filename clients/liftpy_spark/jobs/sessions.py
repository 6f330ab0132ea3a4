"""Sessions for jobs that are started from the command line, and what `spark-submit` needs."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark import SparkConf
from pyspark.sql import SparkSession

from liftpy_spark.jobs.jvm_log import JvmLog
from liftpy_spark.versions import check_versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Submission", "session", "submission"]

_LOCAL_IP: Final = "SPARK_LOCAL_IP"
_LOOPBACK: Final = "127.0.0.1"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # spark-submit sets it, and has its own settings
_ENVIRONMENT: Final = "environment"


def _is_local(master: str) -> bool:
    return master.split("[", maxsplit=1)[0] in {"local", "local-cluster"}


@contextmanager
def session(master: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session, ended afterwards; one that there is already is used, and stays.

    Args:
        master: Where tasks run: `local[*]`, `spark://host:port`, `k8s://...`, `yarn`.
        settings: Settings of Spark, by their names.

    Raises:
        VersionError: Spark or pandas is installed in a version that does not work.
        JobFailedError: Spark does not start.
    """
    check_versions()
    there = SparkSession.getActiveSession()
    if there is not None:
        yield there
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark takes whatever python3 is on the PATH otherwise
    usual = {
        "spark.app.name": "liftpy",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }
    if _is_local(master):
        os.environ.setdefault(_LOCAL_IP, _LOOPBACK)
        usual |= {"spark.ui.enabled": "false"}
    if _SUBMITTED not in os.environ:
        usual |= {"spark.master": master}
    conf = SparkConf().setAll([*{**usual, **settings}.items()])
    with JvmLog() as log:
        with log.explains_start(master):
            log.start(conf)
            made = SparkSession.builder.config(conf=conf).getOrCreate()
        try:
            made.sparkContext.setLogLevel("ERROR")
            log.begin()
            yield made
        finally:
            made.stop()


class Submission(NamedTuple):
    """A call of `spark-submit`.

    Attributes:
        command: Words of the command.
        environment: Variables that it needs, besides those that there are.
        link: Where the environment of executors is on the driver, too, as long as this runs; None: nowhere.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    link: str | None


def submission(
    script: str,
    arguments: Sequence[str],
    *,
    master: str,
    archive: str | None = None,
    py_files: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> Submission:
    """How to run a script with Spark so that its executors have what they need.

    Args:
        script: Path of the script.
        arguments: Arguments of the script.
        master: Where tasks run.
        archive: A packed environment that executors unpack and use the Python of; None where they have one.
        py_files: Modules that executors get.
        settings: Settings of Spark, by their names.
    """
    spark = find_spec("pyspark")
    assert spark is not None, "pyspark is imported above"
    assert spark.origin is not None, "it is a package"
    home = Path(os.environ.get("SPARK_HOME") or Path(spark.origin).parent)
    python = f"./{_ENVIRONMENT}/bin/python" if archive else os.environ.get("PYSPARK_PYTHON", sys.executable)
    environment = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if _is_local(master):
        environment |= {_LOCAL_IP: os.environ.get(_LOCAL_IP, _LOOPBACK)}
    options = ["--master", master]
    if archive:
        options += ["--archives", f"{archive}#{_ENVIRONMENT}"]
    if py_files:
        options += ["--py-files", ",".join(py_files)]
    for name, value in (settings or {}).items():
        options += ["--conf", f"{name}={value}"]
    command = (str(home / "bin" / "spark-submit"), *options, script, *arguments)
    return Submission(command, environment, _ENVIRONMENT if archive else None)
