"""Collecting by Spark: tasks list and compare, the collector of each partition decides and deletes.

The driver cuts the directories of partitions into ranges of keys of about as many objects; tasks list these, and give
back what nobody names there. What they found is handed to the collectors, one task for a partition at a time, before
the next ranges are listed, so that no more candidates are held than tasks of one wave may find.

It deletes by the same rules as nodes do, and may run beside them: see `liftpy_bucket.upkeep.collecting`, and
`collect_task`. Shared objects are left to the nodes that wrote them.
"""

from __future__ import annotations

import re
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from liftpy_bucket.errors import BucketVersionError, ManifestCorruptError
from liftpy_bucket.manifest.json import Fields, Row
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.staging.section import STAGING
from liftpy_spark.jobs.access import store_of
from liftpy_spark.jobs.bins import bins_of
from liftpy_spark.jobs.collect.task import (
    KeyRange,
    LookTask,
    RangeFindings,
    Share,
    StagingTask,
    Taken,
    TakeTask,
    look,
    take,
    take_staged,
)
from liftpy_spark.jobs.tasks import JobFailedError, run_tasks
from liftpy_spark.sink.decision import COMMITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.store.s3_settings import S3Settings
    from liftpy_spark.jobs.tasks import Progress

__all__ = ["CollectResult", "collect", "collect_staged", "cuts_of", "plan_collect"]

_RANGE_OBJECTS: Final = 20_000
_RANGE_WEIGHT: Final = 100
"""To look at a range costs the requests for root and pins, besides those that list so many objects."""
_WAVE_TASKS: Final = 16
_HEX_DIGITS: Final = "0123456789abcdef"
_CANDIDATE: Final = re.compile(r"(fragments|snapshots|pins)/[A-Za-z0-9_./-]{1,300}")
_KEY: Final = re.compile(r"[A-Za-z0-9_./-]{0,400}")
_TEXT: Final = re.compile(r"(?s).{0,65536}")
_CANDIDATE_FIELDS: Final = 3


class CollectResult(NamedTuple):
    """What was found of a partition, or deleted.

    Attributes:
        objects: Number of objects.
        size: Size of the objects in bytes.
        listed: How many objects were looked at.
        problem: Why nothing was deleted, or not all; "": nothing is wrong.
    """

    objects: int = 0
    size: int = 0
    listed: int = 0
    problem: str = ""


def plan_collect(
    spark: SparkSession,
    settings: S3Settings,
    paths: Sequence[PartitionPath],
    *,
    grace_s: float,
    progress: Progress | None = None,
) -> list[CollectResult]:
    """What `collect` would delete now. It only reads, so it takes what forks hold for wanted still.

    Args:
        spark: Spark session.
        settings: Settings of the bucket.
        paths: Paths of the partitions.
        grace_s: What nobody names stays for so long, seconds.
        progress: Called with what is done, of how much.

    Returns:
        for each partition what nobody names.

    Raises:
        JobFailedError: a task failed for good.
        StoreError: the store could not be asked.
    """
    tally, ranges = _begin(settings, paths)
    for _, found in _looked(spark, _looks(settings, ranges, grace_s, wants_candidates=False), progress):
        tally.add(found.place, found.objects, found.size, found.listed, found.problem)
    return tally.done


