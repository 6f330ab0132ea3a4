"""The example pipeline on Spark, run on the demonstration's flights: processes of their own, and what they report."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.markup import escape

from liftpy.cli.child_processes import die_with_parent
from liftpy.demo.delays import check_pipeline, windows_of
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy.demo.cluster import DemoCluster
    from liftpy.demo.flights import Flight
    from liftpy.demo.view import DemoView
    from liftpy_client.client import Lift

__all__ = ["PROGRAMS", "Pipeline", "java_trouble", "run_pipeline"]

PROGRAMS: Final = ("streaming.py", "batch.py")
_RESULTS: Final = "delays"
_CLOCK_SUBJECT: Final = "flights.clock"
_CLOCK: Final = {"clock": "2014-02-01T00:00:00"}
"""Later than any flight of 2013, by more than one may be late: it closes all windows."""
_STARTS_MAX: Final = 3
_TIMEOUT_S: Final = 900.0  # on two cores that do other work too; alone it takes less than one
_JAVA_LEAST: Final = 17
_JAVA_TIMEOUT_S: Final = 60.0
_PACKAGES: Final = ("pyspark", "deltalake", "matplotlib")
_PNG: Final = b"\x89PNG\r\n"


class Pipeline(NamedTuple):
    """What to run.

    Attributes:
        directory: Where `streaming.py` and `batch.py` are.
        picture: The PNG that is made.
    """

    directory: Path
    picture: Path


async def run_pipeline(
    pipeline: Pipeline, lift: Lift, cluster: DemoCluster, flights: Sequence[Flight], view: DemoView
) -> dict[str, Any]:
    """Read the flights with the streaming job, compute all again with the batch job, and check both.

    Args:
        pipeline: What to run.
        lift: A connection.
        cluster: Cluster with a bucket, and the stream of flights.
        flights: All that the stream holds.
        view: Shows it.

    Returns:
        `streaming` and `batch`, as the programs reported, with `took_s` in seconds, and `picture`; or `skipped`, which
        says why it did not run.

    Raises:
        CheckFailedError: what it gave is not what the flights say.
        LiftError: a program failed.
    """
    trouble = _missing_packages() or await asyncio.to_thread(java_trouble)
    if trouble is not None:
        view.event(f"[yellow]the pipeline on Spark was left out[/]: {trouble}")
        return {"skipped": trouble}
    assert cluster.endpoint is not None, "it writes by way of the bucket"
    await lift.publish(_CLOCK_SUBJECT, json.dumps(_CLOCK).encode())
    common = ["--servers", cluster.url, "--s3-endpoint", cluster.endpoint, "--home", str(cluster.home / "pipeline")]
    view.work("Spark: delays by carrier and by route, as the stream is read")
    streaming, streaming_s = await _stream(cluster, pipeline.directory / "streaming.py", [*common, "--once"], view)
    view.event(f"Spark read the stream in {streaming_s:.1f} s, and wrote to stream {_RESULTS} and to Delta tables")
    view.work("Spark: the same from history")
    picture = pipeline.picture.absolute()
    batch, batch_s = await _report(cluster, pipeline.directory / "batch.py", [*common, "--plot", str(picture)])
    details = await lift.stream_info(_RESULTS)
    stored = sum(part.log_end or 0 for part in details.partitions)
    await asyncio.to_thread(check_pipeline, streaming, batch, flights, records=len(flights), stored=stored)
    if not await asyncio.to_thread(_is_picture, picture):
        raise LiftError(f"{picture} is no picture")
    rows = sum(windows_of(batch).values())
    view.event(f"computed again from history in {batch_s:.1f} s: [bold green]all {rows:,} windows agree to the row[/]")
    return {
        "streaming": {"queries": streaming, "took_s": streaming_s},
        "batch": batch | {"took_s": batch_s},
        "picture": str(picture),
    }


def _is_picture(path: Path) -> bool:
    return path.is_file() and path.read_bytes().startswith(_PNG)


def _missing_packages() -> str | None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    return f"it needs more packages: pip install {' '.join(missing)}" if missing else None


def java_trouble() -> str | None:
    """Why Spark cannot run here; None where it can."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    needed = f"Spark needs Java {_JAVA_LEAST} or newer, named by JAVA_HOME or on the PATH"
    if java is None:
        return f"{needed}, and there is none"
    try:
        said = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, check=False, timeout=_JAVA_TIMEOUT_S
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{needed}, and {java} does not run: {error}"
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < _JAVA_LEAST:
        return f"{needed}, and {java} is {found[1] if found else 'no Java'}"
    return None


async def _stream(
    cluster: DemoCluster, program: Path, arguments: Sequence[str], view: DemoView
) -> tuple[dict[str, Any], float]:
    """Run the streaming job to its end, and start it again when it fails: it goes on where it was.

    On a machine that is very busy it may: Spark gives the Python of a source 10 s to start.

    Raises:
        LiftError: it fails every time.
    """
    began = time.monotonic()
    for _ in range(_STARTS_MAX - 1):
        try:
            return await _report(cluster, program, arguments)
        except LiftError as error:
            view.event(f"[yellow]{escape(str(error))}[/]; it is started again, and goes on from its checkpoint")
    report, _ = await _report(cluster, program, arguments)
    return report, time.monotonic() - began


async def _report(cluster: DemoCluster, program: Path, arguments: Sequence[str]) -> tuple[dict[str, Any], float]:
    """Run a program to its end; gives what it reports, and how long it took in seconds.

    Raises:
        LiftError: it failed, or took too long.
    """
    log_path = cluster.home / f"{program.stem}.log"
    began = time.monotonic()
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(program), *arguments, "--json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=cluster.environment,
            start_new_session=True,  # an interrupt at the terminal is ours to handle first
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        raise LiftError(f"{program.name} did not end within {_TIMEOUT_S:g} s") from None
    finally:
        with suppress(ProcessLookupError):  # the program, its JVM, and what these have started
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.returncode:
        said = log_path.read_text(errors="replace").strip().splitlines()
        raise LiftError(f"{program.name} ended with {process.returncode}: {said[-1] if said else 'it said nothing'}")
    report: dict[str, Any] = json.loads(output)
    return report, time.monotonic() - began
