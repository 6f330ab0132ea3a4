"""Clusters of Spark on this machine, each with a driver in a process of its own, and what is run there.

with local_cluster(directory) as cluster:
    table = cluster.run(spark_work.read, options)      # a function of a module, by name; it gets the session first
    future = cluster.submit(spark_work.read, options)  # to do something meanwhile

Executors are JVMs of their own. Whatever is started here carries a mark in its environment, by which it is found and
ended, also when what started it has been killed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil
import pyspark

from support.spark_system import eventually, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from pyspark.sql import SparkSession

__all__ = ["EXECUTORS", "SparkCluster", "drive", "local_cluster", "standalone_cluster"]

EXECUTORS = 2
WORK_S = 540.0
START_S = 180.0
QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_MARK = "LIFTPY_TEST_CLUSTER"
_AT = re.compile(r"Starting Spark master at (spark://\S+)")


class SparkCluster:
    """A cluster, and a driver that does one thing at a time.

    Args:
        master: as Spark names it.
        home: what SPARK_HOME is.
        link: to the driver.
    """

    def __init__(self, master: str, home: Path, link: Connection) -> None:
        self.master = master
        self.home = home
        self._link = link
        self._asking = ThreadPoolExecutor(1)

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin something."""
        return self._asking.submit(self._ask, work, arguments)

    def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do something, and wait for what comes of it."""
        return self.submit(work, *arguments).result()

    def _ask(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        self._link.send((work, arguments))
        assert self._link.poll(WORK_S), f"the driver is not through within {WORK_S:g} s"
        is_well, answer = self._link.recv()
        assert is_well, answer
        return answer


@contextmanager
def local_cluster(directory: Path) -> Iterator[SparkCluster]:
    """Master and workers in the JVM of the driver, executors in JVMs of their own."""
    home = _spark_home(directory)
    with _marked() as environment, _driver(f"local-cluster[{EXECUTORS},1,1024]", home, directory, environment) as made:
        yield made


@contextmanager
def standalone_cluster(directory: Path) -> Iterator[SparkCluster]:
    """A master and two workers, as a cluster without any other manager has them."""
    home = _spark_home(directory)
    with _marked() as environment:
        master = _spark_process("master.Master", (), home, directory / "master.log", environment)
        url = eventually(lambda: _master_url(master, directory / "master.log"), "the master is up", START_S)
        for number in range(EXECUTORS):
            options = ("--cores", "2", "--memory", "2g", "--work-dir", str(directory / f"work-{number}"))
            _spark_process("worker.Worker", (*options, url), home, directory / f"worker-{number}.log", environment)
        with _driver(url, home, directory, environment) as made:
            yield made


def _spark_home(directory: Path) -> Path:
    """What pip has installed, in a place where Spark may write."""
    home = directory / "spark"
    home.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        if each.is_dir() and each.name != "work":
            (home / each.name).symlink_to(each)
    return home


@contextmanager
def _marked() -> Iterator[dict[str, str]]:
    """An environment; in the end all processes that have it are ended."""
    mark = uuid4().hex
    try:
        yield {_MARK: mark, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    finally:
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none sees another one die, and starts a new one
            for each in _with_mark(mark):
                with suppress(psutil.NoSuchProcess):
                    each.send_signal(number)
        eventually(lambda: not _with_mark(mark), "nothing is left of the cluster")


def _with_mark(mark: str) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.environ().get(_MARK) == mark and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found


def _spark_process(
    name: str, arguments: tuple[str, ...], home: Path, log_path: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *ports, *arguments]
    there = os.environ | environment | {"SPARK_HOME": str(home), "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA}
    with log_path.open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=there)


def _master_url(master: subprocess.Popen[bytes], log_path: Path) -> str | None:
    assert master.poll() is None, log_path.read_text()
    found = _AT.search(log_path.read_text())
    return None if found is None else found[1]


@contextmanager
def _driver(master: str, home: Path, directory: Path, environment: dict[str, str]) -> Iterator[SparkCluster]:
    ours, theirs = Pipe()
    command = [sys.executable, "-c", "from support.spark_cluster import drive; drive()"]
    words = [str(theirs.fileno()), master, str(directory / "driver")]
    paths = os.pathsep.join(filter(None, sys.path))
    there = os.environ | environment | {"SPARK_HOME": str(home), "PYTHONPATH": paths}
    with ours, (directory / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, *words], env=there, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[theirs.fileno()]
        )
        theirs.close()
        try:
            cluster = SparkCluster(master, home, ours)
            cluster.run(_wait_for_executors)
            yield cluster
            ours.send(None)
            process.wait(START_S)
        finally:
            process.kill()
            process.wait()


def drive() -> None:
    """What a driver is: it does what it is told until it is told to end, or there is nobody any more."""
    descriptor, master, directory = sys.argv[1:]
    settings = {
        "spark.master": master,
        "spark.cores.max": str(EXECUTORS),  # so that there is room for a script that is submitted
        "spark.executor.cores": "1",
        "spark.executor.memory": "1g",
        "spark.executor.extraJavaOptions": QUICK_JAVA,
    }
    with Connection(int(descriptor)) as link, spark_session(Path(directory), **settings) as session:
        while (told := _next(link)) is not None:
            work, arguments = told
            try:
                answer = (True, work(session, *arguments))
            except Exception:
                answer = (False, traceback.format_exc())
            link.send(answer)


def _next(link: Connection) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    try:
        return link.recv()
    except EOFError:
        return None


def _wait_for_executors(session: SparkSession) -> None:
    context = session.sparkContext._jsc.sc()
    eventually(lambda: context.getExecutorMemoryStatus().size() > EXECUTORS, "the executors are there", START_S)
