"""Scrubbing by Spark: the driver verifies manifests, tasks read objects; what is found is told as by one machine."""

from __future__ import annotations

import re
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.manifest.json import Fields
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.upkeep.scrubbing import problem_of
from liftpy_bucket.upkeep.verifying import verify
from liftpy_spark.jobs.access import store_of
from liftpy_spark.jobs.bins import TASK_BYTES, bins_of, bytes_of
from liftpy_spark.jobs.parts import Part, bare_root, version_of
from liftpy_spark.jobs.tasks import run_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.reading.version import Piece, TierVersion
    from liftpy_bucket.store.s3_settings import S3Settings
    from liftpy_bucket.upkeep.verifying import Kind, Report
    from liftpy_spark.jobs.tasks import Progress

__all__ = ["ScrubPlan", "plan_scrub", "scrub"]

_LOOKS_MAX: Final = 16
_KIND: Final = re.compile("missing|corrupt")
_TEXT: Final = re.compile(r"(?s).{1,65536}")


class ScrubPlan(NamedTuple):
    """What a scrub would do.

    Attributes:
        objects: Objects that are read, or shares of objects.
        size: About how many bytes of them.
        tasks: Among how many tasks.
    """

    objects: int
    size: int
    tasks: int


class _Given(NamedTuple):
    """What a task gets."""

    settings: S3Settings
    parts: tuple[tuple[int, Part], ...]  # with the place of the partition among those that are scrubbed


class _Found(NamedTuple):
    """A piece with which something is wrong; it is [start, end) of its partition."""

    place: int
    kind: Kind
    key: str
    start: int
    end: int
    text: str


class _Range(NamedTuple):
    """What is to be read of a partition."""

    place: int
    start: int
    end: int | None


def plan_scrub(settings: S3Settings, paths: Sequence[PartitionPath], *, task_bytes: int = TASK_BYTES) -> ScrubPlan:
    """What `scrub` would do now.

    Args:
        settings: Settings of the bucket.
        paths: Paths of the partitions.
        task_bytes: About how much a task reads.

    Raises:
        TierError: a manifest can not be read.
    """
    pieces = [piece for _, piece in _pieces(_versions(settings, paths, _whole(range(len(paths)))))]
    tasks = len(bins_of([bytes_of(piece) for piece in pieces], task_bytes))
    return ScrubPlan(len(pieces), sum(map(bytes_of, pieces)), tasks)


def scrub(
    spark: SparkSession,
    settings: S3Settings,
    paths: Sequence[PartitionPath],
    *,
    progress: Progress | None = None,
    task_bytes: int = TASK_BYTES,
) -> list[Report]:
    """Verify partitions, and read all of them.

    Args:
        spark: Spark session.
        settings: Settings of the bucket.
        paths: Paths of the partitions.
        progress: Called with what is done, of how much.
        task_bytes: About how much a task reads.

    Returns:
        a report for each, as `liftpy_bucket.upkeep.scrubbing.scrub` makes it.

    Raises:
        StoreError: the store could not be asked.
        JobFailedError: a task could not ask it, or did not come to an end.
        OvertakenError: a partition moved on at every look.
    """
    store = store_of(settings)
    reports = [verify(store, path) for path in paths]
    # What can not be read can not be followed.
    readable = [n for n, each in enumerate(reports) if all(problem.kind != "manifest" for problem in each.problems)]
    known = [{problem.key for problem in report.problems} for report in reports]
    waiting = _whole(readable)
    for _ in range(_LOOKS_MAX):
        versions = _versions(settings, paths, waiting)
        found = run_tasks(
            *(spark, _tasks(settings, versions, task_bytes), _scrub_parts),
            what="scrubbing",
            read=partial(_read_found, places=readable),
            progress=progress,
        )
        waiting = []
        for each in sorted((each for task in found for each in task), key=lambda each: (each.place, each.start)):
            if each.kind == "missing" and not _is_named(settings, paths[each.place], each):
                waiting.append(_Range(each.place, each.start, each.end))  # it was collected; something else took over
            elif each.key not in known[each.place]:
                reports[each.place].add(each.kind, each.key, each.start, each.text)
        if not waiting:
            return reports
    moved = ", ".join(sorted({paths[each.place].root for each in waiting}))
    raise OvertakenError(f"{moved} moved on {_LOOKS_MAX} times while it was read: scrub at a quieter time")


def _whole(places: Sequence[int]) -> list[_Range]:
    return [_Range(place, 0, None) for place in places]


def _versions(
    settings: S3Settings, paths: Sequence[PartitionPath], ranges: Sequence[_Range]
) -> Iterator[tuple[_Range, TierVersion]]:
    """The newest version for each range; those of which there is nothing are passed over."""
    for each in ranges:
        version = open_version(store_of(settings), paths[each.place])
        if version is not None:
            yield each, version


def _pieces(versions: Iterator[tuple[_Range, TierVersion]]) -> Iterator[tuple[tuple[_Range, TierVersion], Piece]]:
    for wanted, version in versions:
        for piece in version.pieces(wanted.start, wanted.end):
            yield (wanted, version), piece


def _tasks(settings: S3Settings, versions: Iterator[tuple[_Range, TierVersion]], task_bytes: int) -> list[_Given]:
    there = list(_pieces(versions))
    tasks = []
    for share in bins_of([bytes_of(piece) for _, piece in there], task_bytes):
        by_place = groupby((there[at] for at in share), lambda each: each[0][0].place)
        parts = [(place, _part([*run])) for place, run in by_place]
        tasks.append(_Given(settings, tuple(parts)))
    return tasks


def _part(run: list[tuple[tuple[_Range, TierVersion], Piece]]) -> Part:
    return Part(bare_root(run[0][0][1]), tuple(piece for _, piece in run))


def _scrub_parts(given: _Given) -> list[_Found]:
    """What is wrong with what a task was given."""
    store = store_of(given.settings)
    found = []
    for place, part in given.parts:
        version = version_of(given.settings, part)
        for piece in part.pieces:
            problem = problem_of(store, version, piece)
            if problem is not None:
                found.append(_Found(place, problem.kind, problem.key, piece.start, piece.end, problem.text))
    return found


def _read_found(plain: Any, places: Sequence[int]) -> list[_Found]:
    """What `_scrub_parts` gave, of the partitions that were asked for.

    Raises:
        ManifestCorruptError, ValueError: it is not that.
    """
    found = []
    for row in Fields("found", "result", {"found": plain}, ("found",)).rows("found", len(_Found._fields)):
        place, start = row.number(0), row.number(3)
        if place not in places:
            raise ValueError(f"it names partition {place} of {len(places)}")
        kind: Kind = "missing" if row.text(1, _KIND) == "missing" else "corrupt"
        found.append(_Found(place, kind, row.text(2, _TEXT), start, row.number(4, start), row.text(5, _TEXT)))
    return found


def _is_named(settings: S3Settings, path: PartitionPath, found: _Found) -> bool:
    """Whether the newest version still names an object that is not there."""
    version = open_version(store_of(settings), path)
    return version is not None and any(piece.key == found.key for piece in version.pieces(found.start, found.end))
