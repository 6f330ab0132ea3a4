"""A Spark session for measuring, and what its processes cost."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
from pyspark import SparkContext
from pyspark.sql import SparkSession

from bench.rig import ROOT

__all__ = ["cpu_by_process", "session", "spent"]

_CORES = 2
_STOP_S = 30.0


@contextmanager
def session(directory, **settings):
    """A session with two cores; its JVM is gone afterwards."""
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),  # workers import the sources of `bench`
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    usual = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(Path(directory) / "local"),
        "spark.log.level": "ERROR",
        "spark.master": f"local[{_CORES}]",
        "spark.python.authenticate.socketTimeout": "120s",  # a busy machine takes its time to start a worker
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(Path(directory) / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.appName("bench")
    for name, value in (usual | settings).items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    try:
        yield made
    finally:
        made.stop()
        gateway = SparkContext._gateway  # noqa: SLF001 - nothing else ends the JVM
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends with it
        gateway.proc.wait(_STOP_S)


def cpu_by_process(store_pid=None):
    """CPU seconds so far of this process and those below it, by what tells them apart; and what each of them is.

    And of the store, which is none of them, but has the same cores.
    """
    found = {}
    here = psutil.Process()
    kinds = dict.fromkeys((here, *here.children(recursive=True)))
    if store_pid is not None:
        kinds[psutil.Process(store_pid)] = "store"
    for process, kind in kinds.items():
        try:
            times = process.cpu_times()
            known = kind or ("JVM" if "java" in process.name() else "Python")
            found[process.pid, process.create_time()] = (known, times.user + times.system)
        except psutil.NoSuchProcess:
            continue
    return found


def spent(before, store_pid=None):
    """CPU seconds since `before` was found, by what the processes are; without those of processes that have ended."""
    totals = {"Python": 0.0, "JVM": 0.0}
    for key, (kind, seconds) in cpu_by_process(store_pid).items():
        totals[kind] = totals.get(kind, 0.0) + seconds - before.get(key, (kind, 0.0))[1]
    return totals
