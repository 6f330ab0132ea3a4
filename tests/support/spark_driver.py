"""A driver of Spark in a process of its own, which can be killed with its JVM and their workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["drive", "kill_all", "said"]

_TESTS = Path(__file__).parents[1]
_DRIVER = """
import json, sys, traceback
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support.spark_system import spark_session
globals().update(json.loads(sys.argv[2]))
with spark_session(Path(checkpoint).parent / "session") as spark:
    from liftpy_spark.source.format import LiftpyDataSource
    spark.dataSource.register(LiftpyDataSource)
    try:
        WORK
    except Exception:
        traceback.print_exc()  # while there is a JVM, which has its words
        sys.exit(1)
"""


def drive(work: str, arguments: Mapping[str, Any], log: Path) -> subprocess.Popen[bytes]:
    """Start a driver.

    Args:
        work: what it does, with a session `spark`.
        arguments: the names that it uses, `checkpoint` among them.
        log: gets all that it says.
    """
    program = _DRIVER.replace("        WORK", indent(work.strip(), " " * 8))
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-c", program, str(_TESTS), json.dumps(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )


def kill_all(driver: subprocess.Popen[bytes]) -> None:
    """The driver, its JVM and their workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(30)


def said(log: Path) -> str:
    """The end of what a driver said."""
    return log.read_text(errors="replace")[-3_000:]
