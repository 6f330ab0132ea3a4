"""Key compaction as Spark runs it: which records are superseded, and the writing of objects without them.

Rows of a key meet by Spark's shuffle, sorted by offset from the newest one down, so that no task holds more of a key
than a row, and what does not fit into memory goes to disk, however many keys there are. What is found, 12 bytes for
each superseded record that its own row group does not tell, is kept on the disks of executors until the pass is over.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum
from liftpy_spark.jobs.compact.keys import CANDIDATES
from liftpy_spark.jobs.compact.task import read_keys, read_made, rewrite
from liftpy_spark.jobs.tasks import JobFailedError, TaskProgress, cause_of, in_rounds, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from pyspark.sql import DataFrame, SparkSession

    from liftpy_bucket.objects.pointers import StreamObjectPointer
    from liftpy_spark.jobs.compact.plan import Rewrite
    from liftpy_spark.jobs.compact.task import Made, Pass
    from liftpy_spark.jobs.tasks import Progress

__all__ = ["Superseded", "checked", "find_superseded", "run_rewrites", "runs_of"]

_FINDING: Final = "finding superseded records"
_WRITING: Final = "compacting"
_NO_OFFSET: Final = -1
_REPLIES: Final = "task int, body binary"


class Superseded(NamedTuple):
    """Superseded records, as a DataFrame.

    Attributes:
        frame: Rows (place of the object, offset).
        places: Places of the objects that have such records.
    """

    frame: DataFrame
    places: frozenset[int]


@contextmanager
def find_superseded(
    spark: SparkSession,
    work: Pass,
    bins: Sequence[Sequence[tuple[int, StreamObjectPointer]]],
    progress: Progress | None,
) -> Iterator[Superseded]:
    """Find what newer records of the same key supersede; it is kept as long as this lasts.

    Args:
        spark: Spark session.
        work: Compaction pass.
        bins: Objects whose keys each task reads, with their places.
        progress: Called with what is done, of how much.

    Raises:
        JobFailedError: an object could not be read.
    """
    frame = _superseded(spark, work, bins).persist(StorageLevel.DISK_ONLY)
    try:
        places = _collected(spark, frame.select("place").distinct(), _FINDING, len(bins), progress)
        yield Superseded(frame, frozenset(places["place"].to_pylist()))
    finally:
        frame.unpersist()


def _superseded(
    spark: SparkSession, work: Pass, bins: Sequence[Sequence[tuple[int, StreamObjectPointer]]]
) -> DataFrame:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from read_keys(work, bins[task])

    candidates = spark.range(0, len(bins), 1, len(bins)).mapInArrow(run, CANDIDATES)
    downwards = Window.partitionBy("high", "low").orderBy(F.desc("offset"))
    so_far = downwards.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    newest = F.max(F.when(F.col("is_new"), F.col("offset"))).over(so_far)
    return candidates.withColumn("newest", newest).where("newest > offset").select("place", "offset")


def run_rewrites(
    spark: SparkSession, found: Superseded, work: Pass, rewrites: Sequence[Rewrite], progress: Progress | None
) -> list[Made]:
    """Write objects anew, a task for each; what they made is not named by anything yet.

    Args:
        spark: Spark session.
        found: Superseded records.
        work: Compaction pass.
        rewrites: What is written anew.
        progress: Called with what is done, of how much.

    Returns:
        what came of each, in order.

    Raises:
        JobFailedError: a task failed for good, or gave what can not be read.
    """

    def run(waiting: Sequence[int]) -> dict[int, bytes]:
        rows = _rewritten(spark, found.frame, work, {task: rewrites[task] for task in waiting})
        table = _collected(spark, rows, _WRITING, len(waiting), progress)
        return dict(zip(table["task"].to_pylist(), table["body"].to_pylist(), strict=True))

    made = in_rounds(len(rewrites), run, what=_WRITING, read=read_made)
    return [checked(*each) for each in zip(rewrites, made, strict=True)]


def checked(given: Rewrite, made: Made) -> Made:
    """Check that an object covers the offsets of its rewrite, and lost only the records that were dropped.

    Raises:
        JobFailedError: it is not.
    """
    old, new = given.pointers, made.pointer
    left = NO_RECORDS if new is None else new.setsum
    is_there = new is None or (new.base, new.end) == (old[0].base, old[-1].end)
    if not is_there or Setsum.total(each.setsum for each in old) != left + made.collected:
        raise JobFailedError(
            f"{_WRITING}: what a task wrote for offsets {old[0].base} to {old[-1].end} has not the records that it was "
            "to have; nothing of this step was committed"
        )
    return made


def _rewritten(spark: SparkSession, superseded: DataFrame, work: Pass, rewrites: Mapping[int, Rewrite]) -> DataFrame:
    """Each task gets the rows of one rewrite, in order, and one more, as there may be none."""
    write = partial(_body, rewrite, work)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for task, runs in groupby(runs_of(batches), itemgetter(0)):
            body = write(rewrites[task], (offsets for _, offsets in runs))
            yield pa.RecordBatch.from_arrays([pa.array([task], pa.int32()), pa.array([body])], ["task", "body"])

    of_place = [(place, task) for task, each in rewrites.items() for place in each.places]
    columns = {name: pa.array([each[at] for each in of_place], pa.int32()) for at, name in enumerate(("place", "task"))}
    tasks = spark.createDataFrame(pa.table(columns))
    rows = superseded.join(F.broadcast(tasks), "place").select("task", "offset")
    starts = tasks.select("task", F.lit(_NO_OFFSET).cast("long").alias("offset")).distinct()
    by_task = rows.union(starts).repartitionById(len(rewrites), "task")
    return by_task.sortWithinPartitions("task", "offset").mapInArrow(run, _REPLIES)


def _body(write: Callable[..., Any], work: Pass, given: Rewrite, superseded: Iterator[npt.NDArray[np.int64]]) -> bytes:
    return packed(lambda pieces: write(work, given, pieces), superseded)


def runs_of(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Offsets of one task each, in the order in which they come."""
    for batch in batches:
        if not batch.num_rows:
            continue
        tasks, offsets = (batch.column(name).to_numpy() for name in ("task", "offset"))
        for piece in np.split(np.arange(len(tasks)), np.flatnonzero(np.diff(tasks)) + 1):
            assert (np.diff(offsets[piece]) > 0).all(), "Spark has sorted them"
            yield int(tasks[piece[0]]), offsets[piece]


def _collected(spark: SparkSession, rows: DataFrame, what: str, total: int, progress: Progress | None) -> Any:
    """The rows, as a table.

    Raises:
        JobFailedError: Spark gave up.
    """
    with TaskProgress(spark, what, total, progress):
        try:
            return rows.toArrow()
        except (PySparkException, Py4JError) as error:
            raise JobFailedError(f"{what}: Spark gave up: {cause_of(error)}") from None
