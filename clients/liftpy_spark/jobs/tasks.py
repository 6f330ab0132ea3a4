"""Tasks of a job: each gets one value, and gives one back.

A DataFrame has as many rows as there are tasks, and as many partitions. What goes wrong with the bucket comes back as
a value, so that the driver can say it in words; where trying again can help, such a task is tried again in another
round. A task whose worker or machine is lost is repeated by Spark. So work that is done in a task may be done twice.

What tasks are given travels with their function, as Spark hands functions to its workers. What they give back comes
from other machines: it is msgpack of plain values, and whoever runs the tasks rebuilds it, and checks it, on the
driver. Nothing that comes from there is unpickled.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from uuid import uuid4

import msgpack
import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql.utils import is_remote
from pyspark.util import InheritableThread

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_envelope.errors import LiftError
from liftpy_envelope.unpacking import OWN_FILE, UnpackError, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

__all__ = ["JobFailedError", "Progress", "TaskProgress", "cause_of", "in_rounds", "packed", "run_tasks"]

_ROUNDS_MAX: Final = 3
_POLL_S: Final = 0.25
_TEXT_MAX: Final = 500
_SCHEMA: Final = "task long, body binary"
_GROUP: Final = "spark.jobGroup.id"
_DESCRIPTION: Final = "spark.job.description"

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")

if TYPE_CHECKING:
    Progress = Callable[[int, int], None]
    """Called with (tasks that are done, tasks there are), from a thread of its own."""
else:
    Progress = object


class JobFailedError(LiftError):
    """A task of a job failed, and what it has done counts for nothing."""


class _Reply(NamedTuple):
    """What came from a task: its result as plain values, or what it could not do."""

    result: Any = None
    failure: str | None = None
    is_retriable: bool = False


def run_tasks(
    spark: SparkSession,
    given: Sequence[_Given],
    work: Callable[[_Given], Any],
    *,
    what: str,
    read: Callable[[Any], _Result],
    progress: Progress | None = None,
) -> list[_Result]:
    """Do work for each value, in parallel.

    Args:
        spark: Spark session.
        given: A value for each task; Spark can hand it to its workers with a function.
        work: Called in a Python worker; a module that is there has it. It may be called twice for a value. It gives
            plain values, as msgpack has them: numbers, text, bytes, lists, objects; a named tuple becomes a list.
        what: The work, for messages and for Spark's pages.
        read: Makes the result of what `work` gave, on the driver. It raises ManifestCorruptError (as `Row` and
            `Fields` of manifests do) or ValueError where that is not what it must be.
        progress: Called with what is done, of how much.

    Returns:
        what `read` made of it, in the order of `given`.

    Raises:
        JobFailedError: a task failed for good, or gave what can not be read.
    """

    def run(waiting: Sequence[int]) -> dict[int, bytes]:
        moved = None if progress is None else _from(progress, len(given) - len(waiting), len(given))
        return _run(spark, {task: given[task] for task in waiting}, work, what, moved)

    return in_rounds(len(given), run, what=what, read=read)


def in_rounds(
    tasks: int, run: Callable[[Sequence[int]], Mapping[int, bytes]], *, what: str, read: Callable[[Any], _Result]
) -> list[_Result]:
    """Run tasks, and those again that fail where that can help.

    Args:
        tasks: Number of tasks.
        run: Runs the tasks of these numbers, and gives what `packed` made of each.
        what: The work, for messages.
        read: Reader of results, as for `run_tasks`.

    Returns:
        what `read` made of it, in the order of the numbers.

    Raises:
        JobFailedError: a task failed for good, or gave what can not be read.
    """
    results: dict[int, _Result] = {}
    waiting = list(range(tasks))
    for round_left in reversed(range(_ROUNDS_MAX)):
        if not waiting:
            break
        failed = []
        bodies = run(waiting)
        if bodies.keys() != {*waiting}:
            raise _unreadable(what, f"{len(bodies)} results came of {len(waiting)} tasks")
        for task, body in sorted(bodies.items()):
            reply = _reply_of(body, what)
            if reply.failure is None:
                results[task] = _result_of(reply, read, what)
            elif reply.is_retriable and round_left:
                failed.append(task)
            else:
                raise JobFailedError(f"{what}: {reply.failure}")
        waiting = failed
    return [results[task] for task in range(tasks)]


def _from(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _: progress(before + done, total)


def _run(
    spark: SparkSession, given: Mapping[int, Any], work: Callable[[Any], Any], what: str, progress: Progress | None
) -> dict[int, bytes]:
    """What tasks sent back, by the numbers that they say."""
    numbers = list(given)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            tasks = [numbers[place] for place in batch.column(0).to_pylist()]
            done = [packed(work, given[task]) for task in tasks]
            yield pa.RecordBatch.from_arrays([pa.array(tasks, pa.int64()), pa.array(done)], ["task", "body"])

    rows = spark.range(0, len(given), 1, len(given)).mapInArrow(run, _SCHEMA)
    with TaskProgress(spark, what, len(given), progress):
        try:
            table = rows.toArrow()
        except (PySparkException, Py4JError) as error:
            raise JobFailedError(f"{what}: Spark gave up: {cause_of(error)}") from None
    return dict(zip(table["task"].to_pylist(), table["body"].to_pylist(), strict=True))


def packed(work: Callable[[Any], Any], value: Any) -> bytes:
    """What a task sends back: the result of its work, or the failure of it."""
    try:
        reply = {"result": work(value)}
    except LiftError as error:
        reply = {"failure": [str(error), error.retriable]}
    body: bytes = msgpack.packb(reply)
    return body


def _reply_of(body: bytes, what: str) -> _Reply:
    """What a task gave back; it may be anything.

    Raises:
        JobFailedError: it is not a reply.
    """
    try:
        plain = unpack(body, OWN_FILE)
    except UnpackError as error:
        raise _unreadable(what, f"it is not msgpack ({error})") from None
    match plain:
        case {"result": result, **more} if not more:
            return _Reply(result)
        case {"failure": [str(text), bool(is_retriable)], **more} if not more:
            return _Reply(failure=text, is_retriable=is_retriable)
    raise _unreadable(what, "it is neither a result nor a failure")


def _result_of(reply: _Reply, read: Callable[[Any], _Result], what: str) -> _Result:
    """The result of a task that had one.

    Raises:
        JobFailedError: it can not be read.
    """
    try:
        return read(reply.result)
    except ManifestCorruptError as error:
        raise _unreadable(what, error.why) from None
    except ValueError as error:
        raise _unreadable(what, str(error)) from None


def _unreadable(what: str, why: str) -> JobFailedError:
    return JobFailedError(
        f"{what}: what a task gave back can not be read: {why[:_TEXT_MAX]}; do executors have the liftpy of the driver?"
    )


def cause_of(error: Exception) -> str:
    """What is said last in a traceback is what happened."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("at ", "File ", "...", "Driver stacktrace"))]
    python = [line for line in said if "Error: " in line and "Exception: Traceback" not in line]
    return (python or said or [type(error).__name__])[-1 if python else 0][:_TEXT_MAX]


class TaskProgress:
    """Tells how many tasks are done as long as it lasts. Through Spark Connect nobody can tell."""

    def __init__(self, spark: SparkSession, what: str, total: int, progress: Progress | None) -> None:
        self._context = None if is_remote() else spark.sparkContext
        self._what = what
        self._total = total
        self._progress = progress
        self._group = f"liftpy-{uuid4().hex}"
        self._is_over = threading.Event()
        self._thread = InheritableThread(target=self._tell, name="liftpy progress", daemon=True)

    def __enter__(self) -> None:
        if self._context is None:
            return
        self._before = {name: self._context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
        self._context.setJobGroup(self._group, f"liftpy: {self._what}")
        if self._progress is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        if self._context is None:
            return
        for name, text in self._before.items():
            self._context.setLocalProperty(name, text)  # type: ignore[arg-type]  # None takes it away
        if self._progress is not None:
            self._is_over.set()
            self._thread.join()
            self._progress(self._total, self._total)

    def _tell(self) -> None:
        assert self._context is not None
        assert self._progress is not None
        tracker = self._context.statusTracker()
        while not self._is_over.wait(_POLL_S):
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
            stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
            self._progress(sum(stage.numCompletedTasks for stage in stages if stage is not None), self._total)
