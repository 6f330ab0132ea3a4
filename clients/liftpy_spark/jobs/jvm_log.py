"""What the JVM of a session says on its standard error: kept out of ours, which has messages, or one document.

It goes to a file without a name, so nothing stays when a job is killed. When a job fails it is kept, and told where.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import TYPE_CHECKING, Final, Self

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from liftpy_spark.jobs.tasks import JobFailedError, cause_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import SparkConf

__all__ = ["JvmLog"]

_LINE_MAX: Final = 200
_READ_BYTES: Final = 65_536
_THROWN: Final = 'Exception in thread "main" '
_NO_JAVA: Final = re.compile(r"bin/java|JAVA_HOME|UnsupportedClassVersionError")


class JvmLog:
    """Keeps the standard error of the JVM out of ours. An error that leaves this context names the file that has it."""

    def __init__(self) -> None:
        self._file = TemporaryFile()  # noqa: SIM115 (closed by `__exit__`)
        self._start = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, Exception):
                self._keep(error)
        finally:
            self._file.close()

    def start(self, conf: SparkConf) -> None:
        """Start a JVM where there is none yet; one that is there says things elsewhere.

        Args:
            conf: Configuration of the session.

        Raises:
            PySparkException: it does not start.
        """
        if SparkContext._gateway is None:  # noqa: SLF001 (nothing else tells)
            gateway = launch_gateway(conf, {"stderr": self._file})  # type: ignore[no-untyped-call]  # it has no types
            SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001 (as pyspark does)

    def begin(self) -> None:
        """Treat further output as that of the job, not of the start of Spark."""
        self._start = self._size()

    @contextmanager
    def explains_start(self, master: str) -> Iterator[None]:
        """Say why a session does not start.

        Args:
            master: Where tasks are to run.

        Raises:
            JobFailedError: it does not.
        """
        try:
            yield
        except (PySparkException, Py4JError) as error:
            raise JobFailedError(
                f"Spark does not start with master {master:.200}; it needs Java 17 or newer, named by JAVA_HOME or on "
                f"the PATH ({(self._cause() or cause_of(error))[:_LINE_MAX]})"
            ) from None

    def _cause(self) -> str:
        """What ended the JVM, or kept it from starting; "" where it was not said."""
        lines = self._read(0).decode(errors="replace").splitlines()
        said = [line.partition(_THROWN)[2] for line in lines if _THROWN in line]
        said += [line for line in lines if _NO_JAVA.search(line)]
        return said[0].strip() if said else ""

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _read(self, at: int) -> bytes:
        """Some of it. The JVM goes on where the file stands, so that is never moved."""
        return os.pread(self._file.fileno(), _READ_BYTES, at)

    def _keep(self, error: Exception) -> None:
        at = self._start
        if self._size() <= at:
            return
        with NamedTemporaryFile(prefix="liftpy-spark-", suffix=".log", delete=False) as kept:
            while part := self._read(at):
                kept.write(part)
                at += len(part)
        error.add_note(f"what Spark said is in {kept.name}")