def collect(
    spark: SparkSession,
    settings: S3Settings,
    paths: Sequence[PartitionPath],
    *,
    grace_s: float,
    progress: Progress | None = None,
) -> list[CollectResult]:
    """Delete what no root and no pin names, and what has lain around unnamed for the grace period.

    Args:
        spark: Spark session.
        settings: Settings of the bucket.
        paths: Paths of the partitions.
        grace_s: What nobody names stays for so long, seconds, by the clock of the store.
        progress: Called with what is done, of how much; there is more to do when there is much to be deleted.

    Returns:
        for each partition what was deleted; of a task that was repeated, what its last attempt deleted.

    Raises:
        JobFailedError: a task failed for good; what was deleted before was garbage.
        StoreError: the store could not be asked.
    """
    tally, waiting = _begin(settings, paths)
    before = 0
    while waiting:
        looks = _looks(settings, waiting, grace_s, wants_candidates=True)
        moved = None if progress is None else _from(progress, before, before + len(looks))
        looked = _looked(spark, looks[:_WAVE_TASKS], moved)
        before += len(looks[:_WAVE_TASKS])
        candidates: dict[int, list[tuple[str, int, int]]] = {}
        for _, found in looked:
            tally.add(found.place, listed=found.listed, problem=found.problem)
            if found.candidates:
                candidates.setdefault(found.place, []).extend(found.candidates)
        shares = [Share(place, paths[place], tuple(found)) for place, found in candidates.items()]
        for taken in _taken(spark, settings, shares, grace_s):
            tally.add(taken.place, taken.objects, taken.size, problem=taken.problem)
        again = [keys._replace(after=found.resume) for keys, found in looked if found.resume is not None]
        waiting = [*again, *waiting[len(looked) :]]
    return tally.done


def _from(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _: progress(before + done, total)


def collect_staged(
    spark: SparkSession,
    settings: S3Settings,
    *,
    uuid: str | None = None,
    older_than_s: float,
    deletes: bool,
    now_ns: int | None = None,
    progress: Progress | None = None,
) -> CollectResult:
    """Find what the sink left in the bucket and nobody needs any more, as `sink.staging` and `sink.accounts` say.

    Args:
        spark: Spark session.
        settings: Settings of the bucket.
        uuid: UUID of the stream; None: of all, also of those that were deleted.
        older_than_s: Younger objects stay, and documents of applications that wrote since, seconds: more than a batch
            ever takes.
        deletes: Whether they are deleted; otherwise they are counted.
        now_ns: Time by the clock of the store, ns since the epoch; by default that of this machine.
        progress: Called with what is done, of how much.

    Raises:
        JobFailedError: a task failed for good.
        StoreError: the store could not be asked.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    store = store_of(settings)
    prefixes = list(_HEX_DIGITS) if uuid is None else [f"{uuid}/"]
    prefixes = [
        each for each in prefixes if any(next(store.list(top + each), None) is not None for top in (STAGING, COMMITS))
    ]
    tasks = [StagingTask(settings, prefix, older_than_s, now_ns, deletes) for prefix in prefixes]
    found = run_tasks(spark, tasks, take_staged, what="collecting", read=_read_pair, progress=progress)
    return CollectResult(sum(objects for objects, _ in found), sum(size for _, size in found))


class _Tally:
    """What was found or deleted so far, by the place of the partition."""

    def __init__(self, count: int) -> None:
        self.done = [CollectResult() for _ in range(count)]

    def add(self, place: int, objects: int = 0, size: int = 0, listed: int = 0, problem: str = "") -> None:
        """More of a partition; the first problem counts."""
        each = self.done[place]
        self.done[place] = CollectResult(
            each.objects + objects, each.size + size, each.listed + listed, each.problem or problem
        )


def _begin(settings: S3Settings, paths: Sequence[PartitionPath]) -> tuple[_Tally, list[KeyRange]]:
    """What is to be listed; a root that can not be read is a problem."""
    tally, ranges = _Tally(len(paths)), []
    for place, path in enumerate(paths):
        try:
            loaded = RootFile(store_of(settings), path, new_id=_new_id).load()
        except (ManifestCorruptError, BucketVersionError) as error:
            tally.add(place, problem=str(error))
            continue
        if loaded is not None:
            ranges += _ranges(place, path, loaded.root)
    return tally, ranges


def _ranges(place: int, path: PartitionPath, root: Root) -> list[KeyRange]:
    cuts = [f"fragments/{base:020d}" for base in cuts_of(root, _RANGE_OBJECTS)]
    if not cuts:
        count = sum(each.fragments for each in root.snapshots) + len(root.fragments)
        return [KeyRange(place, path, "", "", count)]
    edges = ["", *cuts, "pins/", ""]
    return [KeyRange(place, path, *edge, _RANGE_OBJECTS) for edge in pairwise(edges)]


def cuts_of(root: Root, objects: int) -> list[int]:
    """Offsets between which a root names about so many objects, as far as can be said without reading its snapshots.

    Args:
        root: Root of a partition.
        objects: How many, at most or a few more.
    """
    pointers = [*((each.base, each.end, each.fragments) for each in root.snapshots)]
    pointers += [(each.base, each.end, 1) for each in root.fragments]
    cuts: set[int] = set()
    held = 0
    for base, end, count in pointers:
        if held and held + count > objects:
            cuts.add(base)
            held = 0
        parts = -(-count // objects)
        cuts |= {base + (end - base) * part // parts for part in range(1, parts)}
        held += count // parts
    return sorted(cuts)


def _looks(
    settings: S3Settings, ranges: Sequence[KeyRange], grace_s: float, *, wants_candidates: bool
) -> list[LookTask]:
    shares = bins_of([each.weight + _RANGE_WEIGHT for each in ranges], _RANGE_OBJECTS + _RANGE_WEIGHT)
    grace_ns = int(grace_s * 1e9)
    return [LookTask(settings, tuple(ranges[at] for at in share), grace_ns, wants_candidates) for share in shares]


def _looked(
    spark: SparkSession, tasks: Sequence[LookTask], progress: Progress | None
) -> list[tuple[KeyRange, RangeFindings]]:
    """What was found in each range, in order."""
    results = run_tasks(spark, tasks, look, what="collecting", read=_read_found, progress=progress)
    looked: list[tuple[KeyRange, RangeFindings]] = []
    for task, found in zip(tasks, results, strict=True):
        begun = found[0].resume != task.ranges[0].after if found else False
        if not begun or [each.place for each in found] != [each.place for each in task.ranges]:
            raise JobFailedError(
                "collecting: a task told of other ranges than it was given; nothing of them was deleted"
            )
        looked += zip(task.ranges, found, strict=True)
    return looked


def _taken(spark: SparkSession, settings: S3Settings, shares: Sequence[Share], grace_s: float) -> Iterator[Taken]:
    """What was deleted of candidates."""
    bins = bins_of([len(each.candidates) + _RANGE_WEIGHT for each in shares], _RANGE_OBJECTS)
    tasks = [TakeTask(settings, tuple(shares[at] for at in share), int(grace_s * 1e9)) for share in bins]
    for task, taken in zip(tasks, run_tasks(spark, tasks, take, what="collecting", read=_read_taken), strict=True):
        if [each.place for each in taken] != [each.place for each in task.shares]:
            raise JobFailedError("collecting: a task told of other partitions than it was given")
        yield from taken


def _rows(plain: Any, length: int) -> Iterator[Row]:
    return Fields("collected", "result", {"rows": plain}, ("rows",)).rows("rows", length)


def _read_found(plain: Any) -> list[RangeFindings]:
    """What `look` gave.

    Raises:
        ManifestCorruptError: it is not that.
    """
    found = []
    for row in _rows(plain, len(RangeFindings._fields)):
        candidates = tuple(
            (each.text(0, _CANDIDATE), each.number(1), each.number(2)) for each in row.rows(4, _CANDIDATE_FIELDS)
        )
        resume = None if row.is_null(5) else row.text(5, _KEY)
        place, listed, objects, size = (row.number(at) for at in range(4))
        found.append(RangeFindings(place, listed, objects, size, candidates, resume, row.text(6, _TEXT)))
    return found


def _read_taken(plain: Any) -> list[Taken]:
    """What `take` gave.

    Raises:
        ManifestCorruptError: it is not that.
    """
    return [
        Taken(row.number(0), row.number(1), row.number(2), row.text(3, _TEXT))
        for row in _rows(plain, len(Taken._fields))
    ]


def _read_pair(plain: Any) -> tuple[int, int]:
    row = Row("collected", "result", plain, 2)
    return row.number(0), row.number(1)


def _new_id() -> str:
    return uuid4().hex
